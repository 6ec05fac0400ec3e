"""The protocol, checked exhaustively by spin (tests/model/protocol.pml): as it is, every promise holds in every state that
two relays and three events can get into; with any of the mistakes below, spin shows a way to break one."""
# build: plain
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT, SOAK

MODEL = pathlib.Path(__file__).with_name("protocol.pml")

# mistake: (what may happen besides slowness, what spin must say)
BUGS = {
    "BUG_NO_FENCE": ((0, 0, 0), "assertion violated"),        # an old owner settles what is not its own any more
    "BUG_STEAL": ((0, 0, 0), "assertion violated"),           # a claim is taken over while it lives
    "BUG_LATE_SUBMIT": ((0, 0, 0), "assertion violated"),     # a relay goes on past its deadline
    "BUG_SETTLE_FIRST": ((0, 0, 0), "assertion violated"),    # settled, then delivered
    "BUG_LOST_RETRY": ((0, 0, 0), "assertion violated"),      # a failed event is not parked
    "BUG_NO_BEHIND": ((0, 0, 0), "assertion violated"),       # a fresh event overtakes a parked one of its key
    "BUG_DEAD_FREES": ((0, 0, 0), "assertion violated"),      # the next of a key goes before the burial is settled
    "BUG_NO_PROMOTE": ((0, 0, 0), "invalid end state"),       # what waits behind a parked event waits for ever
    "BUG_RANGE_EDGE": ((0, 0, 0), "assertion violated"),      # taking over leaves out the end of the range
    "BUG_RELEASE_EDGE": ((0, 1, 0), "assertion violated"),    # giving back moves the position one too far
    "BUG_UNKNOWN_CLAIM": ((0, 0, 1), "assertion violated"),   # a claim whose answer was lost does not keep the lane busy
    "BUG_TRIM_PARKED": ((0, 0, 0), "assertion violated"),     # retention forgets parked events
    "BUG_TRIM_CLAIMED": ((0, 0, 0), "assertion violated"),    # retention forgets claims
}
SHALLOW = ("BUG_UNKNOWN_CLAIM",)  # there is a short way to it, which a search for long ones finds late


@unittest.skipUnless(shutil.which("spin"), "spin is not installed (Debian package spin)")
class Model(unittest.TestCase):
    def check(self, may_happen, *flags, liveness=False, depth=20000):
        """check runs spin and gives what the checker it makes said. may_happen: crashes, orderly stops, lost answers."""
        defines = [f"-D{name}={n}" for name, n in zip(("CRASHES", "STOPS", "LOST_REPLIES"), may_happen)]
        defines += [f"-D{flag}" for flag in flags]
        with tempfile.TemporaryDirectory() as folder:
            def run(*argv):
                return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout
            shutil.copy(MODEL, folder)
            run("spin", "-a", *defines, *(["-DLIVENESS"] if liveness else []), MODEL.name)
            # Liveness looks for cycles, which takes whole states; for the rest their hash (64 bits) will do. A mistake is
            # found so soon that compiling takes longer.
            run("gcc", "-O0" if flags else "-O2", "-w", *(["-DCOLLAPSE"] if liveness else ["-DSAFETY", "-DHC4"]), "-o", "pan", "pan.c")
            said = run("./pan", f"-m{depth}", "-w22", *(["-a"] if liveness else []))
            if flags: said += run("spin", "-t", "-p", *defines, MODEL.name)
            return said

    def holds(self, may_happen, liveness=False):
        said = self.check(may_happen, liveness=liveness)
        self.assertIn("errors: 0", said)
        self.assertNotIn("max search depth too small", said)
        states, = re.findall(r"(\d+) states, stored", said)
        print(f"model: {'liveness' if liveness else 'safety'}, crashes, stops and lost answers {may_happen}: {states} states")

    def test_everything_is_delivered_or_dead_in_the_end(self):
        self.holds((0, 0, 0), liveness=True)

    def test_every_promise_holds_with_a_crash_anywhere(self):
        self.holds((1, 0, 0))

    @unittest.skipUnless(SOAK, "takes half a minute: ./test --soak")
    def test_everything_is_delivered_or_dead_in_the_end_after_a_crash(self):
        self.holds((1, 0, 0), liveness=True)

    @unittest.skipUnless(SOAK, "takes half a minute: ./test --soak")
    def test_an_orderly_stop_anywhere(self):
        self.holds((0, 1, 0))

    @unittest.skipUnless(SOAK, "takes half a minute: ./test --soak")
    def test_a_lost_answer_anywhere(self):
        self.holds((0, 0, 1))

    @unittest.skipUnless(SOAK, "takes minutes: ./test --soak")
    def test_a_crash_a_stop_and_a_lost_answer(self):
        self.holds((1, 1, 1))

    def test_each_mistake_is_found(self):
        for flag, (may_happen, verdict) in BUGS.items():
            with self.subTest(flag):
                said = self.check(may_happen, flag, depth=150 if flag in SHALLOW else 20000)
                self.assertIn(verdict, said)
                self.assertRegex(said, r"errors: [1-9]")
                self.assertIn("proc ", said, "no trace")

    def test_the_document_names_code_that_is_there(self):
        named = 0
        for path, functions in re.findall(r"`((?:src|sql)/[\w/.]+): (\w+`(?: `\w+`)*)", (ROOT / "docs" / "testing.md").read_text()):
            text = (ROOT / path).read_text()
            for function in re.findall(r"\w+", functions):
                self.assertRegex(text, rf"\b{function}\(", f"{path}: {function}")
                named += 1
        self.assertGreater(named, 40)

    def test_the_list_is_whole(self):
        self.assertEqual(set(re.findall(r"\bBUG_[A-Z_]+", MODEL.read_text())), set(BUGS))
