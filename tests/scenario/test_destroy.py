"""Destructive commands ask on a terminal, require --yes elsewhere, and report the result."""
import os
import pty
import subprocess

from support import BIN, Case

FOUND, USAGE, DATA = 1, 64, 65


class Destroying(Case):
    def setUp(self):
        super().setUp()
        self.init()
        for _ in range(3): self.emit("t")
        for name in "ab":
            self.drain("--consumer", name, "--sink", "exec:exit 65")
        self.drain("--consumer", "good", "--sink", f"file:{self.path('out')}")

    def letters(self):
        return len(self.json("dead", "list"))

    def asked(self, answer, *args):
        """asked runs a command on a terminal, answers, and returns its exit status and output."""
        main, side = pty.openpty()
        child = subprocess.Popen([BIN, *args], stdin=side, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.dir,
                                 env=self.env(), text=True)
        os.close(side)
        os.write(main, answer.encode() + b"\n")
        said, _ = child.communicate(timeout=60)
        os.close(main)
        return child.returncode, said

    def test_destructive_commands_need_a_flag_without_a_terminal(self):
        for args, says in ((["dead", "drop", "--all"], "delete 6 dead letters of several consumers: a 3, b 3"),
                           (["dead", "drop", "--all", "--consumer", "a"], "delete 3 dead letters: a 3"),
                           (["dead", "drop", "1", "--consumer", "b"], "delete 1 dead letter: b 1"),
                           (["consumers", "remove", "good"], 'remove consumer "good" for good'),
                           (["consumers", "remove", "a", "--force"], "3 dead letters"),
                           (["trim", "--older-than", "0s"], "delete 3 events"),
                           (["revoke", "operator", "x"], "operator"), (["adopt", "x", "--undo"], "stop turning rows")):
            with self.subTest(args=args):
                done = self.outbox(*args, status=USAGE, input="y\n")
                self.assertIn(says, done.stderr)
                self.assertIn("--yes", done.stderr)
                self.assertIn("--dry-run", done.stderr)
                self.assertEqual(done.stdout, "")
                self.outbox(*args, "--json", status=USAGE)
        self.assertEqual(self.letters(), 6)
        self.assertEqual(len(self.json("consumers", "list")), 3)

    def test_terminal_prompt_accepts_only_yes(self):
        for answer in ("", "n", "no", "maybe", "yess"):
            status, said = self.asked(answer, "dead", "drop", "--all")
            self.assertEqual((status, self.letters()), (FOUND, 6))
            self.assertIn("a 3, b 3. Continue? [y/N]", said)
            self.assertIn("nothing was done", said)
        status, said = self.asked("y", "dead", "drop", "--all", "--consumer", "a")
        self.assertEqual((status, self.letters()), (0, 3))
        self.assertIn("3 dead letters dropped: a 3", said)
        status, said = self.asked("yes", "consumers", "remove", "b", "--force")
        self.assertEqual((status, self.letters()), (0, 0))
        self.assertIn('consumer "b": removed, with its position (3), 3 dead letters and 0 parked events', said)
        self.assertEqual(self.asked("no", "trim", "--older-than", "0s")[0], FOUND)
        self.assertIn("deleted 3 events", self.asked("y", "trim", "--older-than", "0s")[1])

    def test_dry_run_reports_the_plan_and_changes_nothing(self):
        would = self.json("dead", "drop", "--all", "--dry-run")
        self.assertEqual(would, {"dropped": 6, "dry_run": True, "consumers": {"a": 3, "b": 3}})
        self.assertEqual(self.outbox("dead", "retry", "--all", "--dry-run").stdout,
                         "6 dead letters would be queued for retry: a 3, b 3\n")
        self.assertIn("would be removed, with", self.outbox("consumers", "remove", "good", "--dry-run").stdout)
        self.outbox("consumers", "remove", "a", "--dry-run", status=DATA)
        self.assertEqual(self.json("consumers", "remove", "a", "--dry-run", "--force")["dead"], 3)
        self.assertEqual(self.letters(), 6)
        self.assertEqual([d["retrying"] for d in self.json("dead", "list")], [False] * 6)
        did = self.json("dead", "drop", "--all", "--yes")
        self.assertEqual(did, {**would, "dry_run": False})
        self.assertEqual(self.json("consumers", "remove", "good", "--yes")["now"], "removed")

    def test_confirmation_is_skipped_if_nothing_would_be_lost(self):
        self.outbox("dead", "drop", "--all", "--yes")
        self.assertEqual(self.outbox("dead", "drop", "--all").stdout, "0 dead letters dropped\n")
        self.outbox("trim", "--older-than", "100h")
        self.outbox("trim")
        self.outbox("trim", "--older-than", "200h")
        self.outbox("dead", "drop", "99", status=DATA)
        self.outbox("consumers", "remove", "nobody", status=DATA)
