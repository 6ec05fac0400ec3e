"""The protocol, checked exhaustively by spin (tests/model/protocol.pml): unchanged, every promise holds in every state that two
relays and three events can reach; with any of the mistakes below, spin shows a way to break one."""
# build: plain
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import QUICK, ROOT, SOAK, changed_of_late, thorough

sys.path.insert(0, str(ROOT / "tests" / "sim"))
import bugs

MODEL = pathlib.Path(__file__).with_name("protocol.pml")
DOCUMENT = ROOT / "tests" / "model" / "README.md"
ASSERTION, END, CYCLE = "assertion violated", "invalid end state", "acceptance cycle"

# Mistake: its counterpart among the bugs of the code (tests/sim/bugs), "" if there is none; and the kind of violation that spin
# must report. Below: the faults of a relay that it needs beside slowness.
BUGS = {
    "BUG_NO_FENCE": ("NO_EPOCH", ASSERTION),
    "BUG_STEAL": ("", ASSERTION),
    "BUG_LATE_SUBMIT": ("SUBMITTED_PAST_LEASE", ASSERTION),
    "BUG_SETTLE_FIRST": ("", ASSERTION),
    "BUG_LOST_RETRY": ("", ASSERTION),
    "BUG_NO_BEHIND": ("PARKED_KEY_FORGOTTEN", ASSERTION),
    "BUG_DEAD_FREES": ("", ASSERTION),
    "BUG_NO_PROMOTE": ("FOLLOWER_NEVER_DUE", END),
    "BUG_RANGE_EDGE": ("", ASSERTION),
    "BUG_RELEASE_EDGE": ("RELEASE_EDGE", ASSERTION),
    "BUG_UNKNOWN_CLAIM": ("LOST_ANSWER_OVERTAKEN", ASSERTION),
    "BUG_TRIM_PARKED": ("RETENTION_FORGETS_PARKED", ASSERTION),
    "BUG_TRIM_CLAIMED": ("", ASSERTION),
    "BUG_NO_CLAIM": ("POSITION_WITHOUT_CLAIM", ASSERTION),
    "BUG_WINDOW_EDGE": ("WINDOW_EDGE", ASSERTION),
    "BUG_STALE_READ": ("STALE_PREFETCH", ASSERTION),
    "BUG_LANE_SHARED": ("LANE_SHARED", ASSERTION),
    "BUG_EPOCH_AGAIN": ("EPOCHS_BEGIN_AGAIN", ASSERTION),
    "BUG_SKIPS": ("NO_MEMORY_NO_EVENT", ASSERTION),
    "BUG_FORGETS_CLAIM": ("TAKE_OVER_FORGETS", ASSERTION),
    "BUG_NOT_CAREFUL": ("TAKE_OVER_NOT_CAREFUL", ASSERTION),
    "BUG_POISON_LIVES": ("POISON_LIVES", ASSERTION),
    "BUG_DEAD_STAYS": ("DEAD_AND_ALIVE", ASSERTION),
    "BUG_TRIM_EDGE": ("RETENTION_EDGE", ASSERTION),
    "BUG_LOST_GOES_ON": ("LOST_CLAIM_GOES_ON", ASSERTION),
    "BUG_NOT_COUNTED": ("ATTEMPTS_NOT_COUNTED", CYCLE),
    "BUG_FAILURE_DELIVERED": ("FAILURE_NOT_RECORDED", ASSERTION),
    "BUG_FOLLOWER_GOES": ("FOLLOWER_AFTER_FAILURE", ASSERTION),
    "BUG_SETTLES_LATER_FIRST": ("SETTLED_OUT_OF_ORDER", ASSERTION),
    "BUG_OVERTAKES": ("TAKE_OVER_OVERTAKES", ASSERTION),
    "BUG_CAREFUL_BESIDE": ("CAREFUL_NOT_ALONE", ASSERTION),
}
NEEDS = {
    "BUG_RELEASE_EDGE": {"STOPS": "1"},
    "BUG_UNKNOWN_CLAIM": {"LOST_REPLIES": "1"},
    "BUG_EPOCH_AGAIN": {"LOST_REPLIES": "1"},
}
TWO_CLAIMS = ("BUG_SETTLES_LATER_FIRST", "BUG_OVERTAKES", "BUG_CAREFUL_BESIDE")
# Bugs of the code that the model cannot express: why.
NOT_IN_THE_MODEL = {
    "OLD_SETTINGS_GO_ON": "filters", "PAUSE_IGNORED": "pausing", "BLAMED_BESIDE_OTHERS": "several consumers in a process",
    "WALL_CLOCK": "clocks that differ", "NAIVE_CURSOR": "late commits", "EFFECT_NOT_RECORDED": "effects",
    "FAILED_EFFECT_KEPT": "effects", "EFFECTS_WITHOUT_SETTLEMENT": "effects", "UNSURE_IS_SETTLED": "effects",
    "LOST_EFFECTS_KEPT": "effects", "OUTAGE_COUNTS": "outages",
    "CHAIN_OVERTAKES": "chains, which a sink takes whole",
    "HELD_KEY_MISSED": "how a held key is found; BUG_NO_BEHIND is the same mistake",
    "HELD_KEYS_STALE": "what a worker remembers; BUG_NO_BEHIND is the same mistake",
}
NUMBERS = dict(re.findall(r"^#define (BUG_\w+) (\d+)$", MODEL.read_text(), re.M))
SHORT_WAYS = 300  # steps; each mistake can be reached quickly, while a search of long paths finds it late


def checker(folder, *defines, liveness=False, fast=True):
    """checker builds the program that visits and stores all states. Compiling it optimised takes longer than a short search."""
    def run(*argv):
        subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    shutil.copy(MODEL, folder)
    run("spin", "-a", *defines, *(["-DLIVENESS"] if liveness else []), MODEL.name)
    run("gcc", *(["-O2", "-DCOLLAPSE"] if fast else ["-O0"]), "-w", *([] if liveness else ["-DSAFETY"]), "-o", "pan", "pan.c")


def check(folder, *args, **env):
    return subprocess.run(["./pan", *args], cwd=folder, capture_output=True, text=True, env={**os.environ, **env}).stdout


def found(name, places):
    """found returns the checker's verdict, and the path it found."""
    verdict = BUGS[name][1]
    where = places["live" if verdict == CYCLE else "two" if name in TWO_CLAIMS else "one"]
    env = {"STOPS": "0", "LOST_REPLIES": "0", **NEEDS.get(name, {}), "BUG": NUMBERS[name]}
    with tempfile.TemporaryDirectory(dir=where) as folder:
        for file in ("pan", MODEL.name): (pathlib.Path(folder) / file).symlink_to(where / file)
        said = check(folder, f"-m{SHORT_WAYS}", "-w18", *(["-a"] if verdict == CYCLE else []), **env)
        return said, check(folder, "-r", **env)


class Checked(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def holds(self, may_happen, *defines, liveness=False, fast=True):
        """may_happen: crashes, orderly stops, lost answers; slowness always may."""
        faults = [f"-D{name}={n}" for name, n in zip(("CRASHES", "STOPS", "LOST_REPLIES"), may_happen)]
        checker(self.folder, *faults, *defines, liveness=liveness, fast=fast)
        said = check(self.folder, "-m100000", "-w24", *(["-a"] if liveness else []))
        self.assertIn("errors: 0", said)
        self.assertNotIn("max search depth too small", said)
        states, = re.findall(r"(\d+) states, stored", said)
        depth, = re.findall(r"depth reached (\d+)", said)
        memory, = re.findall(r"([\d.]+)\s+total actual memory", said)
        seconds, = re.findall(r"elapsed time ([\d.]+)", said)
        print(f"model: {'liveness' if liveness else 'safety'} {' '.join(defines) or '-DORDER=BY_KEY'}, crashes, stops and lost "
              f"answers {may_happen}: {states} states, depth {depth}, {seconds} s, {memory} MB")


@unittest.skipUnless(shutil.which("spin"), "spin is not installed (Debian package spin)")
class Model(Checked):
    @thorough("spin takes half a minute")
    def test_every_guarantee_holds_in_every_state(self):
        self.holds((0, 0, 0), fast=False)

    @thorough("spin takes half a minute")
    def test_every_event_ends_up_delivered_or_a_dead_letter(self):
        self.holds((0, 0, 0), "-DORDER=IN_ALL", liveness=True, fast=False)

    @unittest.skipUnless(SOAK or not QUICK and changed_of_late(MODEL), "the model has not changed recently: ./test --soak")
    def test_each_planted_mistake_is_found(self):
        self.assertEqual(set(NUMBERS), set(BUGS), "the list is incomplete")
        places = {}
        for kind, flags in {"one": ["-DCLAIMS=1"], "two": ["-DCLAIMS=2"], "live": []}.items():
            places[kind] = pathlib.Path(self.folder) / kind
            places[kind].mkdir()
            checker(places[kind], "-DBUGS", "-DCRASHES=0", *flags, liveness=kind == "live", fast=False)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            seen = pool.map(lambda name: found(name, places), BUGS)
        for name, (said, trace) in zip(BUGS, seen):
            with self.subTest(name):
                self.assertRegex(said, rf"pan:1: {BUGS[name][1]}")
                self.assertIn("proc ", trace, "no trace")

    def test_each_bug_has_a_counterpart_or_a_reason_for_none(self):
        here = [of for of, _ in BUGS.values() if of]
        self.assertEqual(sorted([*here, *NOT_IN_THE_MODEL]), sorted(bugs.all_bugs()))
        rows = re.findall(r"^\| `?(\w+|-)`? \| `(BUG_\w+)` \|", DOCUMENT.read_text(), re.M)
        self.assertEqual({(mine, of.replace("-", "")) for of, mine in rows}, {(mine, of) for mine, (of, _) in BUGS.items()})

    def test_document_refers_only_to_existing_code(self):
        named = 0
        for path, functions in re.findall(r"`((?:src|sql)/[\w/.]+): (\w+`(?: `\w+`)*)", DOCUMENT.read_text()):
            text = (ROOT / path).read_text()
            for function in re.findall(r"\w+", functions):
                self.assertRegex(text, rf"\b{function}\(", f"{path}: {function}")
                named += 1
        self.assertGreater(named, 40)

    def test_document_refers_only_to_existing_steps(self):
        steps = re.findall(r"^\| ((?:`\w+`(?:, )?)+)[^|]*\| `(?:src|sql)/", DOCUMENT.read_text(), re.M)
        model = MODEL.read_text()
        for step in re.findall(r"`(\w+)`", " ".join(steps)): self.assertRegex(model, rf"(?:inline|#define) {step}\b")
        self.assertGreater(len(steps), 12)


# The searches of a soak: the faults beside slowness (a crash, a graceful stop, a lost answer) and the setup.
CRASH, STOP, LOST, ALL = (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)
CASES = {
    "key_with_a_crash": (CRASH, []),
    "key_with_an_orderly_stop": (STOP, []),
    "key_with_a_lost_answer": (LOST, []),
    "global_order_with_all_three": (ALL, ["-DORDER=IN_ALL"]),
    "no_order_with_a_crash": (CRASH, ["-DORDER=NO_ORDER"]),
    "no_order_with_an_orderly_stop": (STOP, ["-DORDER=NO_ORDER"]),
    "two_lanes_with_a_crash": (CRASH, ["-DLANES=2"]),
    "two_lanes_with_an_orderly_stop": (STOP, ["-DLANES=2"]),
    "two_claims_at_once": ((0, 0, 0), ["-DCLAIMS=2"]),
}
MISTAKES = {
    "-DORDER=IN_ALL": ("BUG_FOLLOWER_GOES", "BUG_LANE_SHARED", "BUG_NO_FENCE", "BUG_RELEASE_EDGE", "BUG_UNKNOWN_CLAIM"),
    "-DORDER=NO_ORDER": ("BUG_NO_FENCE", "BUG_RANGE_EDGE", "BUG_RELEASE_EDGE", "BUG_TRIM_PARKED", "BUG_POISON_LIVES"),
    "-DLANES=2": ("BUG_NO_BEHIND", "BUG_LANE_SHARED", "BUG_TRIM_EDGE", "BUG_RELEASE_EDGE", "BUG_WINDOW_EDGE"),
}
IN_THE_END = {"key": ((0, 0, 0), []), "key_with_a_crash": (CRASH, []),
              "global_order_with_a_crash": (CRASH, ["-DORDER=IN_ALL"])}


@unittest.skipUnless(shutil.which("spin"), "spin is not installed (Debian package spin)")
@unittest.skipUnless(SOAK, "needs many minutes: ./test --soak")
class Soak(Checked):
    def test_planted_mistakes_are_also_found_in_other_setups(self):
        for setup, names in MISTAKES.items():
            folder = pathlib.Path(self.folder) / setup
            folder.mkdir()
            checker(folder, "-DBUGS", "-DCRASHES=0", setup, fast=False)
            for name in names:
                with self.subTest(f"{setup} {name}"): self.assertRegex(found(name, {"one": folder})[0], f"pan:1: {ASSERTION}")


for table, liveness in ((CASES, False), (IN_THE_END, True)):
    for name, (may_happen, defines) in table.items():
        def case(self, may_happen=may_happen, defines=defines, liveness=liveness):
            self.holds(may_happen, *defines, liveness=liveness)
        setattr(Soak, f"test_{'ends_' if liveness else 'holds_'}{name}", case)
