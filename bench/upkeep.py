"""upkeep: the section `admin` of bench/run: sending dead letters back, trimming, and lists of a large table."""
import subprocess
import time

from harness import Undoable, compete, median, outbox, outbox_argv, ratio
from low_rates import paced, reported, start_pace
from scaling import worked

def patience(b):
    """Seconds for one command."""
    return 20 if b.quick else 120


def seconds_of(b, url, *args):
    """The duration of a command."""
    started, limit = time.perf_counter(), patience(b)
    try:
        done = subprocess.run(outbox_argv(b, url, *args), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as err:
        raise Undoable(f"not within {limit} s") from err
    if done.returncode != 0: raise Undoable(done.stderr)
    return time.perf_counter() - started


# ---- dead letters ----

def redrive(b, store):
    n = 50_000
    db = store.filled("redrive", n)
    first = worked(b, store, db, n, flags=["-f", "reject", "-q", 100, "-x", patience(b)], consumer="dead")
    b.row(f"{n:,} rejected: buried", first["rate"], "events/s")
    with reported(b, f"dead retry --all of {n:,}"):
        seconds = seconds_of(b, store.url(db), "dead", "retry", "--all", "--consumer", "dead")
        b.row(f"dead retry --all of {n:,}", seconds, "s", "", None, "<= 3", seconds <= 3)
        again = worked(b, store, db, n, flags=["-x", patience(b)], consumer="dead")
        b.row("    redelivered", again["rate"], "events/s", "", None, ">= 50,000", again["rate"] >= 50_000)
        if again["unfinished"]: b.row("    not redelivered in time", again["unfinished"], "events")
    store.drop(db)


# ---- trimming ----

def consumers_past_all(b, store, db, n):
    """That many consumers without events to receive."""
    args = []
    for _ in range(n): args += ["--consumer", b.name("past"), "--sink", "file:/dev/null", "--from", "end"]
    outbox(b, store.url(db), "relay", "--drain", *args)


def trimmed(b, store, n, consumers, held=False):
    """Trims everything."""
    db = store.filled("trimming", n)
    consumers_past_all(b, store, db, consumers)

    def run():
        return {"rate": n / seconds_of(b, store.url(db), "trim", "--older-than", "0s", "--yes")}
    if not held: return run()
    with store.held_open(db): return run()


def deleted(b, store, n):
    db = store.filled("trimming", n)
    store.bare_rows(db)
    started = time.perf_counter()
    store.sql(db, "DELETE FROM bench_event WHERE seq > 0")
    return {"rate": n / (time.perf_counter() - started)}


def emit_beside_trim(b, store, n, beside):
    """200 events a second on their own, and during a trim."""
    db, seconds = store.filled("trimming", n), 2
    consumers_past_all(b, store, db, 1)
    pace, trims = start_pace(b, store.url(db), "emit", 200, seconds), []

    def start():
        argv = outbox_argv(b, store.url(db), "trim", "--older-than", "0s", "--yes")
        if beside: trims.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
    found = paced(store, pace.pid, pace, start)
    if trims and trims[0].wait() != 0: raise Undoable("the trim failed")
    return found


def trim(b, store):
    n, rounds = (100_000, 1) if b.quick else (500_000, 3)
    m = compete(b, {"bare": lambda: deleted(b, store, n), "1": lambda: trimmed(b, store, n, 1),
                    "20": lambda: trimmed(b, store, n, 20), "held": lambda: trimmed(b, store, n, 1, held=True)}, rounds)
    b.row(f"bare DELETE of {n:,}", median(m["bare"], "rate"), "events/s")
    for key, label in (("1", "1 consumer"), ("20", "20 consumers"), ("held", "a transaction held open")):
        b.row(f"trim of {n:,}, {label}", median(m[key], "rate"), "events/s", "of bare", ratio(m[key], m["bare"], "rate"),
              ">= 150,000", median(m[key], "rate") >= 150_000)
    m = compete(b, {"alone": lambda: emit_beside_trim(b, store, n, False),
                    "beside": lambda: emit_beside_trim(b, store, n, True)}, rounds)
    for key in ("emit p50", "emit p99"):
        b.row(f"{key.replace(' ', ' beside a trim, ')}", median(m["beside"], key), "ms", "of alone",
              ratio(m["beside"], m["alone"], key))
    store.drop("trimming" if store.name == "postgres" else b.path("trimming.db"))


# ---- lists ----

LISTS = {"events list --newest": ("events", "list", "--newest"),
         "events list --state failed": ("events", "list", "--state", "failed"),
         "events list --state pending": ("events", "list", "--state", "pending"),
         "events list --type, of none": ("events", "list", "--type", "order.none"),
         "events list --key, of none": ("events", "list", "--key", "order/none"),
         "trim --dry-run": ("trim", "--dry-run", "--older-than", "0s"), "status": ("status",)}


def lists(b, store):
    """Everything is delivered, and kept."""
    n = b.kept or (1_000_000 if b.quick else 10_000_000)
    db = store.filled("kept", n)
    worked(b, store, db, n, flags=["-x", 600], consumer="kept")
    for label, args in LISTS.items():
        with reported(b, f"{label}, {n:,} kept"):
            seconds = seconds_of(b, store.url(db), *args)
            b.row(f"{label}, {n:,} kept", seconds, "s", "", None, "<= 1", seconds <= 1)
    store.drop(db)


def section_admin(b, store):
    redrive(b, store)
    trim(b, store)
    lists(b, store)


SECTIONS = {"admin": section_admin}
