"""Access to a relay's HTTP server: tokens, unix sockets, host names, and hostile clients."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import stat
import unittest

from support import Case, wait_until

USAGE, UNAVAILABLE, CONFIG = 64, 69, 78
TOKEN = "4c1f6a0d9b8e7f55a6b7c8d9e0f1a2b3"
OTHER = "aaaabbbbccccddddeeeeffff00001111"
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-frame-options": "DENY",
           "content-security-policy": "default-src 'none'; frame-ancestors 'none'", "referrer-policy": "no-referrer",
           "cross-origin-resource-policy": "same-origin", "connection": "close"}


class Answer:
    """A response. status is 0 if there was none."""

    def __init__(self, data):
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.body = body.decode()


class AdminCase(Case):
    def setUp(self):
        super().setUp()
        self.init()
        self.token_file = self.path("token")
        self.token_file.write_text(TOKEN + "\n")
        self.token_file.chmod(0o600)

    def sink(self, name="mail"):
        return ["--consumer", name, "--sink", f"file:{self.path(name)}"]

    def serve(self, *args, listen="127.0.0.1:0", **kw):
        relay = self.relay("--listen", listen, *args, *self.sink(), **kw)
        relay.where = re.search(r"listening on (\S+)", relay.output())[1]
        return relay

    def connect(self, relay):
        if relay.where.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(30)
            connection.connect(relay.where.removeprefix("unix:"))
        else:
            port = int(relay.where.rpartition(":")[2])
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.addCleanup(connection.close)
        return connection

    def send(self, relay, data):
        """send returns the answer to raw bytes."""
        with contextlib.closing(self.connect(relay)) as connection:
            with contextlib.suppress(ConnectionError): connection.sendall(data)
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536): got += piece
            return Answer(got)

    def ask(self, relay, path, *headers, method="GET", host="localhost", version="1.1", body=b""):
        lines = [f"{method} {path} HTTP/{version}", *([f"Host: {host}"] if host is not None else []), *headers, "", ""]
        return self.send(relay, "\r\n".join(lines).encode() + body)

    def status(self, relay, path, *headers, **kw):
        return self.ask(relay, path, *headers, **kw).status


class Tokens(AdminCase):
    def test_without_a_token_remote_clients_get_only_health_checks(self):
        with self.serve(listen="0.0.0.0:0") as relay:
            self.assertIn("warning --listen 0.0.0.0:0: other machines may reach it, and no token is set", relay.output())
            for path in ("/metrics", "/", "/nothing", "/metrics?verbose", "/livez/", "//livez"):
                answer = self.ask(relay, path)
                self.assertEqual(answer.status, 403, path)
                self.assertIn("listen-token-file", answer.body)
                self.assertNotIn("mail", answer.body)
            self.assertEqual(self.status(relay, "/metrics", f"Authorization: Bearer {TOKEN}"), 403)
            for path, said in (("/livez", "ok\n"), ("/readyz", "ready\n")):
                answer = self.ask(relay, path)
                self.assertEqual((answer.status, answer.body), (200, said))
                self.assertNotIn("mail", self.ask(relay, f"{path}?verbose").body)

    def test_token_is_required_wherever_it_is_set(self):
        for listen in ("127.0.0.1:0", "0.0.0.0:0", f"unix:{self.path('sock')}"):
            with self.subTest(listen), self.serve("--listen-token-file", self.token_file, listen=listen) as relay:
                self.assertNotIn("other machines", relay.output())
                for path in ("/metrics", "/", "/nothing"):
                    answer = self.ask(relay, path)
                    self.assertEqual((answer.status, answer.headers["www-authenticate"]), (401, 'Bearer realm="outbox"'))
                for bad in (f"Bearer {OTHER}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}0", f"Basic {TOKEN}", f"Bearer {TOKEN.upper()}",
                            "Bearer", "Bearer ", TOKEN):
                    self.assertEqual(self.status(relay, "/metrics", f"Authorization: {bad}"), 401, bad)
                good = f"Authorization: Bearer {TOKEN}"
                self.assertEqual(self.status(relay, "/metrics", good, good), 400)
                answer = self.ask(relay, "/metrics", good)
                self.assertEqual(answer.status, 200)
                for status, n in ((400, 1), (401, 11), (403, 0)):
                    self.assertIn(f'\noutbox_http_refused_total{{status="{status}"}} {n}\n', answer.body)
                self.assertIn('consumer="mail"', answer.body)
                self.assertEqual(self.status(relay, "/nothing", good), 404)
                self.assertEqual(self.ask(relay, "/readyz?verbose", good).body, "[+] mail: idle\nready\n")

    def test_unauthorized_clients_get_only_the_status_of_readyz(self):
        down = ["--consumer", "s3cret-name", "--sink", "file:/nonexistent/s3cret-path/out", "--stuck-after", "1ms"]
        with self.serve("--listen-token-file", self.token_file, *down) as relay:
            self.emit("a", payload=1)
            wait_until(lambda: self.status(relay, "/readyz") == 503)
            for path in ("/readyz", "/readyz?verbose", "/readyz?verbose=1", "/livez?verbose", "/readyz?verbose&x"):
                self.assertNotIn("s3cret", self.ask(relay, path).body, path)
            self.assertEqual(self.ask(relay, "/readyz?verbose").body, "details need the token\nnot ready\n")
            self.assertIn("s3cret-name", self.ask(relay, "/readyz?verbose", f"Authorization: Bearer {TOKEN}").body)

    def test_token_may_come_from_the_environment(self):
        with self.serve("--listen-token-env", "SCRAPE", env={"SCRAPE": f"{OTHER} {TOKEN}"}) as relay:
            for token, status in ((TOKEN, 200), (OTHER, 200), (TOKEN + OTHER, 401)):
                self.assertEqual(self.status(relay, "/metrics", f"Authorization: Bearer {token}"), status)
        said = self.outbox("relay", "--listen", "127.0.0.1:0", "--listen-token-env", "SCRAPE", *self.sink(), status=CONFIG).stderr
        self.assertIn("SCRAPE is not set", said)

    def test_token_file_is_reread_at_sighup(self):
        conf = self.path("outbox.conf")
        conf.write_text(f"[outbox]\nstore = {self.store}\nlisten = 127.0.0.1:0\nlisten-token-file = {self.token_file}\n"
                        f"[consumer mail]\nsink = file:{self.path('mail')}\n")
        with self.relay("-c", conf) as relay:
            relay.where = re.search(r"listening on (\S+)", relay.output())[1]
            statuses = lambda: [self.status(relay, "/metrics", f"Authorization: Bearer {token}") for token in (TOKEN, OTHER)]
            self.assertEqual(statuses(), [200, 401])
            for text, want, expect in ((f"{OTHER}\n{TOKEN}\n", [200, 200], "0 failed"), (f"{OTHER}\n", [401, 200], "0 failed"),
                                       ("", [401, 200], "contains no token"), ("short\n", [401, 200], "16 to 256 characters")):
                before = len(relay.output().splitlines())
                self.token_file.write_text(text)
                relay.signal(signal.SIGHUP)
                wait_until(lambda: len(relay.output().splitlines()) > before, what=relay.output)
                self.assertIn(expect, relay.output().splitlines()[-1])
                self.assertEqual(statuses(), want)
            self.assertIn("; keeping the old one", relay.output())

    def test_token_is_never_echoed(self):
        bad = self.path("bad")
        bad.write_text(TOKEN[:12])
        with self.serve("--listen-token-file", self.token_file, "--listen-token-env", "SCRAPE", "--log-level", "debug",
                        env={"SCRAPE": OTHER}) as relay:
            self.ask(relay, "/metrics", f"Authorization: Bearer {TOKEN}")
            self.ask(relay, f"/{TOKEN}", f"Authorization: Bearer {TOKEN}x")
            pages = [self.ask(relay, path, f"Authorization: Bearer {TOKEN}").body for path in ("/", "/metrics", "/readyz?verbose")]
        args = ["--listen-token-file", bad, *self.sink()]
        said = [relay.output(), *pages, self.outbox("config", "show", "--listen-token-file", self.token_file).stdout,
                self.outbox("relay", "--listen", "127.0.0.1:0", *args, status=CONFIG).stderr,
                self.outbox("config", "check", *args, status=CONFIG).stderr,
                self.outbox("relay", "--listen-token-env", TOKEN, *self.sink(), status=USAGE).stderr]
        for text in said:
            for secret in (TOKEN[:12], OTHER): self.assertNotIn(secret, text)
        self.assertIn("openssl rand -hex 32", said[-3])

    def test_config_check_validates_the_token(self):
        check = lambda *args, **kw: self.outbox("config", "check", *args, *self.sink(), **kw).stderr
        self.assertIn("token: could not read", check("--listen-token-file", "no-token", status=CONFIG))
        for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
            make(self.path(name))
            self.assertIn(f"{name}: could not read", check("--listen-token-file", self.path(name), status=CONFIG))
        self.assertIn("only /livez and /readyz are served", check("--listen", "0.0.0.0:1"))
        self.assertEqual(check("--listen", "0.0.0.0:1", "--listen-token-file", self.token_file), "")
        self.token_file.chmod(0o604)
        self.assertIn("any user of this machine can read", check("--listen-token-file", self.token_file))


class Names(AdminCase):
    def test_request_with_a_foreign_host_header_is_refused(self):
        with self.serve("--listen-hosts", "relay.example, 10.9.8.7") as relay:
            for path in ("/metrics", "/livez", "/readyz", "/nothing"):
                for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "0.0.0.0", "127.1"):
                    self.assertEqual(self.status(relay, path, host=host), 403, host)
                for host in ("", "a b", "user@localhost", "localhost/", "[::1"):
                    self.assertEqual(self.status(relay, path, host=host), 400, host)
            for host in ("localhost", "LOCALHOST.:1", "127.0.0.1:8025", "[::1]:1", "Relay.example:99", "10.9.8.7"):
                self.assertEqual(self.status(relay, "/metrics", host=host), 200, host)
            self.assertEqual(self.status(relay, "/metrics", host=None), 400)
            self.assertEqual(self.status(relay, "/livez", host=None, version="1.0"), 200)
            self.assertEqual(self.status(relay, "/metrics", "Host: localhost"), 400)
            self.assertEqual(self.status(relay, "/metrics", "host: evil.example"), 400)
            self.assertIn(self.status(relay, "http://evil.example/metrics", host="localhost"), (400, 404))

    def test_host_header_with_the_listening_address_is_accepted(self):
        with self.serve(listen="0.0.0.0:0") as relay:
            self.assertEqual(self.status(relay, "/livez", host="127.0.0.1"), 200)
            self.assertEqual(self.status(relay, "/livez", host="10.255.255.1"), 403)

    def test_page_of_another_origin_is_refused(self):
        with self.serve() as relay:
            for origin in ("http://evil.example", "null", "http://localhost:1", "", "file://"):
                self.assertEqual(self.status(relay, "/metrics", f"Origin: {origin}", host="localhost:80"), 403, origin)
                self.assertEqual(self.status(relay, "/livez", f"Origin: {origin}", host="localhost:80"), 403, origin)
            for folded in ("Origin: http://evil.example\r\n more", "Origin: http://evil.example\r\n\t-x",
                           "Host: localhost:80\r\n x", "Authorization: Bearer a\r\n b"):
                self.assertEqual(self.status(relay, "/metrics", folded, host="localhost:80"), 400, folded)
            self.assertEqual(self.status(relay, "/metrics", "Origin: http://localhost:80", host="localhost:80"), 200)
            answer = self.ask(relay, "/metrics", "Origin: http://evil.example")
            self.assertFalse([name for name in answer.headers if name.startswith("access-control")])

    def test_invalid_host_names_are_refused(self):
        said = self.outbox("relay", "--listen-hosts", "a.example:80", *self.sink(), status=USAGE).stderr
        self.assertIn("without a port", said)


class Requests(AdminCase):
    def test_every_response_has_browser_security_headers(self):
        with self.serve() as relay:
            for path, kw, status in (("/metrics", {}, 200), ("/livez", {}, 200), ("/nothing", {}, 404), ("/metrics", {"method": "POST"}, 405),
                                     ("/", {"host": "evil.example"}, 403), ("/", {"host": "a b"}, 400), ("/", {"method": "HEAD"}, 200)):
                answer = self.ask(relay, path, **kw)
                self.assertEqual(answer.status, status, (path, kw))
                self.assertLessEqual(HEADERS.items(), answer.headers.items(), (path, kw))
                self.assertTrue(answer.headers["content-type"].startswith("text/plain; "))
            self.assertEqual(self.ask(relay, "/", method="PUT").headers["allow"], "GET, HEAD")

    def test_request_with_a_body_is_refused(self):
        with self.serve() as relay:
            for more in ("Content-Length: 5", "Content-Length: 999999999999", "Transfer-Encoding: chunked"):
                self.assertEqual(self.status(relay, "/metrics", more, body=b"5\r\nhello\r\n0\r\n\r\n"), 413, more)
            self.assertEqual(self.status(relay, "/metrics", "Content-Length: 0"), 200)
            self.assertEqual(self.status(relay, "/metrics", "Content-Length: 5", method="POST", body=b"hello"), 405)

    def test_malformed_or_overlong_requests_are_refused(self):
        with self.serve() as relay:
            self.assertIn(self.status(relay, "/metrics", "X-Long: " + "a" * 9000), (431, 0))
            self.assertIn(self.status(relay, "/" + "a" * 9000), (414, 431, 0))
            self.assertIn(self.status(relay, "/metrics", *(f"X-{n}: {n}" for n in range(2000))), (431, 0))
            for raw in (b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00" * 100 + b"\r\n\r\n",
                        b"GET /metrics HTTP/9.9\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                with contextlib.closing(self.connect(relay)) as connection:
                    connection.sendall(raw)
                    connection.shutdown(socket.SHUT_WR)
                    answer = connection.recv(65536)
                    self.assertNotIn(b" 200 ", answer.split(b"\r\n")[0], raw)
            self.assertEqual(self.status(relay, "/livez"), 200)

    def test_unfinished_requests_do_not_lock_out_other_clients(self):
        with self.serve() as relay:
            slow = [self.connect(relay) for _ in range(100)]
            for connection in slow:
                with contextlib.suppress(ConnectionError): connection.sendall(b"GET /metrics HTTP/1.1\r\nHo")
            # Without waiting for their timeout: the oldest connections must make room.
            answers = [wait_until(lambda: self.status(relay, "/metrics"), timeout=4) for _ in range(10)]
            self.assertEqual(answers, [200] * 10)

    def test_one_address_cannot_exhaust_the_connections(self):
        with self.serve(listen="0.0.0.0:0") as relay:
            held = [self.connect(relay) for _ in range(8)]
            for connection in held: connection.sendall(b"GET /livez HTTP/1.1\r\nHo")
            threads = lambda: len(list(pathlib.Path(f"/proc/{relay.pid}/task").iterdir()))
            wait_until(lambda: threads() >= 8)
            ninth = self.connect(relay)
            self.assertEqual(Answer(self.told(ninth)).status, 0, "the server closes the connection")
            held.pop().close()
            wait_until(lambda: self.status(relay, "/livez") == 200)

    def told(self, connection):
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(65536)
        return b""


class UnixSocket(AdminCase):
    def setUp(self):
        super().setUp()
        self.dir.chmod(0o700)
        self.sock = self.path("admin.sock")
        self.at = f"unix:{self.sock}"

    def refused(self, status, listen=None):
        done = self.outbox("relay", "--listen", listen or self.at, *self.sink(), status=status)
        return done.stderr

    def test_unix_socket_serves_and_is_removed_at_exit(self):
        with self.serve(listen=self.at) as relay:
            self.assertEqual(relay.where, self.at)
            self.assertEqual(stat.S_IMODE(self.sock.stat().st_mode), 0o660)
            self.assertEqual(self.status(relay, "/metrics"), 200)
            self.assertEqual(self.status(relay, "/metrics", host="evil.example"), 403)
            self.assertNotIn("other machines", relay.output())
        self.assertFalse(self.sock.exists())

    def test_socket_mode_ignores_the_umask(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        for mode in ("0660", "0600", "0666"):
            with self.serve("--listen-mode", mode, listen=self.at):
                self.assertEqual(stat.S_IMODE(self.sock.stat().st_mode), int(mode, 8))
        for mode in ("0777", "rw", "8", "-1", "0060", "1660", ""):
            said = self.outbox("relay", "--listen-mode", mode, *self.sink(), status=USAGE).stderr
            self.assertIn("is not a mode for a socket", said)

    def test_stale_socket_is_replaced(self):
        relay = self.serve(listen=self.at)
        relay.kill()
        self.assertTrue(self.sock.exists())
        with self.serve(listen=self.at) as relay: self.assertEqual(self.status(relay, "/livez"), 200)
        self.assertFalse(self.sock.exists())

    def test_socket_in_use_is_left_alone(self):
        with self.serve(listen=self.at) as relay:
            self.assertIn("another process is listening on this socket", self.refused(UNAVAILABLE))
            self.assertEqual(self.status(relay, "/livez"), 200)

    def test_exactly_one_of_many_starting_processes_gets_the_socket(self):
        self.serve(listen=self.at).kill()
        relays = [self.relay("--listen", self.at, *self.sink(), wait=False) for _ in range(4)]
        wait_until(lambda: sum(relay.running() for relay in relays) == 1 and
                   any("started" in relay.output() for relay in relays), what=lambda: [relay.output() for relay in relays])
        winner, = [relay for relay in relays if relay.running()]
        winner.where = self.at
        self.assertEqual(self.status(winner, "/livez"), 200)
        winner.stop()

    def test_only_sockets_are_ever_replaced(self):
        self.path("precious").write_text("data")
        self.sock.symlink_to(self.path("precious"))
        self.assertIn("is not a socket", self.refused(CONFIG))
        self.sock.unlink()
        with socket.socket(socket.AF_UNIX) as stale: stale.bind(str(self.path("elsewhere")))
        self.sock.symlink_to(self.path("elsewhere"))
        self.assertIn("is not a socket", self.refused(CONFIG))
        self.assertTrue(self.path("elsewhere").exists())
        self.sock.unlink()
        self.sock.write_text("data")
        self.assertIn("is not a socket", self.refused(CONFIG))
        self.assertEqual((self.sock.read_text(), self.path("precious").read_text()), ("data", "data"))

    def test_socket_replaced_by_another_process_is_not_removed(self):
        with self.serve(listen=self.at):
            self.sock.unlink()
            other = socket.socket(socket.AF_UNIX)
            self.addCleanup(other.close)
            other.bind(str(self.sock))
        self.assertTrue(self.sock.exists())

    @unittest.skipIf(os.geteuid(), "only root can change the owner of a file")
    def test_folder_of_another_user_is_not_used(self):
        folder, shared = self.path("his"), self.path("shared")
        folder.mkdir()
        os.chown(folder, 65534, 65534)
        self.assertIn("belongs to another user", self.refused(CONFIG, f"unix:{folder}/sock"))
        shared.mkdir()
        shared.chmod(0o1777)
        self.path("ours").mkdir()
        (shared / "link").symlink_to(self.path("ours"))
        os.chown(shared / "link", 65534, 65534, follow_symlinks=False)
        self.refused(UNAVAILABLE, f"unix:{shared}/link/sock")
        self.assertEqual(list(self.path("ours").iterdir()), [])

    def test_world_writable_folder_is_refused(self):
        folder = self.path("open")
        folder.mkdir()
        folder.chmod(0o777)
        self.assertIn("any user of this machine can replace the socket", self.refused(CONFIG, f"unix:{folder}/sock"))
        folder.chmod(0o1777)
        with self.serve(listen=f"unix:{folder}/sock"): pass
        self.assertIn("No such file or directory", self.refused(UNAVAILABLE, f"unix:{self.dir}/nothing/sock"))
        self.assertIn("at most 107 bytes", self.refused(USAGE, f"unix:{'x' * 200}"))
