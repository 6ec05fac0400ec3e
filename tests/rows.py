"""rows.py: the rows of the contract, the tests that tests/conformance.md names for each, and their outcome: ./test --rows.

A row of the table is `| C0.1 | what | stores | tests |`. The stores are those that the row covers; `not yet` marks a known gap.
The tests follow the stores on which they should run:

    all: `contract/store_lease.c:live_claim_is_never_stolen` PostgreSQL: `isolation/test_claims.py:test_late` no store: `unit/test_x.c:y`

All of that is verified. The run determines the stores of a test: from the name of a C program or of its group (store_of), or
from the stores that a Python test used (cases.py). A test that was skipped has not run."""
import collections
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFORMANCE = ROOT / "tests" / "conformance.md"
POSTGRES, SQLITE, MEMORY, MARIADB = STORES = ("PostgreSQL", "SQLite", "memory", "MariaDB")
# The word in front of tests, and the stores that these run on.
GROUPS = {"all": STORES, "three": (POSTGRES, SQLITE, MARIADB), "both": (POSTGRES, SQLITE),
          **{", ".join(some): some for n in (3, 2, 1) for some in itertools.combinations(STORES, n)
             if some not in ((POSTGRES, SQLITE, MARIADB), (POSTGRES, SQLITE))},
          "no store": ()}
GROUP = re.compile(rf"\b({'|'.join(sorted(GROUPS, key=len, reverse=True))}): ")
TEST = re.compile(r"`(\w+/\w+\.(?:c|py)):(\w+)`")
ROW = re.compile(r"^\| *(C\d+\.\d+) *\| (.*) \|$", re.MULTILINE)
GAP = re.compile(r"(\w+) \(not yet\)")

# The store of a C program, unless its groups name stores; the rest have none.
PROGRAMS = {POSTGRES: ("store_postgres", "handlers_pg", "claim_pg", "misbehave_pg", "outbox_pg", "sim_postgres"),
            MARIADB: ("store_mariadb", "handlers_mariadb", "claim_mariadb", "misbehave_mariadb", "sim_mariadb"),
            SQLITE: ("handlers_sqlite", "claim_sqlite", "misbehave_sqlite", "manage"),
            MEMORY: ("claim_memory", "pipeline", "effects", "found", "outage", "for_tests", "sim")}
KINDS = {"postgres": POSTGRES, "sqlite": SQLITE, "memory": MEMORY, "mariadb": MARIADB}


class Row:
    """One row of tests/conformance.md."""

    def __init__(self, name, what, stores, tests):
        self.name, self.what, self.remark = name, what, TEST.sub("", GROUP.sub("", tests)).strip()
        self.gaps = GAP.findall(stores)
        self.stores = [] if stores == "-" else [store for store in stores.split(", ") if not GAP.match(store)]
        self.tests = named(tests)  # {(file, test): stores}

    def line(self):
        """line is the row as in the document, with each test after its stores."""
        words = [self.remark] if self.remark else []
        for group, stores in GROUPS.items():
            of_group = [f"`{file}:{test}`" for (file, test), on in self.tests.items() if set(on) == set(stores)]
            if of_group: words.append(f"{group}: {' '.join(of_group)}")
        stores = self.stores + [f"{store} (not yet)" for store in self.gaps]
        return f"| {self.name} | {self.what} | {', '.join(stores) or '-'} | {' '.join(words)} |"


def named(cell):
    """named returns {(file, test): stores} of a cell. Tests before the first group are on no store."""
    found, on = {}, ()
    for part in re.finditer(f"{GROUP.pattern}|{TEST.pattern}", cell):
        if part[1]: on = GROUPS[part[1]]
        else: found[part[2], part[3]] = tuple(dict.fromkeys(found.get((part[2], part[3]), ()) + on))
    return found


def rows(names=()):
    """rows returns the rows whose name begins with one of names (C2: all of that part, but C1.1 not C1.10); all without names."""
    found = []
    for name, rest in ROW.findall(CONFORMANCE.read_text()):
        cells = [cell.strip() for cell in rest.split(" | ")]
        if len(cells) != 3: raise ValueError(f"{CONFORMANCE.name}: {name} has {len(cells) + 1} columns, not 4")
        if not names or name in names or name.split(".")[0] in names: found.append(Row(name, *cells))
    return found


# ---- the tests of rows ----

@functools.cache
def programs():
    """programs returns {label of a meson test: the files it is built from, below tests/}."""
    def ask(what):
        said = subprocess.run(["meson", "introspect", what, "build"], cwd=ROOT, check=True, capture_output=True)
        return json.loads(said.stdout)

    sources = {}
    for target in ask("--targets"):
        files = [os.path.normpath(file) for part in target.get("target_sources", ()) for file in part.get("sources", ())]
        sources.update((name, {os.path.relpath(file, ROOT / "tests") for file in files}) for name in target["filename"])
    linked = linked_with([name for name in sources if name.endswith(".a")])
    return {test["name"]: set().union(*(sources.get(name, ()) for name in (test["cmd"][0], *linked.get(test["cmd"][0], ()))))
            for test in ask("--tests")}


def linked_with(libraries):
    """linked_with returns {program: the suite libraries it is linked with}: several programs share a suite."""
    found, build = {}, ROOT / "build"
    for line in (build / "build.ninja").read_text().splitlines():
        program = re.match(r"build (\S+): c_LINKER ", line)
        if program: found[str(build / program[1])] = [name for name in libraries if os.path.relpath(name, build) in line.split()]
    return found


def select(jobs, wanted):
    """select keeps the Python cases that the rows name, and the C programs that have a test of theirs."""
    cases, kept = collections.defaultdict(list), []
    for file, test in dict.fromkeys(test for row in wanted for test in row.tests): cases[file].append(test)
    for job in jobs:
        if job.label in cases: job.argv += cases[job.label]
        elif not programs().get(job.label, set()) & set(cases): continue
        kept.append(job)
    return kept


# ---- their outcome ----

def store_of(label, group):
    """store_of returns the stores that a group of a C program ran on."""
    kind = KINDS.get(group.split(",")[0])
    return [kind] if kind else [store for store, labels in PROGRAMS.items() if label in labels]


LINE = re.compile(r"^(?P<bad>not )?ok \d+(?: - (?P<name>.*?))?(?: # SKIP ?(?P<why>.*))?$"
                  r"|^# stores: (?P<stores>.*)$|^# (?:not )?ok - (?P<group>.*)$")


def results(job):
    """results returns [(test, "passed" | "failed" | "skipped", stores)] of a job. cmocka names a group behind its tests."""
    found, group, stores = [], [], []
    for line in filter(None, map(LINE.match, job.output.splitlines())):
        if line["group"] is not None:
            found += [(name, came, store_of(job.label, line["group"])) for name, came, _ in group]
            group = []
        elif line["stores"] is not None:
            stores = [store for store in line["stores"].split() if store in STORES]
        else:
            came = "skipped" if line["why"] is not None else "failed" if line["bad"] else "passed"
            name = (line["name"] or line["why"] or "").split(".")[-1]  # cmocka: "not ok 3 # SKIP name"
            if job.label.endswith(".py"): found.append((name, came, stores))
            else: group.append((name, came, stores))
            stores = []
    return found + [(name, came, store_of(job.label, "")) for name, came, _ in group]


class Outcome:
    """The outcome of one test, which several programs, or classes of a file, may have run."""

    def __init__(self):
        self.came, self.stores = [], {}

    def add(self, came, stores):
        self.came.append(came)
        if came == "passed": self.stores.update(dict.fromkeys(stores))

    def word(self):
        for word in ("failed", "skipped", "passed"):
            if word in self.came: return word
        return "not run"


def outcomes(jobs):
    """outcomes returns {(file, test): Outcome}."""
    found = collections.defaultdict(Outcome)
    for job in jobs:
        files = [job.label] if job.label.endswith(".py") else programs().get(job.label, ())
        for test, came, stores in results(job):
            for file in files: found[file, test].add(came, stores)
    return found


def troubles(row, found):
    """troubles returns the reasons why a row is not proven, except known gaps."""
    said = [] if row.tests else ["names no test"]
    proven = set()
    for (file, test), on in row.tests.items():
        outcome = found[file, test]
        if outcome.word() != "passed": said.append(f"{test}: {outcome.word()}")
        elif missing := [store for store in on if store not in outcome.stores]: said.append(f"{test}: not on {', '.join(missing)}")
        else: proven.update(on)
    return said + [f"no test on {store}" for store in row.stores if store not in proven]


def show(wanted, jobs):
    """show prints the rows with their tests, and returns whether each is proven, except known gaps."""
    found, counts = outcomes(jobs), collections.Counter()
    for row in wanted:
        said = troubles(row, found)
        verdict = "NOT PROVEN" if said else "partly" if row.gaps else "proven"
        counts[verdict] += 1
        print(f"\n{row.name:6} {verdict:10} {', '.join(row.stores) or 'no store'}: {row.what}")
        for file, test in row.tests:
            outcome = found[file, test]
            stores = ", ".join(store for store in STORES if store in outcome.stores) or "-"
            print(f"       {outcome.word():10} {stores:28} {file}:{test}")
        for text in said + [f"not yet on {store}" for store in row.gaps]: print(f"       ! {text}")
    print(f"\n{sum(counts.values())} rows: {counts['proven']} proven, {counts['partly']} partly, {counts['NOT PROVEN']} not proven")
    return bool(wanted) and not counts["NOT PROVEN"]


def misplaced(jobs):
    """misplaced returns the tests that passed in a whole run, but not on a store that the document names."""
    found = outcomes(jobs)
    return [f"{row.name} {test}" for row in rows() for (file, test), on in row.tests.items()
            if found[file, test].word() == "passed" and not set(on) <= set(found[file, test].stores)]


def write(wanted, jobs):
    """write records the stores on which the tests of these rows have just passed."""
    found, text = outcomes(jobs), CONFORMANCE.read_text()
    lines = {}
    for row in wanted:
        row.tests = {test: tuple(s for s in STORES if s in found[test].stores) if found[test].word() == "passed" else on
                     for test, on in row.tests.items()}
        lines[row.name] = row.line()
    CONFORMANCE.write_text(ROW.sub(lambda row: lines.get(row[1], row[0]), text))
