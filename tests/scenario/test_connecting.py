"""Connecting to PostgreSQL as docs/stores.md says, and a server that is too old is refused."""
# build: plain
import contextlib
import re
import socket
import struct
import subprocess
import threading
import unittest

import servers
from support import ROOT, TIMEOUT, Case, clean_env
from test_docs import BUILD, plain, shell_blocks

PAGE = ROOT / "docs" / "stores.md"
CONFIG = 78


class Page(Case):
    """The page's examples, on a server that requires a password."""

    def setUp(self):
        super().setUp()
        self.server = servers.Postgres(password="correct horse").start()
        self.addCleanup(self.server.close)
        store = self.server.create_database("shop")
        self.outbox("init", "--store", store)
        servers.execute(store, "CREATE ROLE relay LOGIN PASSWORD 'correct horse'")
        self.outbox("grant", "consumer", "relay", "--store", store)
        servers.execute(store, "SELECT outbox.register('mail')")

    def local(self, text):
        """local replaces the page's addresses by the server's; db1 is a host that does not answer."""
        port = str(self.server.tcp_port)
        text = re.sub(r"db1\.example:5432", "127.0.0.1:1", text)
        return re.sub(r"db2?\.example", "127.0.0.1", text).replace("5432", port)

    def test_examples_print_the_documented_output(self):
        found, mark = shell_blocks(PAGE), "-- end of block --"
        self.assertGreater(len(found), 3)
        script = "set -euo pipefail\n" + "".join(f"{self.local(text)}\necho '{mark}'\n" for text, _ in found)
        env = clean_env({"PGHOST": str(self.server.dir), "PGPORT": str(self.server.port), "PGUSER": servers.USER,
                         "PATH": f"{BUILD}:{clean_env()['PATH']}"})
        done = subprocess.run(["bash", "-c", script], cwd=self.dir, env=env, capture_output=True, text=True, timeout=2 * TIMEOUT,
                              stdin=subprocess.DEVNULL)
        printed = done.stdout.split(mark + "\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"block {len(printed)} failed\n{done.stdout}")
        for (text, shown), got in zip(found, printed): self.assertEqual(plain(got), plain(shown), text)


class Old(Case):
    """A server that reports version 14 of PostgreSQL, and does nothing else."""

    def setUp(self):
        super().setUp()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.door.close)
        self.store = f"postgres://me@127.0.0.1:{self.door.getsockname()[1]}/shop?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self):
        def message(kind, body): return kind + struct.pack("!i", len(body) + 4) + body
        hello = (message(b"R", struct.pack("!i", 0)) + message(b"S", b"server_version\0" b"14.9\0") +
                 message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I"))
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self.door.accept()
                with guest:
                    guest.recv(4096)
                    guest.sendall(hello)
                    while guest.recv(4096): pass  # it receives no query until the end

    def test_server_that_is_too_old_is_refused_before_any_query(self):
        for args in (["init"], ["status"], ["doctor"], ["relay", "--consumer", "mail", "--sink", "stdout:"]):
            with self.subTest(command=args[0]):
                said = self.outbox(*args, status=CONFIG).stderr
                self.assertIn("this server is PostgreSQL 14; an outbox needs 15 or later", said)


if __name__ == "__main__":
    unittest.main()
