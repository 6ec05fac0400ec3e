"""Would the simulator see a bug? Each of these is put into the code on purpose (src/base/bug.h), in a library built for this
alone, and the simulator, or the test named, must fail. Prints by which seed, and what was seen."""
# build: plain
# quick: no
import os
import pathlib
import re
import subprocess
import sys
import unittest

from support import BIN, ROOT

BUILD = pathlib.Path(BIN).parent
SIM = BUILD / "tests" / "sim" / "sim_bugs"
SUITE = BUILD / "tests" / "sim" / "store_sqlite_bugs"
SEEDS = 1000

SIMULATOR = {
    # claims
    "POSITION_WITHOUT_CLAIM": "the position is moved, and no claim says who has the events",
    "WINDOW_EDGE": "the position is moved one event too far",
    "RELEASE_EDGE": "what is given back begins one event too late",
    "STALE_PREFETCH": "what was read ahead is used, though the position has moved meanwhile",
    "LANE_SHARED": "two workers have fresh claims of a lane",
    "LOST_ANSWER_OVERTAKEN": "a claim whose answer got lost is overtaken by the next one",
    "NO_EPOCH": "a settlement is not held against the claim's epoch and owner",
    "EPOCHS_BEGIN_AGAIN": "a consumer made anew begins with epochs that were used",
    "OLD_SETTINGS_GO_ON": "a worker goes on with a filter that was replaced",
    "PAUSE_IGNORED": "a paused consumer is handed events",
    "NO_MEMORY_NO_EVENT": "an event there is no memory for is skipped",
    # taking over
    "TAKE_OVER_FORGETS": "an expired claim is deleted, and its events with it",
    "TAKE_OVER_NOT_CAREFUL": "what was in flight when a worker vanished comes again like anything else",
    "POISON_LIVES": "an event that killed its process too often is tried again",
    "CAREFUL_NOT_ALONE": "others are delivered beside a careful event",
    "CAREFUL_KEPT": "one consumer keeps the process's permission for careful events",
    # parked events
    "PARKED_KEY_FORGOTTEN": "a fresh event does not wait for a parked one of its key",
    "FOLLOWER_NEVER_DUE": "who waits behind a parked event is never called",
    "DEAD_AND_ALIVE": "a dead letter stays parked",
    # retention
    "RETENTION_EDGE": "one event too many is trimmed",
    "RETENTION_FORGETS_PARKED": "parked events do not hold the floor",
    # the engine
    "WALL_CLOCK": "deadlines are made of the wall clock",
    "SUBMITTED_PAST_LEASE": "a worker goes on submitting after its lease",
    "LOST_CLAIM_GOES_ON": "a worker goes on after it was told that its claim is lost",
    "ATTEMPTS_NOT_COUNTED": "a failure is not counted",
    "OUTAGE_COUNTS": "a failure is counted although nothing gets through",
    "FAILURE_NOT_RECORDED": "a failure is settled as a delivery",
    "FOLLOWER_AFTER_FAILURE": "the next of a key goes although the one before failed",
    "SETTLED_OUT_OF_ORDER": "a later batch is settled before an earlier one",
    # effects
    "EFFECT_NOT_RECORDED": "what a handler did is not in the inbox",
    "FAILED_EFFECT_KEPT": "what a handler did before it failed is kept",
    "EFFECTS_WITHOUT_SETTLEMENT": "effects are committed without their settlement",
    "UNSURE_IS_SETTLED": "a batch is settled though its effects may not have been committed",
    "LOST_EFFECTS_KEPT": "effects are committed although the claim was lost",
}
# On PostgreSQL: SQLite has one writer at a time, so nothing commits late there.
POSTGRES = {"NAIVE_CURSOR": "what commits late, below the position, is not looked for"}
# By the contract suite: two claims of a lane must run out in the wrong order, in a window of milliseconds.
NAMED = {"TAKE_OVER_OVERTAKES": ("a later claim is taken over before an earlier one",
                                 "expired_claim_waits_for_the_earlier_ones_of_its_lane")}


def run(program, bug, *args):
    env = {**os.environ, "OUTBOX_BUG": bug, "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
    return subprocess.run([program, *args], env=env, capture_output=True, text=True)


class Mutations(unittest.TestCase):
    def seen_by_simulator(self, bug, *args):
        done = run(SIM, bug, *args)
        replay = re.search(r"replay: .*--seed (\d+)", done.stdout)
        why = re.search(r"# (at step .*)", done.stdout)
        self.assertTrue(replay and why, f"{bug} was not seen: {done.stdout}{done.stderr}")
        print(f"{bug}: seed {replay[1]}, {why[1]}", file=sys.stderr)

    def test_every_bug_in_the_code_is_in_the_list(self):
        there = set()
        for path in ROOT.glob("src/**/*.[ch]"):
            if path.name != "bug.h": there |= set(re.findall(r"\bBUG\((\w+)\)", path.read_text()))
        self.assertEqual(there, {*SIMULATOR, *POSTGRES, *NAMED})

    def test_without_a_bug_the_same_program_finds_nothing(self):
        done = run(SIM, "", "--seeds", "50")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_simulator_sees_each_bug(self):
        for bug in SIMULATOR:
            with self.subTest(bug): self.seen_by_simulator(bug, "--seeds", str(SEEDS))

    def test_the_simulator_on_postgres_sees_a_naive_cursor(self):
        for bug in POSTGRES:
            with self.subTest(bug): self.seen_by_simulator(bug, "--postgres", "--seeds", "40", "--steps", "300")

    def test_the_contract_suite_sees_what_is_left(self):
        for bug, (_, test) in NAMED.items():
            with self.subTest(bug):
                said = run(SUITE, bug)
                failed = re.findall(r"(?m)^\[  FAILED  \] (\w+)$", said.stdout + said.stderr)
                self.assertIn(test, failed)

    def test_what_is_installed_has_no_trace_of_them(self):
        for name in ("src/liboutbox.so", "outbox"):
            said = subprocess.run(["strings", "-a", BUILD / name], check=True, capture_output=True, text=True).stdout
            self.assertIn("outbox_parked", said)
            for bug in (*SIMULATOR, *POSTGRES, *NAMED, "OUTBOX_BUG", "bug_is"):
                self.assertNotIn(f"\n{bug}\n", said)


if __name__ == "__main__":
    unittest.main()
