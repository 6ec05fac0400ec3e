"""stall.py SEED FILE [NAME...]: runs one file of cases, or a C test, while its processes are late: one after the other is stopped for
up to two seconds, as if a busy machine had not scheduled it. A test that fails then races against a timer, a lease or another
process.

    tests/stall.py 1 tests/scenario/test_relay.py share
    OUTBOX_TEST_PG=... tests/stall.py 1 build/tests/contract/test_sink_file

Tests that stop processes themselves (freeze) may find them resumed; such failures do not count."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
STOPS = (0.2, 0.7, 2.0)  # seconds


def stat(pid):
    """stat returns (parent, state) of a process; None if it no longer exists."""
    try:
        rest = pathlib.Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(rest[1]), rest[0]


def family(root):
    """family returns the running processes that descend from root, including itself."""
    known = {int(name): stat(name) for name in os.listdir("/proc") if name.isdigit()}
    found, new = set(), {root}
    while new:
        found |= new
        new = {pid for pid, seen in known.items() if seen and seen[0] in found} - found
    return [pid for pid in sorted(found) if known.get(pid) and known[pid][1] not in "TZX"]


def kind(pid, root):
    """kind classifies a process, so that each kind is stopped as often; None: no process waits for it."""
    try:
        argv = pathlib.Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    if pid == root: return "test"
    if argv.startswith("postgres:"): return "backend" if "[local]" in argv else None
    if "bin/postgres" in argv: return None
    return "outbox" if "outbox" in argv.split(" ")[0] else "other"


def stop_one(root, rng):
    kinds = {}
    for pid in family(root): kinds.setdefault(kind(pid, root), []).append(pid)
    kinds.pop(None, None)
    if not kinds: return
    pid = rng.choice(kinds[rng.choice(sorted(kinds))])
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(rng.choice(STOPS))
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def main(seed, path, *names):
    rng = random.Random(int(seed))
    argv = [sys.executable, str(HERE / "cases.py"), path, *names] if path.endswith(".py") else [path, *names]
    test = subprocess.Popen(argv, env={**os.environ, "CMOCKA_MESSAGE_OUTPUT": "TAP"})
    try:
        while test.poll() is None:
            time.sleep(rng.uniform(0, 0.8))
            stop_one(test.pid, rng)
    finally:
        if test.poll() is None: test.kill()
    return test.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
