"""harness: measuring on any store: runs programs, alternates contenders, reports results."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

PAYLOAD = 300
KEYS = 10_000


class Undoable(Exception):
    """A step that is impossible on this machine; the run reports it and continues."""


class Bench:
    """Paths, sizes and results of a run."""

    def __init__(self, args):
        self.build = pathlib.Path(args.build).resolve()
        self.dir = pathlib.Path(args.dir).resolve() if args.dir else self.build / "bench-data"
        self.own_dir = bool(args.dir)
        self.quick = args.quick
        self.rounds = args.rounds or (3 if args.quick else 5)
        self.backlog = 100_000 if args.quick else 1_000_000
        self.kept = args.kept
        self.rows = []    # of the section at work
        self.points = []  # for plots, of all sections
        self.named = set(args.section)
        self.serial = 0

    def row(self, what, value, unit, against="", ratio=None, target="", met=None):
        self.rows.append({"what": what, "value": value, "unit": unit, "against": against, "ratio": ratio,
                          "target": target, "met": met})

    def cannot(self, what, why):
        self.row(what, None, "", str(why).strip().replace("\n", " ")[:160])

    def point(self, plot, series, x, y):
        """One point of a plot; see plot.py."""
        self.points.append({"plot": plot, "series": series, "x": x, "y": y})

    def path(self, name):
        return self.dir / name

    def name(self, stem):
        """A new unique name, always of the same length."""
        self.serial += 1
        return f"{stem}{self.serial:04d}"


# ---- running things; a store is named by its URL ----

def program(b, name, *args):
    """Runs one of our benchmark programs, which print a line of JSON."""
    done = subprocess.run([b.build / "bench" / name, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"{name}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def outbox_argv(b, url, *args):
    return [str(b.build / "outbox"), "--store", url, "--log-level", "warning", *map(str, args)]


def outbox(b, url, *args):
    done = subprocess.run(outbox_argv(b, url, *args), capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"outbox {args[0]}: {done.stderr.strip()}")
    return done.stdout


def timed(argv):
    """Runs a command; returns elapsed seconds and processor seconds."""
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0: sys.exit(f"failed: {' '.join(map(str, argv))}")
    return seconds, usage.ru_utime + usage.ru_stime


def consumer_args(name, out, *options):
    return ["--consumer", name, "--sink", f"file:{out}", *options]


def remove(*paths):
    for path in paths: pathlib.Path(path).unlink(missing_ok=True)


class Relay:
    """A relay in the background: `with Relay(...) as pid`."""

    def __init__(self, b, url, *args, **popen):
        self.log = b.path("relay.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(outbox_argv(b, url, "relay", *args), stderr=log, **popen)

    def __enter__(self):
        return self.process.pid

    def __exit__(self, kind, *_):
        end(self.process)
        if self.process.returncode != 0 and kind is None: sys.exit(f"the relay failed: {self.last_words()}")

    def last_words(self):
        """Its last error message, shortened."""
        lines = [line for line in self.log.read_text().splitlines() if "running as root" not in line]
        return lines[-1].rpartition(" failed: ")[2][-120:] if lines else ""


def end(process, limit=60):
    """Sends a process SIGTERM, and kills it if it does not end."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(holds, what, limit=120):
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end: sys.exit(f"{what} was not observed within {limit} s")
        time.sleep(0.02)


def peak_mib(pid):
    """Peak memory of a process so far."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def run_ns(pid):
    """Processor time of all threads so far, in ns; /proc/PID/stat counts in steps of 10 ms, too coarse here."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


# ---- alternating contenders ----

def compete(b, contenders, rounds=None):
    """Runs each contender once per round, in turn; contenders return dicts of figures."""
    found = {name: [] for name in contenders}
    for _ in range(rounds or b.rounds):
        for name, run in contenders.items(): found[name].append(run())
    return found


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def ratio(rows, against, key):
    """The median of the ratios within each round: a disturbance of a round affects both."""
    return statistics.median(row[key] / max(other[key], 1e-9) for row, other in zip(rows, against))


# ---- reporting ----

def fsync_us(folder, rounds=200):
    """Median time to append 4 KiB and sync it."""
    times, path = [], folder / "fsync"
    with open(path, "wb", buffering=0) as f:
        for _ in range(rounds):
            started = time.perf_counter()
            f.write(bytes(4096))
            os.fsync(f.fileno())
            times.append(time.perf_counter() - started)
    remove(path)
    return statistics.median(times) * 1e6


def memory_rows(b, peak):
    """Rows of the memory that a relay uses: peak(b, events, payload) returns it in MiB."""
    small, large = peak(b, 10_000, PAYLOAD), peak(b, b.backlog, PAYLOAD)
    b.row("peak, 10,000 events of 300 bytes", small, "MiB")
    b.row(f"peak, {b.backlog:,} events of 300 bytes", large, "MiB", "MiB more", large - small, "32; +-5",
          large < 32 and abs(large - small) <= 5)
    big = peak(b, 50 if b.quick else 200, 1 << 20)
    b.row("peak, events of 1 MiB", big, "MiB", "", None, "< 32", big < 32)


def wakeup_rows(b, found):
    """Reports the results of the program wakeup."""
    r = found["returned"]
    b.row("commit returned -> line readable, p50", r["p50_us"] / 1e3, "ms", "", None, "< 2", r["p50_us"] < 2_000)
    b.row("  p99", r["p99_us"] / 1e3, "ms", "", None, "< 10", r["p99_us"] < 10_000)
    b.row("  max", r["max_us"] / 1e3, "ms")
    for key in ("p50", "p99", "max"):
        b.row(f"commit started -> line readable, {key}", found["started"][f"{key}_us"] / 1e3, "ms")


def handler_rows(b, url, rest, least=None):
    """Handlers that insert a row each, compared with a loop that inserts the same rows and reads nothing; they should reach
    `least` of its speed. rest() is called before each turn."""
    n, few, batch = (20_000, 1_000, 1_000) if b.quick else (100_000, 3_000, 1_000)

    def run(count, size, bare):
        def turn():
            rest()
            found = program(b, "handlers", url, count, size, "-" if bare else b.name("h"))
            return {"rate": count / found["seconds"]}
        return turn
    m = compete(b, {"ours": run(n, batch, False), "bare": run(n, batch, True), "ours, 1": run(few, 1, False),
                    "bare, 1": run(few, 1, True)})
    b.row("handlers, batches of 1,000", median(m["ours"], "rate"), "events/s")
    share = ratio(m["ours"], m["bare"], "rate")
    b.row("bare inserts, 1,000 to a transaction", median(m["bare"], "rate"), "rows/s", "handlers / bare", share,
          f">= {least:.2f}" if least else "", share >= least if least else None)
    for name, what in (("ours, 1", "handlers, batches of 1"), ("bare, 1", "bare inserts, each by itself")):
        times = ratio(m["ours"], m[name], "rate")
        b.row(what, median(m[name], "rate"), "events/s", "batches / it", times, ">= 10", times >= 10)
    found = program(b, "handlers", url, 400 if b.quick else 2_000, "latency")
    done, seen = found["done"], found["seen"]
    b.row("commit -> handler done, 200/s, p50", done["p50_us"] / 1e3, "ms", "", None, "< 3", done["p50_us"] < 3_000)
    b.row("  p99", done["p99_us"] / 1e3, "ms")
    b.row("commit -> its row is visible, p50", seen["p50_us"] / 1e3, "ms")
    b.row("  p99", seen["p99_us"] / 1e3, "ms")


def plural(n, what):
    """Formats a count with its noun: 1 lane, 4 lanes."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def shown(value, unit):
    if value is None: return "cannot be done"
    if unit.endswith("/s") or unit in ("calls", "queries"): return f"{value:,.0f}"
    return f"{value:.4f}" if unit == "%" else f"{value:.3f}" if unit == "ms" else f"{value:.1f}"


def line_of(r):
    beside = r["against"] if r["ratio"] is None else f"{r['against']} {r['ratio']:.2f}"
    verdict = "" if r["met"] is None else ("met" if r["met"] else "MISSED")
    figure = f"{shown(r['value'], r['unit']):>12} {r['unit']:<13}"
    return f"  {r['what']:<42}{figure} {beside:<20} {r['target']:<9}{verdict}".rstrip()
