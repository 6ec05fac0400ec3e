"""proof.py: the report of ./test --proof: each guarantee with the attacks of this run, and the figures that the tests printed.
For every whole run it also checks that each test named in the documents was run.

A test reports figures as a line `# figures: {json}`: scenario, invariant, events, faults ({kind: n}), lost, phantoms,
misordered, duplicates, bound, heal_s. Numbers that do not apply are omitted."""
import collections
import json
import pathlib
import re
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUARANTEES = ROOT / "tests" / "guarantees.md"
HEAD = re.compile(r"^## (.*)$", re.MULTILINE)
TEST = re.compile(r"`(\w+/\w+\.(?:c|py)):(\w+)`")
FIGURES = re.compile(r"^# figures: (\{.*\})$", re.MULTILINE)
SIMULATOR = "random_histories_never_break_a_guarantee"


def guarantees():
    """guarantees returns [(name, statement, [(file, test)])] from tests/guarantees.md."""
    parts = HEAD.split(GUARANTEES.read_text())[1:]
    named = [(re.match(r"(G\d+) (.*)", head), body) for head, body in zip(parts[::2], parts[1::2])]
    return [(head[1], head[2], TEST.findall(body)) for head, body in named if head]


def documents():
    """documents returns the pages that may name tests."""
    return sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("tests/*.md"))


def unrun(jobs):
    """unrun returns the tests that a document names and that were neither run nor skipped. Listing a test is not enough: a
    suite can forget it."""
    found = outcomes(jobs)
    named = {test for path in documents() for test in TEST.findall(path.read_text())}
    return sorted(f"{file}:{test}" for file, test in named if test not in found)


def unattacked(jobs):
    """unattacked returns the guarantees that no test was run against."""
    found = outcomes(jobs)
    return [name for name, _, tests in guarantees() if not any(found[test][0] for _, test in tests if test in found)]


def select(jobs):
    """select keeps the C programs, and the cases of Python files that attack a guarantee. The list does not record a C file's
    program, and all of them together take less than a minute."""
    wanted = collections.defaultdict(set)
    for _, _, tests in guarantees():
        for file, test in tests: wanted[file].add(test)
    kept = []
    for job in jobs:
        if job.label in wanted: job.argv += sorted(wanted[job.label])
        elif not job.tap or job.label.endswith(".py"): continue
        kept.append(job)
    return kept


def outcomes(jobs):
    """outcomes returns {test: [passed, not]}, where one of the C suites may have been run against several stores."""
    found = collections.defaultdict(lambda: [0, 0])
    for job in jobs:
        for name in job.names: found[name.split(".")[-1]][0] += 1
        for name in job.failed + job.skipped: found[re.split(r"[.:]", name.split(": ")[0])[-1]][1] += 1
    return found


def figures(jobs):
    return [json.loads(line) for job in jobs for line in FIGURES.findall(job.output)]


def show(jobs):
    """show prints the table, and returns whether every guarantee withstood all the attacks listed for it."""
    found, whole = outcomes(jobs), True
    print("\nThe guarantees, under attack")
    for name, text, tests in guarantees():
        ran = [found[test] for _, test in tests]
        held = all(passed and not bad for passed, bad in ran)
        whole = whole and held and bool(ran)
        print(f"  {name:4} {'held ' if held else 'BROKE'} {sum(p for p, _ in ran):3} attacks  {text}")
        for (file, test), (passed, bad) in zip(tests, ran):
            if not passed or bad: print(f"         {file}:{test}: {'failed or skipped' if bad else 'was not run'}")
    show_figures(figures(jobs))
    return whole


def show_figures(told):
    if not told: return
    faults = collections.Counter()
    print("\nFigures")
    print(f"  {'scenario':52} {'events':>8} {'faults':>8} {'lost':>5} {'phantom':>8} {'misordered':>11} {'repeats':>8} {'bound':>8} heal")
    for one in sorted(told, key=lambda one: one["scenario"]):
        faults.update(one["faults"])
        heal = one.get("heal_s")
        print(f"  {one['scenario']:52.52} {one['events']:8} {sum(one['faults'].values()):8} {one['lost']:5} {one['phantoms']:8} "
              f"{one['misordered']:11} {one['duplicates']:8} {one.get('bound') or '':>8} {'' if heal is None else f'{heal:.1f} s'}")
    sums = {key: sum(one[key] for one in told) for key in ("events", "lost", "phantoms", "misordered", "duplicates")}
    heals = [one["heal_s"] for one in told if one.get("heal_s") is not None]
    print(f"  {sums['events']} events, {sum(faults.values())} faults; lost {sums['lost']}, phantoms {sums['phantoms']}, "
          f"misordered {sums['misordered']}, repeated {sums['duplicates']}"
          + (f"; healed after {statistics.median(heals):.1f} s, at most {max(heals):.1f} s" if heals else ""))
    print("  faults: " + ", ".join(f"{n} {kind}" for kind, n in faults.most_common()))
