"""Do the tests detect bugs? Each bug of tests/sim/bugs is applied to a copy of the code, and the program it names must fail.
Prints each detection, its seed and its duration."""
# build: plain
# quick: no
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import bugs
from support import BIN, ROOT

TREE = bugs.Tree(pathlib.Path(BIN).parent)
SEEDS = 1000
# The seed that showed a bug, for bugs that need more than a few. It is tried first; if the history of that seed has changed, the
# search starts from the first seed.
SEEN_AT = {"CHAIN_OVERTAKES": 12, "EPOCHS_BEGIN_AGAIN": 20, "FOLLOWER_AFTER_FAILURE": 12, "HELD_KEYS_STALE": 13, "LOST_EFFECTS_KEPT": 20,
           "NO_EPOCH": 10, "NO_MEMORY_NO_EVENT": 50, "OLD_SETTINGS_GO_ON": 33, "SETTLED_OUT_OF_ORDER": 57, "STALE_PREFETCH": 10,
           "UNSURE_IS_SETTLED": 84}


def run(program, *args):
    env = {**os.environ, "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
    return subprocess.run([program, *args], env=env, capture_output=True, text=True)


def seen(bug):
    """seen returns the error of the program that must detect the bug; "" if it does not detect it."""
    program, *args = bug.seen_by
    tries = [args or ["--seeds", str(SEEDS)]]
    if bug.name in SEEN_AT: tries.insert(0, ["--seed", str(SEEN_AT[bug.name]), "--seeds", "1"])
    start = time.monotonic()
    made = TREE.make(bug.name, program, bugs.mutate(bug))
    ready = time.monotonic()
    why = next(filter(None, (look(made, program, args) for args in tries)), "")
    if why: print(f"{bug.name}: {why} ({ready - start:.1f} s to make, {time.monotonic() - ready:.1f} s to see)", file=sys.stderr)
    return why


def look(made, program, args):
    done = run(made, *args)
    return complaint(program, args, done.stdout + done.stderr)


def complaint(program, args, said):
    """complaint extracts the failure from a program's output: the simulator names the seed, a suite the failed test."""
    if program == "sim":
        replay, why = re.search(r"replay: .*--seed (\d+)", said), re.search(r"# (at step .*)", said)
        return f"seed {replay[1]}, {why[1]}" if replay and why else ""
    return f"{args[0]} failed" if args[0] in re.findall(r"(?m)^\[  FAILED  \] (\w+)$", said) else ""


class Mutations(unittest.TestCase):
    def test_each_bug_is_detected(self):
        known = bugs.all_bugs()
        with concurrent.futures.ThreadPoolExecutor(2) as pool: results = {name: pool.submit(seen, bug) for name, bug in known.items()}
        for name, result in results.items():
            with self.subTest(name): self.assertTrue(result.result(), f"{name} was not detected by {' '.join(known[name].seen_by)}")

    def test_without_a_bug_the_rebuilt_program_finds_nothing(self):
        """The files that bugs change are compiled and linked unchanged."""
        paths = {change.path for bug in bugs.all_bugs().values() for change in bug.changes}
        done = run(TREE.make("none", "sim", {path: (ROOT / path).read_text() for path in paths}), "--seeds", "30")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
