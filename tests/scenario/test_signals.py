"""Signals the caller had ignored or blocked: for the relay, and for the tests themselves."""
# build: plain
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from support import BIN, ROOT, Case, wait_until

CALLER = """import os, signal, sys
how, numbers, argv = sys.argv[1], [getattr(signal, n) for n in sys.argv[2].split(',')], sys.argv[3:]
if how == 'ignored':
    for n in numbers: signal.signal(n, signal.SIG_IGN)
else:
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.execvp(argv[0], argv)
"""


def caller(how, *names):
    """caller is the prefix of a command whose caller has signals ignored, or blocked."""
    return [sys.executable, "-c", CALLER, how, ",".join(names)]


class Relay(Case):
    def setUp(self):
        super().setUp()
        self.init()

    def start(self, prefix, *args):
        relay = self.spawn(*prefix, BIN, "relay", *args)
        wait_until(lambda: "started" in relay.output(), what=relay.output)
        return relay

    def test_relay_stops_despite_ignored_or_blocked_signals(self):
        for how in "ignored", "blocked":
            for name in "SIGTERM", "SIGINT":
                with self.subTest(how=how, signal=name):
                    relay = self.start(caller(how, "SIGTERM", "SIGINT", "SIGHUP"), "--consumer", "a", "--sink",
                                       f"file:{self.path('a')}")
                    relay.signal(getattr(signal, name))
                    relay.wait()
                    self.assertIn(f"stopped by {name}", relay.output())

    def test_under_nohup_sighup_reloads_a_relay(self):
        conf = self.path("outbox.conf")
        conf.write_text(f"[consumer a]\nsink = file:{self.path('a')}\n")
        with self.start(caller("ignored", "SIGHUP"), "-c", conf) as relay:
            relay.signal(signal.SIGHUP)
            wait_until(lambda: "reloaded the config" in relay.output(), what=relay.output)
        with self.start(caller("ignored", "SIGHUP"), "--consumer", "b", "--sink", f"file:{self.path('b')}") as relay:
            relay.signal(signal.SIGHUP)
            self.emit("t", payload=1)
            wait_until(lambda: self.ndjson(self.path("b")), what=relay.output)


class Tests(unittest.TestCase):
    NAMES = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGTERM", "SIGCHLD"]

    def test_child_processes_start_with_default_signals(self):
        for how in "ignored", "blocked":
            with self.subTest(how=how), tempfile.TemporaryDirectory(prefix="ob") as tmp:
                path = pathlib.Path(tmp, "test_child.py")
                path.write_text("import subprocess, unittest\nclass T(unittest.TestCase):\n    def test_child(self):\n"
                                "        said = subprocess.check_output(['cat', '/proc/self/status'], text=True)\n"
                                "        masks = {l.split()[0]: l.split()[1] for l in said.splitlines() if l.startswith('Sig')}\n"
                                "        self.assertEqual((int(masks['SigBlk:'], 16), int(masks['SigIgn:'], 16)), (0, 0))\n")
                done = subprocess.run([*caller(how, *self.NAMES), sys.executable, ROOT / "tests" / "cases.py", path],
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("ok 1 - T.test_child", done.stdout)

    def test_run_under_nohup_survives_sighup(self):
        script = ("import os, signal, subprocess, signal_defaults; signal_defaults.forget_signals(); os.kill(os.getpid(), signal.SIGHUP);"
                  "print(subprocess.run(['sh', '-c', 'kill -HUP $$']).returncode)")
        done = subprocess.run([*caller("ignored", "SIGHUP"), sys.executable, "-c", script], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "lib")}, timeout=60)
        self.assertEqual(done.stdout, "-1\n", done.stderr)

    def test_run_resets_signals_before_starting_anything(self):
        text = (ROOT / "tests" / "run.py").read_text()
        main = text[text.index("def main():"):]
        self.assertLess(main.index("signal_defaults.forget_signals()"), main.index("servers.Postgres()"))
        self.assertNotIn("SIG_IGN", main)


if __name__ == "__main__":
    unittest.main()
