"""scaling: the sections `lanes`, `failing` and `where` of bench/run: a backlog, drained by handlers through the library, by
several processes, with failures, through a predicate."""
import contextlib
import json
import subprocess

from harness import Undoable, compete, median, plural, ratio
from low_rates import reported

RETRY = "retry=base=20ms,cap=20ms,attempts=8,jitter=none"


def worked(b, store, db, events, *options, flags=(), consumer=None):
    """Runs handlers until so many events are handled; for a new consumer, which is removed afterwards, unless one is named."""
    named, consumer = consumer, consumer or b.name("work")
    argv = [b.build / "bench/work", *flags, store.url(db), consumer, events, *options]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    if done.returncode != 0: raise Undoable(done.stderr or "it failed")
    found = json.loads(done.stdout)
    if found["events"] == 0: raise Undoable("no event was handled")
    if not named:
        subprocess.run([b.build / "outbox", "--store", store.url(db), "consumers", "remove", consumer, "--force", "--yes"],
                       check=True, capture_output=True)
    return {**found, "rate": found["events"] / found["seconds"], "unfinished": found["wanted"] - found["events"]}


# ---- lanes ----

LANES, RELAYS = (1, 4, 16, 64), (1, 2, 4)
SLOW = 0.005  # seconds


def shape(lanes, relays):
    return f"{plural(lanes, 'lane')}, {plural(relays, 'relay')}"


def fast_lanes(b, store, rounds):
    """A handler that only counts."""
    n = 40_000 if b.quick else 400_000
    db, shapes = store.backlog(n), [(lanes, relays) for lanes in LANES for relays in RELAYS if relays <= lanes]
    if b.quick: shapes = [(lanes, relays) for lanes, relays in shapes if relays == 1 or lanes == 16]

    def run(lanes, relays):
        return lambda: worked(b, store, db, n, f"lanes={lanes}", flags=["-p", relays, "-x", 30])
    m = compete(b, {each: run(*each) for each in shapes}, rounds)
    for lanes, relays in shapes:
        share = ratio(m[lanes, relays], m[1, 1], "rate")
        flat = relays == 1 and lanes > 1
        b.row(f"{shape(lanes, relays)}, fast handler", median(m[lanes, relays], "rate"), "events/s",
              "of one lane", share, ">= 0.77" if flat else "", share >= 0.77 if flat else None)
        b.point(f"{store.name}-lanes-fast", plural(relays, "relay"), lanes, median(m[lanes, relays], "rate"))


def slow_lanes(b, store, rounds):
    """A handler that takes 5 ms, in as many threads as there are lanes, in one process or in several."""
    seconds = 1 if b.quick else 4
    db = store.backlog(40_000 if b.quick else 400_000)
    shapes = [(lanes, relays) for lanes in LANES for relays in RELAYS if relays <= lanes]
    if b.quick: shapes = [(lanes, relays) for lanes, relays in shapes if relays != 2]

    def run(lanes, relays):
        n = int(lanes / SLOW * seconds)
        return lambda: worked(b, store, db, n, f"lanes={lanes}", f"workers={lanes // relays}",
                              flags=["-p", relays, "-u", int(SLOW * 1e6), "-x", 15 * seconds])
    for lanes, relays in shapes:
        with reported(b, f"{shape(lanes, relays)}, 5 ms"):
            m = compete(b, {"slow": run(lanes, relays)}, rounds)["slow"]
            share = median(m, "rate") / (lanes / SLOW)
            b.row(f"{shape(lanes, relays)}, 5 ms", median(m, "rate"), "events/s", "of lanes/5ms", share)
            b.point(f"{store.name}-lanes-slow", plural(relays, "relay"), lanes, median(m, "rate"))
            b.point(f"{store.name}-lanes-slow", "lanes / 5 ms", lanes, lanes / SLOW)


def section_lanes(b, store):
    rounds = 1 if b.quick else 3
    fast_lanes(b, store, rounds)
    slow_lanes(b, store, rounds)


# ---- failures ----

# The kind of failure, how many in a hundred, and the required share of the rate without failures.
FAILURES = {"1 % fail once": ("once", 1, 0.70), "1 % parked for an hour": ("parked", 1, 0.70),
            "1 % rejected": ("reject", 1, 0.70), "10 % fail once": ("once", 10, None), "50 % fail once": ("once", 50, 0.20)}


def beside_which(label):
    """The run without failures to compare with: if many fail, a fifth of the events is enough."""
    return "none" if FAILURES[label][1] < 10 else "none of fewer"


def failing(b, store, n, held):
    """Each in a copy of the backlog, with or without a transaction held open beside it."""
    sizes = {"none": n, "none of fewer": n // 5}
    dbs = {name: store.copy(store.backlog(size), f"failing_{size}") for name, size in sizes.items()}

    def run(size, *flags):
        return lambda: worked(b, store, dbs[size], sizes[size], RETRY, flags=[*flags, "-x", 30 if b.quick else 120])
    contenders = {size: run(size) for size in sizes}
    contenders |= {label: run(beside_which(label), "-f", kind, "-q", percent) for label, (kind, percent, _) in FAILURES.items()}
    with contextlib.ExitStack() as stack:
        for db in dbs.values() if held else (): stack.enter_context(store.held_open(db))
        found = compete(b, contenders, 3)
    for db in dbs.values(): store.drop(db)
    return found


def failing_rows(b, store, where, m, fresh):
    """Compared with the run without failures and, with an open transaction, with the same run without it."""
    for size, label in (("none", "no failures"), ("none of fewer", "no failures, a fifth of the events")):
        beside = ("of fresh", ratio(m[size], fresh[size], "rate")) if fresh else ()
        b.row(f"{label}{where}", median(m[size], "rate"), "events/s", *beside)
    for label, (_, percent, least) in FAILURES.items():
        none = m[beside_which(label)]
        share = ratio(m[label], none, "rate")
        b.row(f"{label}{where}", median(m[label], "rate"), "events/s", "of none", share, f">= {least:.2f}" if least else "",
              share >= least if least else None)
        missing = median(m[label], "unfinished")
        if missing: b.row("    not handled in time", missing, "events")
        if fresh: b.row("    the same, fresh", median(fresh[label], "rate"), "events/s", "held / fresh",
                        ratio(m[label], fresh[label], "rate"))
        b.point(f"{store.name}-failing", f"{label.partition('% ')[2]}{where}", percent, median(m[label], "rate"))
        b.point(f"{store.name}-failing", f"none{where}", percent, median(none, "rate"))


def section_failing(b, store):
    n = 100_000 if b.quick else 500_000
    fresh = failing(b, store, n, held=False)
    failing_rows(b, store, "", fresh, None)
    failing_rows(b, store, ", held open", failing(b, store, n, held=True), fresh)


# ---- a predicate on the payload ----

WHERES = {"1 %": ("group = 7", 0.01), "99 %": ("not (group = 7)", 0.99)}


def section_where(b, store):
    n = b.backlog // 2
    db = store.backlog(n)

    def run(expression, share):
        def turn():
            found = worked(b, store, db, int(n * share), f"where={expression}")
            return {"rate": n / found["seconds"]}
        return turn
    m = compete(b, {"none": lambda: worked(b, store, db, n), **{label: run(*args) for label, args in WHERES.items()}})
    b.row("no filter", median(m["none"], "rate"), "looked at/s")
    for label in WHERES:
        share = ratio(m[label], m["none"], "rate")
        b.row(f"--where that {label} match", median(m[label], "rate"), "looked at/s", "of none", share, ">= 0.80",
              share >= 0.80)


SECTIONS = {"lanes": section_lanes, "failing": section_failing, "where": section_where}
