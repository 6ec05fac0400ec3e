"""low_rates: the sections `steady` and `many` of bench/run: single events at low rates, for one consumer and for many."""
import contextlib
import json
import re
import subprocess
import time

import on_postgres
from harness import Relay, Undoable, compete, end, median, peak_mib, plural, ratio, run_ns, wait_until

PRODUCERS = {10: 1, 200: 4, 2_000: 8}  # by events a second
SAID = re.compile(r"\] outbox[^|]*\|LOG:\s+(?:execute \S+|statement): (.*(?:\n\t.*)*)")


# ---- one run ----

def start_pace(b, url, mode, rate, seconds, lines=-1, types=1):
    """Producers beside the process that writes `lines`, a descriptor; they wait for a signal to start."""
    argv = [b.build / "bench/pace", "-d", url, "-m", mode, "-a", rate, "-e", seconds, "-j", PRODUCERS[rate], "-y", types,
            "-l", lines]
    return subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, pass_fds=[lines] if lines >= 0 else [])


def paced(store, pid, pace, before=lambda: None, loses=False):
    """The producers' results, and the processor time of the server and the process `pid` meanwhile; before() is called right
    before. The producers wait in vain for events that a bare loop has lost, which does not count."""
    try:
        if pace.stdout.readline() != "ready\n": raise Undoable(pace.stderr.read() or "the producers did not start")
        before()
        cpu, mine, started = store.cpu(), run_ns(pid), time.monotonic()
        pace.stdin.write("go\n")
        pace.stdin.flush()
        line = pace.stdout.readline()
        if not line: raise Undoable(pace.stderr.read() or "the producers failed")
        found = json.loads(line)
        seconds = max(found["seconds"], found["handled_seconds"]) if loses else time.monotonic() - started
        found["server_cpu"] = (store.cpu() - cpu) / seconds * 100
        found["relay_cpu"] = (run_ns(pid) - mine) / seconds / 1e7
        pace.stdin.close()  # tells the producers to disconnect
        pace.wait(60)
    except FileNotFoundError as err:
        raise Undoable("the relay ended") from err
    finally:
        end(pace)
    for moment in ("emit", "started", "returned"):
        for quantile in ("p50", "p99"): found[f"{moment} {quantile}"] = found[moment][f"{quantile}_us"] / 1e3
    found["rate"] = found["emitted"] / found["seconds"] if found["seconds"] else 0
    return found


def through_relay(b, store, db, rate, seconds, url=None):
    """One consumer, the same in every run, so that it continues where it was. url is the relay's address of the store, if that
    differs from the producers'."""
    relay = Relay(b, url or store.url(db), "--consumer", "steady", "--sink", "stdout:", stdout=subprocess.PIPE)
    with relay as pid, in_its_words(relay):
        return paced(store, pid, start_pace(b, store.url(db), "emit", rate, seconds, relay.process.stdout.fileno()))


def through_bare_loop(b, store, db, rate, seconds):
    store.clear_bare(db)
    loop = subprocess.Popen([b.build / "bench/follow", store.url(db)], stdout=subprocess.PIPE)
    try:
        return paced(store, loop.pid, start_pace(b, store.url(db), "notify", rate, seconds, loop.stdout.fileno()),
                     loses=True)
    finally:
        end(loop)


# ---- one consumer ----

def asked_for(b, store, db, rate, seconds):
    """The relays' statements per event, from the server's log; and commits, from the server's count, less those of a run
    without events. In a separate run, since logging takes time."""
    def commits():
        """Read after all sessions have ended, because they report their counts at their end."""
        wait_until(lambda: store.sql("postgres", f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{db}'") == "0",
                   "the end of all sessions")
        return int(store.sql("postgres", f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{db}'"))

    def run():
        before = commits()
        found = through_relay(b, store, db, rate, seconds)
        return found["emitted"], commits() - before
    store.sql(db, f"ALTER DATABASE {db} SET log_statement = 'all'")
    before = commits()
    with Relay(b, store.url(db), "--consumer", "steady", "--sink", "stdout:", stdout=subprocess.PIPE): time.sleep(0.5)
    idle = commits() - before
    logged = len(on_postgres.server(b).log())
    n, all_commits = run()
    said = SAID.findall(on_postgres.server(b).log()[logged:])
    store.sql(db, f"ALTER DATABASE {db} RESET log_statement")
    return {"statements": len(said) / n, "turns": sum("turn" in text for text in said) / n,
            "commits": (all_commits - idle - n) / n}


WANTED = {200: {"started p50": 1.3, "server_cpu": 1.5}}  # at most so many times the bare loop
COMPARED = (("started p50", "emit start -> handled, p50", "ms"), ("started p99", "  p99", "ms"),
            ("returned p50", "commit -> handled, p50", "ms"), ("returned p99", "  p99", "ms"),
            ("emit p50", "emit, p50", "ms"), ("server_cpu", "processor, server", "% of a core"),
            ("relay_cpu", "processor, relay", "% of a core"))


def steady_rows(b, store, rate, m):
    ours, bare = m["ours"], m["bare"]
    b.row(f"{rate:,}/s: emitted, really", median(ours, "rate"), "events/s")
    for key, label, unit in COMPARED:
        if key == "server_cpu" and store.name == "sqlite": continue
        times, most = ratio(ours, bare, key), WANTED.get(rate, {}).get(key)
        b.row(f"{rate:,}/s: {label}", median(ours, key), unit, "ours / bare", times, f"<= {most}" if most else "",
              times <= most if most else None)
        b.row("    bare loop", median(bare, key), unit)
    b.row("    lost by the bare loop", median(bare, "missing"), "events")
    for name, rows in (("ours", ours), ("bare", bare)):
        cpu = median(rows, "server_cpu") + median(rows, "relay_cpu")
        b.point(f"{store.name}-steady-cpu", name, rate, cpu)
        b.point(f"{store.name}-steady-latency", f"{name}, p50", rate, median(rows, "started p50"))
        b.point(f"{store.name}-steady-latency", f"{name}, p99", rate, median(rows, "started p99"))


def section_steady(b, store):
    seconds, rounds = (2, 1) if b.quick else (8, 3)
    db = store.fresh("steady")
    for rate in PRODUCERS:
        with reported(b, f"{rate:,}/s"):
            m = compete(b, {"ours": lambda: through_relay(b, store, db, rate, seconds),
                            "bare": lambda: through_bare_loop(b, store, db, rate, seconds)}, rounds)
            steady_rows(b, store, rate, m)
            if store.name == "sqlite": continue
            asked = asked_for(b, store, db, rate, seconds)
            for key in ("statements", "turns", "commits"):
                b.row(f"{rate:,}/s: {key} for an event", asked[key], key)
                b.point(f"{store.name}-steady-asked", key, rate, asked[key])
    store.drop(db)


@contextlib.contextmanager
def reported(b, what):
    """A step that cannot be done is a row of the report."""
    try:
        yield
    except Undoable as err:
        b.cannot(what, err)


@contextlib.contextmanager
def in_its_words(relay):
    """Why a step could not be done: the relay's last words, if any."""
    try:
        yield
    except Undoable as err:
        raise Undoable(f"{str(err).strip()}: {relay.last_words()}") from err


# ---- many consumers ----

MATCHING = {"all": 1, "few": None, "none": 0}  # types of events; few: as many as consumers, each with its own type


def consumers_args(n, matching):
    wanted = {"all": lambda i: "wake.*,warm.up", "few": lambda i: f"wake.{i},warm.up", "none": lambda i: "warm.up"}
    args = []
    for i in range(n):
        sink = "file:/dev/null" if i else "stdout:"
        args += ["--consumer", f"c{i:04d}", "--sink", sink, "--events", wanted[matching](i)]
    return args


def await_total(store, db, n, limit):
    """Waits until so many deliveries are recorded; returns how many were."""
    last = time.monotonic() + limit
    while (now := store.delivered(db)) < n and time.monotonic() < last: time.sleep(0.1)
    return now


def many(b, store, n, rate, matching, seconds):
    db = store.fresh("many")
    types = n if matching == "few" else MATCHING[matching]
    relay = Relay(b, store.url(db), *consumers_args(n, matching), stdout=subprocess.PIPE)
    with relay as pid, in_its_words(relay):
        def all_there():
            there = await_total(store, db, n, 60)
            if there < n: raise Undoable(f"{there} of {n} consumers got the first event within 60 s")
            time.sleep(0.5)  # wait until they are idle
        pace = start_pace(b, store.url(db), "emit", rate, seconds, relay.process.stdout.fileno(), types)
        started = []
        found = paced(store, pid, pace, lambda: (all_there(), started.append(time.monotonic())))
        wanted = {"all": n * found["emitted"], "few": found["emitted"], "none": 0}[matching]
        found["delivered"] = await_total(store, db, n + wanted, 20) - n
        found["deliveries"] = found["delivered"] / (time.monotonic() - started[0])
        found["undelivered"] = wanted - found["delivered"]
        found["mib"], found["connections"] = peak_mib(pid), store.connections(db)
    store.drop(db)
    return found


def many_rows(b, store, n, rate, matching, found, one):
    head = f"{plural(n, 'consumer')}, {rate}/s, {matching}"
    b.row(f"{head}: emitted", found["rate"], "events/s", "of wanted", found["rate"] / rate)
    b.row("    emit, p50", found["emit p50"], "ms", "of one's", found["emit p50"] / one["emit p50"])
    b.row("    emit, p99", found["emit p99"], "ms")
    if found["started"]["n"]: b.row("    emit start -> handled, p50", found["started p50"], "ms")
    b.row("    deliveries", found["deliveries"], "deliveries/s", "not yet", found["undelivered"])
    if store.name == "postgres":
        b.row("    processor, server", found["server_cpu"], "% of a core")
        b.row("    connections", found["connections"], "connections")
    b.row("    processor, relay", found["relay_cpu"], "% of a core")
    b.row("    memory, relay", found["mib"], "MiB")
    b.point(f"{store.name}-many-cpu", f"{rate}/s, {matching}", n, found["server_cpu"] + found["relay_cpu"])
    b.point(f"{store.name}-many-emit", f"{rate}/s, {matching}", n, found["emit p50"])
    b.point(f"{store.name}-many-memory", f"{rate}/s, {matching}", n, found["mib"])


def section_many(b, store):
    """a short run leaves out 1,000 consumers, unless named"""
    sizes = (1, 10, 100) if b.quick and "many" not in b.named else (1, 10, 100, 1_000)
    kinds = ((10, "all"), (200, "all"), (200, "none")) if b.quick else [(r, m) for r in (10, 200) for m in MATCHING]
    seconds = 2 if b.quick else 8
    for rate, matching in kinds:
        one = None
        for n in sizes:
            with reported(b, f"{plural(n, 'consumer')}, {rate}/s, {matching}"):
                found = many(b, store, n, rate, matching, seconds)
                one = one or found
                many_rows(b, store, n, rate, matching, found, one)


SECTIONS = {"steady": section_steady, "many": section_many}
