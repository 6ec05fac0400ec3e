"""Would the tests find a bug? Each of tests/sim/bugs is put into a copy of the code, and the program it names must fail. Prints
what was seen, by which seed, and how long that took."""
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
# Where the simulator saw a bug that it sees late. It looks there first, and from the first seed on if the history there is another one
# by now.
SEEN_AT = {"LOST_EFFECTS_KEPT": 20, "NO_MEMORY_NO_EVENT": 40, "OLD_SETTINGS_GO_ON": 208, "SETTLED_OUT_OF_ORDER": 45, "STALE_PREFETCH": 137,
           "UNSURE_IS_SETTLED": 63}


def run(program, *args):
    env = {**os.environ, "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
    return subprocess.run([program, *args], env=env, capture_output=True, text=True)


def seen(bug):
    """seen returns what the program says that must see a bug; "" if it sees nothing."""
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
    """complaint finds what a program has seen: the simulator says so and names the seed, a suite names the test that failed."""
    if program == "sim":
        replay, why = re.search(r"replay: .*--seed (\d+)", said), re.search(r"# (at step .*)", said)
        return f"seed {replay[1]}, {why[1]}" if replay and why else ""
    return f"{args[0]} failed" if args[0] in re.findall(r"(?m)^\[  FAILED  \] (\w+)$", said) else ""


class Mutations(unittest.TestCase):
    def test_each_bug_is_detected(self):
        known = bugs.all_bugs()
        with concurrent.futures.ThreadPoolExecutor(2) as pool: results = {name: pool.submit(seen, bug) for name, bug in known.items()}
        for name, result in results.items():
            with self.subTest(name): self.assertTrue(result.result(), f"{name} was not seen by {' '.join(known[name].seen_by)}")

    def test_without_a_bug_the_rebuilt_program_finds_nothing(self):
        """What a bug changes is compiled and linked as it is."""
        paths = {change.path for bug in bugs.all_bugs().values() for change in bug.changes}
        done = run(TREE.make("none", "sim", {path: (ROOT / path).read_text() for path in paths}), "--seeds", "30")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
