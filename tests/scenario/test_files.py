"""Files: permissions of those we create, links planted by other users, and secrets visible to others."""
import os
import pathlib
import stat
import subprocess
import unittest

from support import BIN, Case, wait_until

STRANGER = 54321
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"
as_root = unittest.skipUnless(os.geteuid() == 0, "only root can create other users' files")


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


class Made(Case):
    def setUp(self):
        super().setUp()
        before = os.umask(0o022)
        self.addCleanup(os.umask, before)

    def deliver(self, path, *more, **kw):
        return self.drain("--consumer", path.name.replace("~", ""), "--sink", f"file:{path}", *more, **kw)

    def test_files_are_readable_only_by_their_owner(self):
        self.outbox("init")
        self.emit("t")
        self.deliver(self.path("out"))
        with self.relay("--consumer", "held", "--sink", f"file:{self.path('held')}"):
            wait_until(lambda: self.path("held").exists())
            made = {path.name: mode(path) for path in self.dir.iterdir() if not path.name.endswith(".log")}
        self.assertEqual(made, {name: 0o640 for name in ("shop.db", "shop.db-wal", "shop.db-shm", "out", "held")})

    def test_umask_is_honoured(self):
        os.umask(0o077)
        self.outbox("init")
        self.emit("t")
        self.deliver(self.path("out"))
        self.assertEqual((mode(self.db), mode(self.path("out"))), (0o600, 0o600))

    def test_file_mode_sets_permissions_of_new_files(self):
        self.outbox("init")
        self.emit("t")
        for said, want in (("0644", 0o644), ("660", 0o660), ("0600", 0o600)):
            path = self.path(f"out{said}")
            self.deliver(path, "--file-mode", said)
            self.assertEqual(mode(path), want)
        old = self.path("old")
        old.touch(0o644)
        self.deliver(old, "--file-mode", "0600")
        self.assertEqual(mode(old), 0o644)  # not made by us
        for bad in ("rw", "0666", "0440", "7", "1777", "-640"):
            self.outbox("relay", "--consumer", "a", "--sink", "file:x", f"--file-mode={bad}", status=64)

    def test_symbolic_link_is_not_followed(self):
        self.outbox("init")
        self.emit("t")
        victim = self.path("victim")
        victim.write_text("mine\n")
        self.path("out").symlink_to(victim)
        said = self.outbox("relay", "--drain", "--consumer", "a", "--sink", f"file:{self.path('out')}", status=78).stderr
        self.assertIn("is a symbolic link", said)
        # Another file at that path later makes the sink down.
        with self.relay("--consumer", "b", "--sink", f"file:{self.path('b')}") as relay:
            wait_until(lambda: self.path("b").exists())
            self.path("link").symlink_to(victim)
            self.path("link").replace(self.path("b"))  # at once: it would otherwise recreate the file in between
            self.emit("t")
            wait_until(lambda: "is a symbolic link" in relay.output(), what=relay.output)
            self.path("b").unlink()
            wait_until(lambda: self.ndjson(self.path("b")), what=relay.output)
        self.assertEqual(victim.read_text(), "mine\n")

    def test_sqlite_url_refuses_tenant_and_schema(self):
        for more in "?tenant=acme", "?schema=shop":
            said = self.outbox("init", "--store", f"sqlite:{self.path('new.db')}{more}", status=78).stderr
            self.assertIn(f"{more[1:8]} is for PostgreSQL", said)
        self.assertEqual(list(self.path("new.db").parent.glob("new.db*")), [])

    def test_init_does_not_create_a_database_through_a_link(self):
        self.db.symlink_to(self.path("elsewhere"))
        self.assertIn("is a symbolic link", self.outbox("init", status=69).stderr)
        self.assertFalse(self.path("elsewhere").exists())


@as_root
class Shared(Case):
    """A world-writable folder in which another user has created files first."""

    def setUp(self):
        super().setUp()
        self.outbox("init")
        self.emit("t")
        self.tmp = self.path("tmp")
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        self.tmp.parent.chmod(0o755)

    def refused(self, path, *words):
        with self.relay("--consumer", "a", "--sink", f"file:{path}") as relay:
            wait_until(lambda: "sink is down" in relay.output(), what=relay.output)
            for word in words: self.assertIn(word, relay.output())

    def plant(self, name, text=""):
        path = self.tmp / name
        path.write_text(text)
        os.chown(path, STRANGER, STRANGER)
        return path

    def test_events_are_not_written_to_another_users_file(self):
        path = self.plant("out")
        self.refused(path, f"belongs to uid {STRANGER}")
        self.assertEqual(path.read_text(), "")

    def test_hard_link_to_our_own_file_is_not_written_to(self):
        ours = self.path("ours")
        ours.write_text("mine\n")
        os.link(ours, self.tmp / "out")
        self.refused(self.tmp / "out", "other names")
        self.assertEqual(ours.read_text(), "mine\n")

    def test_folder_linked_by_another_user_is_not_entered(self):
        inside = self.path("inside")
        inside.mkdir()
        for target in (str(inside), "../inside"):
            link = self.tmp / "sub"
            link.symlink_to(target)
            os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
            self.refused(link / "out", "contains a symbolic link of uid")
            self.outbox("init", "--store", f"sqlite:{link}/new.db", status=69)
            link.unlink()
        self.assertEqual(list(inside.iterdir()), [])
        self.tmp.joinpath("mine").symlink_to("../inside")  # ours: followed
        self.drain("--consumer", "b", "--sink", f"file:{self.tmp}/mine/out")
        self.assertEqual(len(self.ndjson(inside / "out")), 1)

    def test_database_or_log_of_another_user_is_not_opened(self):
        new = self.tmp / "new.db"
        for name in ("new.db", "new.db-wal", "new.db-journal", "new.db-shm"):
            planted = self.plant(name)
            said = self.outbox("init", "--store", f"sqlite:{new}", status=69).stderr
            self.assertIn(f"{name} belongs to uid {STRANGER}", said)
            planted.unlink()
        self.outbox("init", "--store", f"sqlite:{new}")
        link = self.tmp / "link.db"
        link.symlink_to(self.db)
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        self.assertIn(f"belongs to uid {STRANGER}", self.outbox("status", "--store", f"sqlite:{link}", status=69).stderr)

    def test_folder_writable_by_others_causes_a_warning(self):
        for prepare, says in ((lambda: self.tmp.chmod(0o777), "any user of this machine can delete files"),
                              (lambda: (self.tmp.chmod(0o755), os.chown(self.tmp, STRANGER, -1)), f"belongs to uid {STRANGER}")):
            prepare()
            with self.relay("--consumer", "a", "--sink", f"file:{self.tmp / 'out'}") as relay:
                wait_until(lambda: (self.tmp / "out").exists(), what=relay.output)
                self.assertIn(says, relay.output())


class Seen(Case):
    """Secrets that other users of the machine can see."""

    def setUp(self):
        super().setUp()
        self.outbox("init")

    def test_world_readable_files_cause_a_warning(self):
        secret = self.path("secrets")
        secret.write_text(SECRET)
        conf = self.path("a.conf")
        conf.write_text(f"[consumer a]\nsink = https://joe:geheim@example.com/\nwebhook-secret-file = {secret}\n"
                        f"[consumer b]\nsink = redis://cache/0?stream=s&password-file={secret}\n")
        for bits, words in ((0o644, "can read it"), (0o622, "can write it"), (0o640, None)):
            secret.chmod(bits)
            conf.chmod(bits)
            got = self.json("config", "check", "-c", conf, status=78)
            texts = [f"{w['where']}: {w['text']}" for w in got["warnings"]]
            self.assertEqual(len(texts), 3 if words else 0, texts)
            for text in texts: self.assertIn(words, text)
            said = self.outbox("status", "-c", conf).stderr
            self.assertEqual(said.count(words or "everybody"), 3 if words else 0, said)
            self.assertNotIn("geheim", said)

    def test_relay_logs_the_warning_about_a_readable_secret(self):
        secret = self.path("secrets")
        secret.write_text(SECRET)
        secret.chmod(0o644)
        with self.relay("--consumer", "a", "--sink", "http://127.0.0.1:9/", "--webhook-secret-file", secret) as relay:
            self.assertIn(f'warning --webhook-secret-file: consumer "a": {secret}: any user', relay.output())
            self.assertEqual("running as root" in relay.output(), os.geteuid() == 0)
            self.assertLessEqual(relay.output().count("running as root"), 1)

    @as_root
    def test_config_file_of_another_user_causes_a_warning(self):
        conf = self.path("a.conf")
        conf.write_text("")
        os.chown(conf, STRANGER, -1)
        self.assertIn("belongs to another user", self.outbox("status", "-c", conf).stderr)

    def test_password_in_arguments_is_overwritten_with_a_warning(self):
        hook = "http://127.0.0.1:9/x?token=geheim"
        relay = self.relay("--consumer", "a", "--sink", hook, "--retry=patient", "--store", f"sqlite:{self.db}")
        self.assertIn("warning --sink: it contains a secret", relay.output())
        arguments = pathlib.Path(f"/proc/{relay.pid}/cmdline").read_bytes()
        self.assertNotIn(b"geheim", arguments)
        self.assertIn(b"http://127.0.0.1:9/", arguments)
        self.assertNotIn("geheim", relay.output())
        relay.stop()
        for args in (["--store", "postgres://joe:geheim@127.0.0.1:9/x"], ["--store=postgres://joe:g@127.0.0.1:9/x?connect_timeout=1"]):
            said = self.outbox("status", *args, status=None).stderr
            self.assertIn("warning: --store: it contains a password", said)
            self.assertIn(".pgpass", said)
            self.assertNotIn("geheim", said)
        said = self.outbox("status", "--store", "mariadb://joe:geheim@127.0.0.1:9/x", status=None).stderr
        self.assertRegex(said, "warning: --store: it contains a password.*\\.my\\.cnf")
        self.assertNotRegex(said, "pgpass|geheim")
        self.assertNotIn("warning", self.outbox("status", env={"OUTBOX_STORE": "postgres://joe:geheim@127.0.0.1:9/x"}, status=None).stderr)

    @as_root
    def test_memory_that_holds_secrets_is_not_dumped(self):
        for path in (self.dir, *self.dir.iterdir()): os.chown(path, STRANGER, STRANGER)
        secret = ["--sink", "http://127.0.0.1:9/", "--webhook-secret-env", "HOOK"]
        for args, hidden in ((["--sink", f"file:{self.path('out')}"], False), (secret, True), ([*secret, "--core-dumps"], False)):
            child = self.spawn("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", BIN, "relay",
                               "--consumer", "a", *args, env={"HOOK": SECRET.strip()})
            wait_until(lambda: "starting" in child.output() or not child.running(), what=child.output)
            # The kernel gives root ownership of the /proc files of a process that must not be dumped.
            self.assertEqual(os.stat(f"/proc/{child.pid}/environ").st_uid, 0 if hidden else STRANGER, child.output())
            self.assertNotIn("running as root", child.output())
            child.stop()

    def test_config_show_hides_tokens_of_webhooks(self):
        for url, shown in (("https://hooks.example/services/T0/B0/geheim", "https://hooks.example/***"),
                           ("https://hooks.example/?t=geheim", "https://hooks.example/?***"),
                           ("https://hooks.example?t=geheim", "https://hooks.example?***"),
                           ("https://hooks.example/#geheim", "https://hooks.example/#***"),
                           ("http://h:8080/geheim?a#b", "http://h:8080/***"), ("https://hooks.example/", "https://hooks.example/"),
                           ("https://joe:geheim@hooks.example/x", "https://joe:***@hooks.example/***")):
            rows = self.json("config", "show", env={"OUTBOX_CONSUMERS": "a", "OUTBOX_CONSUMER_A_SINK": url})
            self.assertEqual([r["value"] for r in rows if r["name"] == "sink" and r["origin"] == "environment"], [shown], url)

    def test_world_readable_webhook_secret_is_reported(self):
        before = os.umask(0o022)
        self.addCleanup(os.umask, before)
        for bits, warned in ((0o644, True), (0o640, False), (0o600, False)):
            path = self.path(f"secret{bits:o}")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, bits), "wb") as out:
                done = subprocess.run([BIN, "webhook", "secret"], stdout=out, stderr=subprocess.PIPE, text=True, env=self.env())
            self.assertEqual("any user of this machine can read" in done.stderr, warned, done.stderr)
            self.assertRegex(path.read_text(), r"\Awhsec_\S+\n\Z")
            self.assertNotIn("whsec_", done.stderr)
