"""shapes: the sections `payload`, `hotkey`, `polling` and `beside` of bench/run: unusual workloads, in PostgreSQL."""
import contextlib
import copy
import subprocess
import time

import on_postgres
import on_redis
import servers
import stores
from harness import Relay, compete, consumer_args, end, median, plural, ratio, run_ns
from low_rates import through_relay
from on_postgres import backlog, bare, emitted, fresh_db, handled, psql, url_of


def handled_large(b, db, small, n):
    """Subtracts the program's start and stop time, measured by a run on ten small events: bare loops measure from the end of
    their connect, and with so few events the start would be much of the time."""
    idle = handled(b, small, 10)["seconds"]
    found = handled(b, db, n)
    return {**found, "whole": found["rate"], "rate": n / (found["seconds"] - idle)}


def section_payload(b):
    """Events of 100 KB, by the bytes."""
    n, size = (1_000, 100_000) if b.quick else (5_000, 100_000)
    db, small = backlog(b, n, size), backlog(b, 10)
    m = compete(b, {"ours": lambda: handled_large(b, db, small, n), **{mode: bare(b, db, mode, n) for mode in ("cursor", "single-row")}})
    b.row("ours, 100 KB each", median(m["ours"], "rate") * size / 1e6, "MB/s")
    b.row("    with its start and end", median(m["ours"], "whole") * size / 1e6, "MB/s")
    best = max(("cursor", "single-row"), key=lambda mode: median(m[mode], "rate"))
    for mode in ("cursor", "single-row"):
        share, top = ratio(m["ours"], m[mode], "rate"), mode == best
        b.row(on_postgres.CURSORS[mode], median(m[mode], "rate") * size / 1e6, "MB/s", "ours / bare", share,
              ">= 0.80" if top else "", share >= 0.80 if top else None)


def section_hotkey(b):
    """One key, so that nothing may be added after a failed entry; compared with many keys, and with a loop that adds
    everything."""
    n = 50_000 if b.quick else 500_000
    many, one = backlog(b, n), backlog(b, n, keys=1)
    with servers.Redis(on_redis.MODES["no AOF"]) as redis:
        m = compete(b, {"one": on_redis.ours(b, redis, url_of(b, one), n), "many": on_redis.ours(b, redis, url_of(b, many), n),
                        "bare": on_redis.bare(b, redis, "postgres", url_of(b, one), n)})
    rate = median(m["one"], "rate")
    b.row("one key, relay to redis", rate, "events/s", "", None, ">= 100,000", rate >= 100_000)
    b.row("10,000 keys", median(m["many"], "rate"), "events/s", "one / many", ratio(m["one"], m["many"], "rate"))
    b.row("bare loop, one key", median(m["bare"], "rate"), "events/s", "one / bare", ratio(m["one"], m["bare"], "rate"))


# ---- where no notification can wake a relay ----

def idle_cpu(b, store, url, seconds):
    """Returns the processor time of an idle relay and of its server, in % of a core."""
    with Relay(b, url, *consumer_args("idle", "/dev/null", "--from", "end")) as pid:
        time.sleep(1)  # until the relay is idle
        mine, server = run_ns(pid), store.cpu()
        time.sleep(seconds)
        return {"relay": (run_ns(pid) - mine) / seconds / 1e7, "server": (store.cpu() - server) / seconds * 100}


@contextlib.contextmanager
def places(b):
    """Where a relay is notified, and where it must poll: the stores, and the URLs by which relays reach them. One store has
    its own server, which allows prepared transactions; another is behind a pooler."""
    direct, pooled = fresh_db(b, "polling"), fresh_db(b, "polling_pooled")
    other = copy.copy(b)
    with servers.Postgres({**on_postgres.SETTINGS, "max_prepared_transactions": 10}) as other.server:
        fresh_db(other, direct)
        with servers.PgBouncer(on_postgres.server(b)) as pooler:
            yield {"notified": (stores.Postgres(b), direct, url_of(b, direct)),
                   "prepared transactions": (stores.Postgres(other), direct, url_of(other, direct)),
                   "pooler": (stores.Postgres(b), pooled, pooler.url(pooled))}
    for name in (direct, pooled): psql(b, "postgres", f"DROP DATABASE {name} WITH (FORCE)")


def polling_rows(b, label, m, idle):
    for rate in (10, 200):
        found, p50 = m[label, rate], median(m[label, rate], "returned p50")
        polls = label != "notified"
        b.row(f"{label}, {rate}/s: commit -> handled, p50", p50, "ms", "of notified", ratio(found, m["notified", rate], "returned p50"),
              "< 10" if polls else "", p50 < 10 if polls else None)
        b.row("    p99", median(found, "returned p99"), "ms")
    cpu = sum(idle[label].values())
    b.row(f"{label}, idle: relay and server", cpu, "% of a core", "relay", idle[label]["relay"], "< 1", cpu < 1)


def section_polling(b):
    seconds, rounds = (2, 1) if b.quick else (8, 3)

    def run(store, db, url, rate):
        return lambda: through_relay(b, store, db, rate, seconds, url)
    with places(b) as there:
        m = compete(b, {(label, rate): run(*place, rate) for rate in (10, 200) for label, place in there.items()}, rounds)
        idle = {label: idle_cpu(b, store, url, 2 if b.quick else 10) for label, (store, _, url) in there.items()}
    for label in idle: polling_rows(b, label, m, idle)


# ---- emitting beside a relay ----

@contextlib.contextmanager
def follower(b, db, every_ms):
    """A bare consumer: reads new rows of bench_event, commits its position, and waits. It loses events that commit late."""
    loop = subprocess.Popen([b.build / "bench/follow", url_of(b, db), str(every_ms)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        end(loop)


def section_beside(b):
    """Beside an idle relay that is woken repeatedly; and, for the cost of consuming as such, a bare INSERT beside a bare
    consumer."""
    db = fresh_db(b, "beside")
    for producers, n in ((1, 1_500), (16, 8_000), (32, 8_000)) if b.quick else ((1, 5_000), (16, 30_000), (32, 30_000)):
        def with_relay():
            with Relay(b, url_of(b, db), *consumer_args(b.name("bench"), "/dev/null", "--from", "end")):
                time.sleep(0.5)  # until the relay is idle
                return emitted(b, db, "insert", producers, n)()

        def with_follower():
            with follower(b, db, 20):
                time.sleep(0.5)
                return emitted(b, db, "bare", producers, n)()
        m = compete(b, {"bare": emitted(b, db, "bare", producers, n), "alone": emitted(b, db, "insert", producers, n),
                        "beside": with_relay, "followed": with_follower})
        b.row(f"bare INSERT, {plural(producers, 'producer')}", median(m["bare"], "rate"), "events/s")
        b.row("    INSERT INTO outbox.event, no relay", median(m["alone"], "rate"), "events/s", "of bare",
              ratio(m["alone"], m["bare"], "rate"))
        share = ratio(m["beside"], m["bare"], "rate")
        b.row("    the same beside a relay", median(m["beside"], "rate"), "events/s", "of bare", share, ">= 0.85",
              share >= 0.85)
        b.row("    bare INSERT beside a bare consumer", median(m["followed"], "rate"), "events/s", "of bare",
              ratio(m["followed"], m["bare"], "rate"))
        b.row("        ours beside a relay, of that", median(m["beside"], "rate"), "events/s", "of it",
              ratio(m["beside"], m["followed"], "rate"))
        b.point("postgres-beside", "no relay", producers, ratio(m["alone"], m["bare"], "rate"))
        b.point("postgres-beside", "beside a relay", producers, share)
    psql(b, "postgres", "DROP DATABASE beside WITH (FORCE)")


SECTIONS = {"payload": section_payload, "hotkey": section_hotkey, "polling": section_polling, "beside": section_beside}
