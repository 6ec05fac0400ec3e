"""docs/security.md: its ten commands have the documented result, and the unit accepts their drop-in."""
# build: plain
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import unittest

import psycopg2
import servers
from http_endpoint import certificates
from pages import items, section
from support import BIN, ROOT, TIMEOUT, Case, clean_env, wait_until

DOCUMENT = ROOT / "docs" / "security.md"
THREATS = ROOT / "tests" / "threats.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

class Encrypted(servers.Postgres):
    """A server that speaks TLS, with a certificate for localhost."""

    def __init__(self, folder):
        super().__init__(password="of-the-superuser")
        self.authority, self.certificate, self.key = certificates(folder)

    def prepare(self):
        super().prepare()
        for name, path in (("server.crt", self.certificate), ("server.key", self.key)):
            self.write(name, path.read_text()).chmod(0o600)
        self.settings |= {"ssl": "on", "ssl_cert_file": self.dir / "server.crt", "ssl_key_file": self.dir / "server.key"}

class TenCommands(Case):
    """The commands run once; each test checks part of the result."""

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="ob"))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        cls.etc, cls.run_dir, cls.state, cls.drop_in, cls.bin = (cls.root / name for name in ("etc", "run", "state", "unit.d", "bin"))
        for folder in (cls.etc, cls.run_dir, cls.state, cls.bin): folder.mkdir(mode=0o755)  # no folder of drop-ins: none exists yet
        cls.server = Encrypted(cls.root)
        cls.addClassCleanup(cls.server.close)
        cls.server.start()
        cls.url = cls.server.create_database("shop")
        shutil.copy(cls.server.authority, cls.etc / "ca.pem")
        (cls.bin / "outbox").symlink_to(BIN)
        (cls.bin / "systemctl").write_text(f"#!/bin/sh\necho \"$*\" >>{cls.root}/systemctl\n")
        (cls.bin / "systemctl").chmod(0o755)
        cls.run_commands()

    @classmethod
    def local(cls, text):
        """local replaces paths and names in a text by this test's."""
        for place, folder in (("/etc/systemd/system/outbox.service.d", cls.drop_in), ("/etc/outbox", cls.etc),
                              ("/run/outbox", cls.run_dir), ("/var/lib/outbox", cls.state)):
            text = text.replace(place, str(folder))
        return text.replace("db.example", "localhost").replace("5432", str(cls.server.tcp_port))

    @classmethod
    def run_commands(cls):
        commands, = BLOCK.findall(DOCUMENT.read_text())
        assert re.findall(r"(?m)^# (\d+)\.", commands) == [str(n) for n in range(1, 11)], commands
        env = clean_env({"PGHOST": str(cls.server.dir), "PGPORT": str(cls.server.port), "PGUSER": servers.USER,
                         "PATH": f"{cls.bin}:{os.environ['PATH']}"})
        done = subprocess.run(["bash", "-c", "set -euo pipefail\n" + cls.local(commands)], cwd=cls.root, env=env,
                              capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        if done.returncode or done.stderr: raise AssertionError(f"{done.returncode}\n{done.stdout}{done.stderr}")

    def service_env(self):
        """service_env returns the relay's environment from the drop-in: %d is the credentials folder, %t is /run."""
        values = re.search(r"(?m)^Environment=(.*)$", (self.drop_in / "local.conf").read_text())[1]
        values = values.replace("%t/outbox/pgpass", str(self.etc / "pgpass")).replace("%d", str(self.etc))
        return {**dict(pair.split("=", 1) for pair in values.split()), "OUTBOX_STORE": ""}

    def as_role(self, role, statement):
        with psycopg2.connect(host=str(self.server.dir), port=self.server.port, user=role, dbname="shop") as db:
            with db.cursor() as cursor: cursor.execute(statement)

    def test_ten_commands_set_up_a_least_privilege_relay(self):
        etc = self.etc
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in etc.iterdir()}
        self.assertEqual({name: modes[name] for name in ("pgpass", "listen.token", "outbox.conf", "pg_service.conf")},
                         {"pgpass": 0o600, "listen.token": 0o600, "outbox.conf": 0o644, "pg_service.conf": 0o644})
        self.assertEqual((self.root / "systemctl").read_text().splitlines(), ["daemon-reload", "enable --now outbox"])
        password, token = (etc / "pgpass").read_text().strip().split(":")[4], (etc / "listen.token").read_text().strip()

        # The relay works over TLS with its own role, and other users can see no secret.
        self.as_role("app", "SELECT outbox.emit('order.paid', 'order', '42', '{\"total\": 99}')")
        relay = self.spawn(BIN, "relay", "-c", etc / "outbox.conf", env=self.service_env())
        mail = self.state / "mail.ndjson"
        wait_until(lambda: self.ndjson(mail) or not relay.running(), what=relay.output)
        self.assertEqual([event["type"] for event in self.ndjson(mail)], ["order.paid"], relay.output())
        sessions = servers.execute(self.url, "SELECT DISTINCT usename::text, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) "
                                               "WHERE client_addr IS NOT NULL")
        self.assertEqual(sessions, [("relay", True)])
        seen = pathlib.Path(f"/proc/{relay.pid}/cmdline").read_text() + pathlib.Path(f"/proc/{relay.pid}/environ").read_text() + relay.output()
        for secret in (password, token): self.assertNotIn(secret, seen)
        self.assertEqual(self.scrape(None), 401)
        self.assertEqual(self.scrape(token), 200)
        relay.stop()

        # No role can use the rights of another part.
        for role, statement in (("app", "SELECT * FROM outbox.event"), ("app", "SELECT * FROM outbox.claim('mail', 'me')"),
                                ("relay", "SELECT outbox.emit('a', 'k', '1', '1')"), ("relay", "SELECT outbox.trim('0s')"),
                                ("relay", "SELECT outbox.pause('mail')"), ("relay", "SELECT outbox.register('audit')"),
                                ("relay", "INSERT INTO outbox.dead (consumer) VALUES ('mail')"), ("app", "SELECT outbox.allow('operator', 'app')")):
            with self.subTest(role=role, statement=statement), self.assertRaises(psycopg2.errors.InsufficientPrivilege):
                self.as_role(role, statement)
        with self.assertRaisesRegex(psycopg2.OperationalError, "not permitted to log in"): self.as_role("outbox_owner", "SELECT 1")

    def test_server_with_another_certificate_gets_nothing(self):
        authority, _, _ = certificates(self.dir)
        service = self.path("pg_service.conf")
        service.write_text((self.etc / "pg_service.conf").read_text().replace(str(self.etc / "ca.pem"), str(authority)))
        done = self.outbox("relay", "--drain", "-c", self.etc / "outbox.conf", status=None,
                           env={**self.service_env(), "PGSERVICEFILE": str(service)})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("certificate verify failed", done.stderr)

    def scrape(self, token):
        """scrape returns the status of /metrics at the relay's socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.run_dir / "admin.sock"))
            more = f"Authorization: Bearer {token}\r\n" if token else ""
            connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
            return int(connection.recv(65536).split()[1])

    def test_systemd_accepts_the_drop_in(self):
        if not shutil.which("systemd-analyze"): self.skipTest("systemd-analyze is not installed (Debian package systemd)")
        unit = self.path("outbox.service")
        text = (ROOT / "packaging" / "outbox.service.in").read_text().replace("@bindir@", str(pathlib.Path(BIN).parent))
        unit.write_text(text)
        folder = self.path("outbox.service.d")
        folder.mkdir()
        shutil.copy(self.drop_in / "local.conf", folder)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

class Document(unittest.TestCase):
    WHO = ["an end user", "a database role without a part", "a role with one part", "a role that reads everything", "a worker of one consumer", "a tenant", "the owner of an adopted table", "an endpoint",
           "an observer of a webhook", "a writer of the Redis stream we read", "a Redis server", "a RabbitMQ broker", "a command of `exec:`", "a local user",
           "a client of the admin port", "a web page", "an attacker with an overflow", "an attacker on the network path"]

    def stated(self):
        """stated returns {who: {attack: defence}} from docs/security.md."""
        parts = re.split(r"^\*\*(.*?)\*\*.*:$", section(DOCUMENT, "## Who may be hostile"), flags=re.MULTILINE)
        return {who: dict(re.match(r"(.*): \*(.*)\*$", item).groups() for item in items(text)) for who, text in zip(parts[1::2], parts[2::2])}

    def test_every_hostile_party_is_documented(self):
        self.assertEqual(list(self.stated()), self.WHO)

    def test_every_threat_has_a_countermeasure_and_a_test(self):
        line = re.compile(r"(.*?): (`\w+/\w+\.(?:c|py):\w+`(?: `\w+/\w+\.(?:c|py):\w+`)*)$")
        listed = {who: dict(line.match(item).groups() for item in items(section(THREATS, f"## {who}"))) for who in self.WHO}
        self.assertEqual({who: list(threats) for who, threats in listed.items()}, {who: list(threats) for who, threats in self.stated().items()})
        self.assertGreater(sum(map(len, listed.values())), 2 * len(self.WHO))
        self.assertEqual(re.findall(r"^## (.*)$", THREATS.read_text(), re.MULTILINE), self.WHO)

    def test_reporting_instructions_are_where_expected(self):
        text = (ROOT / "SECURITY.md").read_text()
        for head in ("Reporting", "Supported versions", "What is promised"): self.assertIn(f"\n## {head}\n", text)
        self.assertIn("Report a vulnerability", text)
        self.assertIn("(docs/security.md)", text)
        version = re.search(r"version: '(\d+\.\d+)\.", (ROOT / "meson.build").read_text())[1]
        self.assertIn(f"({version})", text)

if __name__ == "__main__":
    unittest.main()
