"""run.py: builds and runs every test and ends with one line, `N passed, N failed[, N skipped]`. Called by ./test.

A test is an executable that meson knows of (TAP on its output), a file tests/*/test_*.py (run by cases.py, which speaks
TAP too), or a part of scripts/lint. Each runs in a process group of its own, six at a time; a process that a test leaves behind
is killed and fails the test. A Python file that says `# build: plain` near its top is not repeated under sanitizers, one that
says `# sanitizers: soak` only in a soak, one that says `# quick: no` is left out of a quick run. One that says `# clusters:
yes` runs only with --clusters: it starts several servers of a kind and breaks them. The PostgreSQL tests also run on the
versions in lib/postgres_versions.py: all of them with --versions, some of them on the newest version in every whole run.

The run has one PostgreSQL for all of them. $OUTBOX_TEST_PG is its address for libpq, without a database; a test adds
`&dbname=NAME` to it, creates a database of its own through `&dbname=postgres`, and drops it. $OUTBOX_TEST_MARIADB is the same for
MariaDB.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lib"))

import mariadb_server  # noqa: E402
import postgres_versions  # noqa: E402
import proof  # noqa: E402
import rows  # noqa: E402
import servers  # noqa: E402
import signal_defaults  # noqa: E402

WORKERS = 6  # more than the cores: most tests wait for leases, servers and so on
LIMIT = 480  # seconds per file: only a hanging file takes as long, even on a busy machine
SOAK_LIMIT = 3600
UNKNOWN = 45  # assumed seconds for a file that no earlier run has timed
SOAK_SEEDS, SOAK_PART = 100000, 2000
# Debian's Python modules belong to Debian's Python, which need not be the first in PATH.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable

# A report of a sanitizer needs lines and the names of functions, no more. The rest of -g costs a quarter of the compiler's time.
SANITIZED = ["-Db_lundef=false", "-Doptimization=1", "-Ddebug=false", "-Dc_args=-g1"]
TREES = {
    "build": ["-Dwerror=true"],
    "build-asan": ["-Db_sanitize=address,undefined", *SANITIZED],
    "build-tsan": ["-Db_sanitize=thread", *SANITIZED],
}
COVERAGE = {"build-coverage": ["-Db_coverage=true", "-Doptimization=0"]}
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan.supp",
}
GUARDS = ["includes", "width", "exports", "named", "printed", "claims"]  # of scripts/guards.py
LINTS = ["format", "cppcheck", "words", *GUARDS, "analyzer"]
QUICK_LINTS = ["format", "words", *GUARDS]
SOAK_LINTS = ["tidy"]
# C tests that run under AddressSanitizer only in a soak: they mostly wait, and ThreadSanitizer runs all of them.
SANITIZED_IN_SOAK = ["sink_kafka", "handlers_pg", "handlers_mariadb"]
NOT_QUICK = ["handlers_pg", "sink_rabbitmq", "sink_nats_tls", "sink_redis_cluster"]  # C tests that --quick leaves out, as `# quick: no` does others


class Job:
    """One file to run, and its outcome."""

    def __init__(self, tree, label, argv, env=None, cwd=ROOT, tap=True):
        self.tree, self.label, self.argv, self.cwd, self.tap = tree, label, argv, cwd, tap
        self.env = {**os.environ, **SANITIZER_ENV, "PYTHONDONTWRITEBYTECODE": "1", "CMOCKA_MESSAGE_OUTPUT": "TAP",
                    "OUTBOX_BIN": str(ROOT / tree / "outbox"), **(env or {})}
        self.passed, self.failed, self.skipped = 0, [], []
        self.names = []  # of those that passed
        self.may_be_empty = False  # whether it may have no such case
        self.trouble = None  # a reason to fail the file as a whole
        self.unsteady = []  # failed cases that passed when rerun
        self.output, self.noise = "", ""  # its standard output, and its standard error
        self.seconds, self.cpu = 0.0, 0.0  # its duration, and the processor time of it and its children
        self.version = None  # of PostgreSQL, where that is not the installed one

    @property
    def title(self):
        return f"{self.label} on PostgreSQL {self.version}" if self.version else self.label


# ---- finding them ----

def introspect(tree):
    said = subprocess.run(["meson", "introspect", "--tests", tree], cwd=ROOT, check=True, capture_output=True)
    return json.loads(said.stdout)


def in_suite(test, suite):
    return any(name.split(":")[-1] == suite for name in test["suite"])


def made(tree, wanted):
    """made returns the files of the wanted targets."""
    said = subprocess.run(["meson", "introspect", "--targets", tree], cwd=ROOT, check=True, capture_output=True)
    return [os.path.relpath(name, ROOT / tree) for target in json.loads(said.stdout) if wanted(target) for name in target["filename"]]


def needs(tree, suite):
    """needs returns the files that the tests of a suite run, including themselves."""
    ids = {id for test in introspect(tree) if in_suite(test, suite) for id in test["depends"]}
    return made(tree, lambda target: target["id"] in ids)


def needed(tree):
    """needed returns the targets of a tree from which nothing is installed: the binary and everything in tests."""
    return made(tree, lambda target: target["name"] == "outbox" or "/tests/" in target["defined_in"])


def c_jobs(tree, suite=None, wrapper=(), quick=False):
    jobs = []
    for test in introspect(tree):
        if suite and not in_suite(test, suite): continue
        if test["name"] in NOT_QUICK and quick: continue
        if test["name"] in SANITIZED_IN_SOAK and tree == "build-asan" and not os.environ.get("OUTBOX_SOAK"): continue
        job = Job(tree, test["name"], [*wrapper, *test["cmd"]], test["env"], test["workdir"] or ROOT)
        jobs += soak_simulator(job) if job.label == "sim" and tree == "build" and os.environ.get("OUTBOX_SOAK") else [job]
    return jobs


def soak_simulator(job):
    """soak_simulator splits the simulator into parts, so that both cores are busy and one failing seed does not end the run."""
    return [Job(job.tree, f"sim from seed {first}", [*job.argv, "--seed", str(first), "--seeds", str(SOAK_PART)], job.env)
            for first in range(1, SOAK_SEEDS, SOAK_PART)]


def python_jobs(tree, plain, quick):
    jobs = []
    for path in sorted(ROOT.glob("tests/*/test_*.py")):
        marks = path.read_text()[:2000]
        if not plain and "\n# build: plain\n" in marks: continue
        if not plain and "\n# sanitizers: soak\n" in marks and not os.environ.get("OUTBOX_SOAK"): continue
        if quick and "\n# quick: no\n" in marks: continue
        if "\n# clusters: yes\n" in marks and not os.environ.get("OUTBOX_TEST_CLUSTERS"): continue
        jobs.append(Job(tree, str(path.relative_to(ROOT / "tests")), [PYTHON, "tests/cases.py", str(path)]))
    return jobs


def version_jobs(tree, args):
    """version_jobs returns the jobs for other versions of PostgreSQL than the installed one; a missing version is skipped."""
    jobs = []
    for major, env in args.others.items():
        wanted = lambda label: postgres_versions.about_postgres(ROOT, label) if args.versions else label in postgres_versions.IN_EVERY_RUN
        if env is None:
            jobs.append(Job(tree, "all of it", ["sh", "-c", f"echo 'ok 1 - all # SKIP it is not in {postgres_versions.CACHE}'"]))
            jobs[-1].version = major
            continue
        for job in filter(lambda job: wanted(job.label), [*c_jobs(tree), *python_jobs(tree, True, False)]):
            job.env |= env
            job.version = major
            jobs.append(job)
    return jobs


def lint_jobs(tree):
    parts = LINTS
    if os.environ.get("OUTBOX_SOAK"): parts = LINTS + SOAK_LINTS
    elif os.environ.get("OUTBOX_QUICK"): parts = QUICK_LINTS
    return [Job(tree, f"lint {part}", ["scripts/lint", part], tap=False) for part in parts]


def with_suites(path):
    """with_suites returns the text of a Python test and of the files it imports, which may define its cases."""
    names = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    files = [folder / f"{name}.py" for name in names for folder in (ROOT / "tests" / "lib", path.parent)]
    return "".join(file.read_text() for file in (path, *files) if file.exists())


def select(jobs, names):
    """select keeps the files whose name contains one of names, and of the other Python files the cases that do."""
    kept = []
    for job in jobs:
        if any(name in job.label for name in names):
            kept.append(job)
        elif job.label.endswith(".py"):
            text = with_suites(ROOT / "tests" / job.label)
            cases = [name for name in names if re.search(rf"def (?=test)\w*{re.escape(name)}", text)]
            if cases: kept.append(job)
            job.argv += cases
            job.may_be_empty = True  # a suite that it imports may be for another file
    return kept


# ---- running them ----

running = set()
running_lock = threading.Lock()


def group_members(group):
    """group_members returns the live processes of a process group: [(pid, command)]."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit(): continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        if int(rest[2]) == group and rest[0] not in "ZX": found.append((int(entry), name))
    return found


def end_group(group):
    """end_group ends the rest of a group and returns it. A process that is just about to end gets a second."""
    deadline = time.monotonic() + 1
    while (left := group_members(group)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


def reader(pipe):
    """reader collects a pipe in the background: (thread, chunks). Processes that inherit the pipe may outlive the
    child, so its end cannot be awaited."""
    chunks = []
    thread = threading.Thread(target=lambda: chunks.extend(iter(lambda: pipe.read1(65536), b"")), daemon=True)
    thread.start()
    return thread, chunks


def wait_for(child, limit):
    """wait_for returns the processor seconds of a child and of the children it has waited for; None if it does not end in
    time."""
    handle = os.pidfd_open(child.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            if not selector.select(limit): return None
    finally:
        os.close(handle)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def run(job, limit):
    start = time.monotonic()
    child = subprocess.Popen(job.argv, cwd=job.cwd, env=job.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    with running_lock:
        running.add(child.pid)
    readers = [reader(child.stdout), reader(child.stderr)]
    trouble = None
    job.cpu = wait_for(child, limit)
    if job.cpu is None:
        trouble = f"not done after {limit} s"
        os.killpg(child.pid, signal.SIGKILL)
        job.cpu = wait_for(child, limit) or 0.0
    left = end_group(child.pid)
    with running_lock:
        running.discard(child.pid)
    for thread, _ in readers: thread.join(5)
    job.seconds = time.monotonic() - start
    job.output, job.noise = (b"".join(chunks).decode(errors="backslashreplace") for _, chunks in readers)
    judge(job, child.returncode, trouble, left)
    return job


TAP_LINE = re.compile(r"^(not )?ok \d+(?: - (?P<name>.*?))?(?: # SKIP ?(?P<why>.*))?$", re.MULTILINE)


def judge(job, status, trouble, left):
    """judge counts a file's cases. A file that crashed, took too long, left processes or ran nothing failed as a whole."""
    if job.tap:
        for line in TAP_LINE.finditer(job.output):
            name, why = line["name"] or "", line["why"]
            if why is not None: job.skipped.append(f"{name}: {why}" if name else why)  # cmocka: "not ok 3 # SKIP name"
            elif line[1]: job.failed.append(name)
            else:
                job.passed += 1
                job.names.append(name)
    elif status == 0:
        job.passed = 1
    else:
        job.failed.append(job.label)
    if not trouble and (status < 0 or status != 0 and not job.failed):
        trouble = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    if not trouble and status == 0 and not job.may_be_empty and not job.passed + len(job.failed) + len(job.skipped):
        trouble = "no test in it"
    if not trouble and left:
        trouble = "left behind " + ", ".join(f"{name} ({pid})" for pid, name in left)
    job.trouble = trouble
    if trouble: job.failed.append(trouble)


def report(job):
    if job.label == "build" and not job.failed and job.seconds < 1: return
    if job.may_be_empty and not (job.passed or job.failed or job.skipped): return
    counts = f"{job.passed} passed" if job.label != "build" else ""
    if job.failed and job.label != "build": counts += f", {len(job.failed)} failed"
    if job.skipped: counts += f", {len(job.skipped)} skipped"
    verdict = "FAIL" if job.failed else "ok  "
    print(f"{verdict} {job.tree:10} {job.title:36} {counts:32} {job.seconds:6.1f} s", flush=True)
    for name in job.skipped: print(f"     skipped {name}")
    for name in job.failed: print(f"     FAILED  {name}")
    if job.failed:
        lines = [line for line in job.output.splitlines() if not line.startswith(("ok ", "# time: ", "# stores: "))] + job.noise.splitlines()
        print("\n".join("     | " + line for line in lines[-150:]), flush=True)


def read_seconds(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def longest_first(jobs):
    """longest_first orders jobs by their last duration, here or as recorded in tests/seconds.json, so that no long one runs
    alone at the end. An unknown one may be long."""
    elsewhere = read_seconds(ROOT / "tests" / "seconds.json")
    known = {tree: {**elsewhere.get(tree, {}), **read_seconds(ROOT / tree / ".seconds")} for tree in {job.tree for job in jobs}}
    return sorted(jobs, key=lambda job: -known[job.tree].get(job.title, UNKNOWN))


def remember_seconds(jobs):
    for tree in {job.tree for job in jobs}:
        path = ROOT / tree / ".seconds"
        took = {job.title: round(job.seconds, 1) for job in jobs if job.tree == tree}
        try:
            path.write_text(json.dumps({**read_seconds(path), **took}))
        except OSError:
            pass  # a tree owned by another user


def run_all(jobs, limit):
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(run, job, limit) for job in jobs]):
                report(done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with running_lock:
                for group in running: os.killpg(group, signal.SIGKILL)
            raise


# ---- a second chance ----

UNSTEADY_AT_MOST = 3  # files: if more fail, the machine is not to blame
# A busy machine never causes these: a broken guarantee, a sanitizer's finding.
NEVER_BY_CHANCE = re.compile(r"checker\.Broken|Sanitizer:|runtime error:")


def may_be_chance(job):
    """may_be_chance tells whether a busy machine may be to blame: cases failed, but nothing crashed, hung, leaked or got lost."""
    if not job.failed or not job.tap or job.trouble: return False
    return not NEVER_BY_CHANCE.search(job.output + job.noise)


def second_chance(jobs, limit):
    """second_chance reruns the few files that failed, alone. A case that passes then counts as unsteady, not as failed: it
    depends on timing, and the result names it until it is fixed."""
    failed = [job for job in jobs if job.failed]
    if len(failed) > UNSTEADY_AT_MOST: return
    for job in filter(may_be_chance, failed):
        cases = job.failed if job.label.endswith(".py") else []
        again = run(Job(job.tree, job.label, job.argv + cases, job.env, job.cwd), limit)
        if again.failed or not set(job.failed) <= set(again.names): continue
        job.output += again.output
        job.names += job.failed
        job.passed += len(job.failed)
        job.unsteady, job.failed = job.failed, []


def show_unsteady(jobs):
    for job in jobs:
        for name in job.unsteady:
            print(f"UNSTEADY {job.tree} {job.title} {name}: failed, then passed when it was run again alone", flush=True)


def show_failed(jobs):
    """show_failed repeats, at the end of a long run, the names of the failures."""
    for job in jobs:
        for name in job.failed: print(f"FAILED {job.tree} {job.title} {name}", flush=True)


# ---- the whole ----

def build(tree, targets=None):
    """build compiles a tree and returns the job that stands for the build, which failed if the build did."""
    env = {"BUILD_TARGETS": " ".join(targets)} if targets else {}
    job = run(Job(tree, "build", ["scripts/build", tree, *{**TREES, **COVERAGE}[tree]], env, tap=False), SOAK_LIMIT)
    report(job)
    return job


def refuse(job, trouble):
    job.failed.append(trouble)
    report(job)
    return job


def no_aslr():
    """no_aslr returns a command prefix for ThreadSanitizer, which fails with the address randomisation of newer kernels."""
    try:
        works = subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
    except OSError:
        works = False
    return ["setarch", "-R"] if works else []


def thread_jobs(tree):
    """thread_jobs is tree_jobs for the suite `threads` alone: it compiles nothing else."""
    done = build(tree, ["build.ninja"])
    if done.failed: return [done]
    if not c_jobs(tree, "threads"): return [refuse(done, "no test is in the suite `threads`")]
    done = build(tree, needs(tree, "threads"))
    return [done] if done.failed else [done, *c_jobs(tree, "threads", no_aslr())]


def tree_jobs(tree, quick=False):
    """tree_jobs builds a tree and returns [the build] + the tests to run in it."""
    if tree == "build-tsan": return thread_jobs(tree)
    done = build(tree, ["build.ninja"] if tree == "build-asan" else None)
    if not done.failed and tree == "build-asan": done = build(tree, needed(tree))
    if done.failed: return [done]
    tests = c_jobs(tree, quick=quick)
    if not tests: return [refuse(done, "meson knows of no test: was cmocka there when it was configured?")]
    return [done, *python_jobs(tree, tree != "build-asan", quick), *(lint_jobs(tree) if tree == "build" else []), *tests]


def forgotten(jobs):
    """forgotten fails a whole run that missed a test the documents name, or ran one on other stores than they say."""
    missing = proof.unrun(jobs)
    if missing: jobs.append(refuse(Job("build", "tests that the documents name", []), "not run: " + ", ".join(missing)))
    elsewhere = rows.misplaced(jobs)
    if elsewhere: jobs.append(refuse(Job("build", "stores that the documents name", []), "not run there: " + ", ".join(elsewhere)))
    return bool(missing or elsewhere)


def spared(jobs):
    """spared refuses a quick run that has left out every attack on a guarantee."""
    names = proof.unattacked(jobs)
    if names: jobs.append(refuse(Job("build", "guarantees", []), "not attacked: " + ", ".join(names)))
    return bool(names)


def total(jobs):
    show_unsteady(jobs)
    show_failed(jobs)
    passed, failed = sum(job.passed for job in jobs), sum(len(job.failed) for job in jobs)
    skipped = sum(len(job.skipped) for job in jobs)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 0 if passed and not failed else 1


def choose(jobs, args):
    if args.rows: return rows.select(jobs, args.rows)
    if args.proof: return proof.select(jobs)
    return select(jobs, args.names) if args.names else jobs


def run_trees(args):
    """run_trees builds every tree before the first test runs: both cores have work until the last test of all."""
    only_build = args.quick or args.names or args.proof or args.rows or args.versions
    trees = COVERAGE if args.coverage else ["build"] if only_build else TREES
    builds, tests = [], []
    for tree in trees:
        made, *jobs = tree_jobs(tree, args.quick and not args.names)
        builds.append(made)
        if args.versions: jobs = []
        if not made.failed and tree == "build": jobs += version_jobs(tree, args)
        tests += choose(jobs, args)
    limit = SOAK_LIMIT if args.soak else LIMIT
    run_all(longest_first(tests), limit)
    if not args.names: second_chance(tests, limit)
    if not (args.names or args.soak or args.quick or args.rows or args.versions): remember_seconds(tests)
    if args.times: show_times(builds + tests)
    return [made for made in builds if made.failed] + tests


CASE_TIME = re.compile(r"^# time: ([\d.]+) ([\d.]+) (.*)$", re.MULTILINE)
DEAREST = 40


def show_times(jobs):
    """show_times prints each file's times, and the most expensive cases of the Python files. The processor time of a server
    that a file did not start is attributed to no file; the last line has the total."""
    print("\n  wall s   cpu s  file")
    for job in sorted(jobs, key=lambda job: -job.seconds):
        print(f"  {job.seconds:6.1f}  {job.cpu:6.1f}  {job.tree} {job.title}")
    cases = [(float(wall), float(cpu), f"{job.tree} {job.title} {name}")
             for job in jobs for wall, cpu, name in CASE_TIME.findall(job.output)]
    print("\n  wall s   cpu s  case")
    for wall, cpu, name in sorted(cases, reverse=True)[:DEAREST]: print(f"  {wall:6.1f}  {cpu:6.1f}  {name}")
    for tree in dict.fromkeys(job.tree for job in jobs):
        of_tree = [job for job in jobs if job.tree == tree]
        print(f"\n  {tree}: {sum(job.seconds for job in of_tree):.0f} s of files, {sum(job.cpu for job in of_tree):.0f} s of cpu", end="")
    print()


def show_whole_time(start):
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"  the whole: {time.monotonic() - start:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of cpu, servers included")


def simulate(args):
    """simulate runs the simulator alone, with the arguments that a failing seed prints."""
    done = build("build", ["tests/sim/sim"])
    if done.failed: return 1
    argv = [str(ROOT / "build/tests/sim/sim")]
    for name in ("seed", "seeds", "steps"):
        if getattr(args, name) is not None: argv += [f"--{name}", str(getattr(args, name))]
    for name in ("trace", "postgres", "mariadb"):
        if getattr(args, name): argv.append(f"--{name}")
    return subprocess.run(argv, cwd=ROOT).returncode


def start_others(args, stack):
    """start_others starts a server of each other version of PostgreSQL that this run tests: {version: the environment for its
    tests, None if the version is missing}."""
    part = args.quick or args.names or args.proof or args.rows or args.coverage or args.sim
    majors = postgres_versions.MAJORS if args.versions else () if part else postgres_versions.MAJORS[-1:]
    return {major: stack.enter_context(postgres_versions.server(major)) if postgres_versions.cached(major) else None for major in majors}


def rows_of(parser, names):
    """rows_of returns the requested rows, and refuses an unknown name."""
    wanted = rows.rows(names)
    known = {part for row in wanted for part in (row.name, row.name.split(".")[0])}
    unknown = [name for name in names if name not in known]
    if unknown: parser.error(f"no such row of the contract: {', '.join(unknown)} (C2.11 is one, C2 is all of a part)")
    return wanted


def well(jobs, args):
    """well prints the requested reports, and returns whether they show no problem."""
    if args.rows:
        if args.write: rows.write(args.rows, jobs)
        return rows.show(args.rows, jobs)
    if args.proof: return proof.show(jobs)
    if args.names or args.coverage or args.versions: return True
    return not spared(jobs) if args.quick else not forgotten(jobs)


def main():
    parser = argparse.ArgumentParser(prog="./test", description="Builds and runs the tests.")
    parser.add_argument("--quick", action="store_true", help="the essentials, in three minutes: less of what repeats itself, and no "
                        "sanitizers")
    parser.add_argument("--soak", action="store_true", help="everything that can run longer does")
    parser.add_argument("--clusters", action="store_true", help="even what needs several servers of a broker: clusters, and their faults")
    parser.add_argument("--versions", action="store_true", help="only what is about PostgreSQL (the store's contract, exact and fault), on "
                        f"each of {', '.join(map(str, postgres_versions.MAJORS))} instead of the installed version")
    parser.add_argument("--proof", action="store_true", help="the attacks on each guarantee, and their outcome")
    parser.add_argument("--rows", action="store_true", help="the rows of the contract, the tests that tests/conformance.md names for "
                        "them, the stores they ran on, and the outcome; NAME is then a row (C2.11) or a part (C2)")
    parser.add_argument("--write", action="store_true", help="with --rows: record the stores on which each of the tests passed")
    sim = parser.add_argument_group("the simulator alone")
    sim.add_argument("--sim", action="store_true", help="run it for 1,000 seeds; ./test --soak sim runs 100,000")
    sim.add_argument("--seed", type=int, metavar="N", help="this seed")
    sim.add_argument("--seeds", type=int, metavar="N", help="number of seeds")
    sim.add_argument("--steps", type=int, metavar="N", help="number of steps in each, before everything heals")
    sim.add_argument("--trace", action="store_true", help="print every step")
    sim.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of in memory")
    sim.add_argument("--mariadb", action="store_true", help="on MariaDB instead of in memory")
    parser.add_argument("--coverage", action="store_true", help="print the share of lines and branches that the tests cover")
    parser.add_argument("--times", action="store_true", help="print the time of each file, and the slowest cases")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only files, or cases of Python files, with this in "
                        "their name; without the sanitizers")
    args = parser.parse_args()
    if args.rows: args.rows = rows_of(parser, args.names)
    if args.soak: os.environ["OUTBOX_SOAK"] = "1"
    if args.quick: os.environ["OUTBOX_QUICK"] = "1"
    if args.clusters: os.environ["OUTBOX_TEST_CLUSTERS"] = "1"
    if args.coverage: os.environ["GCOV_ERROR_FILE"] = "/dev/null"  # some tests run as a user who may not write to the tree
    signal_defaults.forget_signals()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(servers.folder_for_all())
        os.environ["OUTBOX_TEST_PG"] = stack.enter_context(servers.Postgres()).url("")
        os.environ["OUTBOX_TEST_MARIADB"] = stack.enter_context(mariadb_server.MariaDB()).url("")
        args.others = start_others(args, stack)
        if args.sim: return simulate(args)
        done = run_trees(args)
    if args.times: show_whole_time(start)
    if args.coverage: subprocess.run([PYTHON, ROOT / "tests" / "coverage.py", ROOT / "build-coverage"], check=True)
    good = well(done, args)
    return total(done) or int(not good)


if __name__ == "__main__":
    sys.exit(main())
