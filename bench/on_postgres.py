"""on_postgres: the sections of bench/run for the store in PostgreSQL, on a server of our own that syncs to disk."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import on_redis
from harness import (KEYS, PAYLOAD, Relay, compete, consumer_args, handler_rows, median, memory_rows, outbox, outbox_argv,
                     peak_mib, program, ratio, remove, run_ns, timed, wait_until, wakeup_rows)

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import servers  # noqa: E402

SETTINGS = {"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "4GB", "log_line_prefix": "%m [%p] %a|",
            "max_connections": 400}  # so that a need for more than the default 100 shows
TICKS = os.sysconf("SC_CLK_TCK")

# Tables for the bare loops, with the same columns and indexes as outbox.event.
BARE_TABLES = """
CREATE TABLE bench_event (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(), seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version bigint,
    created_at timestamptz NOT NULL DEFAULT now(), not_before timestamptz, id uuid NOT NULL DEFAULT gen_random_uuid(),
    type text NOT NULL, aggregate_type text, aggregate_id text, payload json NOT NULL, headers json, tenant text);
CREATE INDEX ON bench_event (xid, seq);
CREATE TABLE bench_notify (LIKE bench_event INCLUDING ALL);
CREATE FUNCTION bench_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY bench; RETURN NULL; END';
CREATE TRIGGER bench_notify AFTER INSERT ON bench_notify FOR EACH STATEMENT EXECUTE FUNCTION bench_notify();
CREATE TABLE bench_position (consumer text PRIMARY KEY, position bigint);
"""
QUEUE = """
DROP TABLE IF EXISTS bench_queue;
CREATE TABLE bench_queue AS SELECT seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant,
    created_at, not_before, 'pending'::text AS status, NULL::timestamptz AS locked_until
    FROM outbox.event ORDER BY seq LIMIT {rows};
ALTER TABLE bench_queue ADD PRIMARY KEY (seq);
CREATE INDEX ON bench_queue (seq) WHERE status = 'pending';
VACUUM ANALYZE bench_queue;
"""
# Events like those of the program `emit`.
FILL = """
SET synchronous_commit = off;
DO $$ BEGIN FOR t IN 0 .. {events} / {per_tx} - 1 LOOP
    INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)
    SELECT CASE n % 100 WHEN 0 THEN 'order.rare' ELSE 'order.changed' END, {kind}, n % {keys},
           (rpad('{{"n":' || n || ',"group":' || n % 100 || ',"text":"', {payload} - 2,
                 'the quick brown fox jumps over the lazy dog and ') || '"}}')::json
    FROM generate_series({per_tx}::bigint * t, {per_tx}::bigint * t + {per_tx} - 1) AS n;
    COMMIT;
END LOOP; END $$;
"""


# ---- the server ----

def server(b):
    """The server of this run; started on first use, ended with us."""
    if not hasattr(b, "server"):
        if b.own_dir: tempfile.tempdir = str(b.dir)
        b.server = servers.Postgres(SETTINGS).start()
    return b.server


def psql(b, db, text):
    argv = [server(b).bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", server(b).conninfo(db), "-f", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"psql: {done.stderr.strip()}")
    return done.stdout.strip()


def url_of(b, db):
    return server(b).url(db)


def fresh_db(b, name):
    psql(b, "postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE);\nCREATE DATABASE {name};")
    outbox(b, url_of(b, name), "init")
    psql(b, name, BARE_TABLES)
    return name


def fill(b, db, events, payload=PAYLOAD, keys=KEYS, per_tx=10, kinds=1):
    """Adds events, then vacuums and checkpoints, so that no such work is left for their readers. kinds: of aggregates."""
    kind = "'order'" if kinds == 1 else f"'order' || n % {kinds}"
    psql(b, db, FILL.format(events=events, payload=payload, keys=keys, per_tx=per_tx, kind=kind))
    psql(b, db, "VACUUM ANALYZE outbox.event; CHECKPOINT;")


def backlog(b, events, payload=PAYLOAD, keys=KEYS, kinds=1):
    """A database with that many events, made once and kept."""
    name = f"backlog_{events}_{payload}_{keys}_{kinds}"
    if psql(b, "postgres", f"SELECT 1 FROM pg_database WHERE datname = '{name}'"): return name
    fill(b, fresh_db(b, name), events, payload, keys, kinds=kinds)
    return name


def server_cpu(b):
    """Processor time of the server in seconds, all of its processes, those that ended included."""
    def alive(pid):
        try:
            return run_ns(pid)
        except OSError:  # it has ended; the postmaster's total includes it
            return 0
    pid = server(b).popen.pid
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = sum(int(stat[field]) for field in (13, 14)) / TICKS
    return sum(alive(process) for process in [pid, *servers.children(pid)]) / 1e9 + ended


def delivered(b, db, consumer):
    return int(psql(b, db, f"SELECT coalesce(sum(delivered), 0) FROM outbox._lanes('{consumer}', 1)"))


def await_delivered(b, db, consumer, n):
    wait_until(lambda: delivered(b, db, consumer) >= n, f"{consumer}'s delivery of {n} events")


# ---- draining ----

def measured(b, run):
    """The result of run(), with the processor time of the server added to that of the program."""
    before = server_cpu(b)
    found = run()
    time.sleep(0.05)  # a server process that has just ended is not counted anywhere for a moment
    found["rate"] = found["events"] / found["seconds"]
    found["server_us"] = (server_cpu(b) - before) / found["events"] * 1e6
    found["cpu_us"] = found["cpu"] / found["events"] * 1e6
    return found


def bare(b, db, mode, events):
    def run():
        found = measured(b, lambda: program(b, "pg_drain", url_of(b, db), mode))
        if found["events"] != events: sys.exit(f"pg_drain {mode}: {found['events']} events instead of {events}")
        return found
    return run


def handled(b, db, events, consumers=1, batch=0):
    """Through the library, to a handler that only reads the events: the null sink."""
    names = [b.name("bench") for _ in range(consumers)]
    return measured(b, lambda: program(b, "drain", url_of(b, db), events, batch, *names))


def relayed(b, db, events):
    """By a relay to /dev/null. Its start and stop time is measured by running it again with nothing to do."""
    argv = outbox_argv(b, url_of(b, db), "relay", "--drain", *consumer_args(b.name("bench"), "/dev/null"))

    def run():
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"events": events, "seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return measured(b, run)


CURSORS = {"single-row": "bare cursor, row by row", "cursor": "bare cursor, whole batches",
           "pipelined": "bare cursor, one connection"}


def section_drain(b):
    n, queue_n = b.backlog, b.backlog // 5
    db = backlog(b, n)

    def skip_locked():
        psql(b, db, QUEUE.format(rows=queue_n))
        return bare(b, db, "skip-locked", queue_n)()
    m = compete(b, {**{mode: bare(b, db, mode, n) for mode in CURSORS}, "ours": lambda: handled(b, db, n),
                    "relay": lambda: relayed(b, db, n), "queue": skip_locked})
    b.row("ours, to nowhere", median(m["ours"], "rate"), "events/s")
    top = max(CURSORS, key=lambda mode: median(m[mode], "rate"))  # the ceiling
    for mode, label in CURSORS.items():
        share = ratio(m["ours"], m[mode], "rate")
        b.row(label, median(m[mode], "rate"), "events/s", "ours / bare", share, ">= 0.80" if mode == top else "",
              share >= 0.80 if mode == top else None)
    times = ratio(m["ours"], m["queue"], "rate")
    b.row("bare SKIP LOCKED claims", median(m["queue"], "rate"), "events/s", "ours / bare", times, ">= 5", times >= 5)
    b.row("relay to file:/dev/null", median(m["relay"], "rate"), "events/s", "of the cursor",
          ratio(m["relay"], m[top], "rate"))
    for name, label in (("ours", "ours"), (top, "bare cursor"), ("queue", "SKIP LOCKED")):
        b.row(f"processor time, {label}", median(m[name], "cpu_us"), "us/event", "server us",
              median(m[name], "server_us"))


def section_consumers(b):
    n = b.backlog // 2
    db = backlog(b, n)
    m = compete(b, {"one": lambda: handled(b, db, n), "ten": lambda: handled(b, db, n, consumers=10)})
    for rows in m.values():
        for found in rows: found["both_us"] = found["cpu_us"] + found["server_us"]
    b.row("one consumer", median(m["one"], "rate"), "deliveries/s")
    times = ratio(m["ten"], m["one"], "rate")
    b.row("ten at once, together", median(m["ten"], "rate"), "deliveries/s", "ten / one", times, ">= 1.00", times >= 1)
    b.row("one, processor time with the server", median(m["one"], "both_us"), "us/delivery")
    b.row("ten, processor time with the server", median(m["ten"], "both_us"), "us/delivery", "ten / one",
          ratio(m["ten"], m["one"], "both_us"))


def section_kept(b):
    """More events for a consumer that has delivered many times as many, which are still kept."""
    n, old = b.backlog // 2, b.backlog * (3 if b.quick else 10)
    kept = fresh_db(b, "kept")
    fill(b, kept, old)
    program(b, "drain", url_of(b, kept), old, 0, "old")

    def more(db_of):
        def run():
            db = db_of()
            fill(b, db, n)
            return measured(b, lambda: program(b, "drain", url_of(b, db), n, 0, "old"))
        return run
    m = compete(b, {"fresh": more(lambda: fresh_db(b, "fresh")), "kept": more(lambda: kept)}, 3)
    psql(b, "postgres", "DROP DATABASE kept; DROP DATABASE fresh;")
    share = ratio(m["kept"], m["fresh"], "rate")
    b.row("drain, nothing kept", median(m["fresh"], "rate"), "events/s")
    b.row(f"drain, {old:,} delivered ones kept", median(m["kept"], "rate"), "events/s", "of fresh", share, ">= 0.90",
          share >= 0.90)


class HeldOpen:
    """A transaction that has an id and a snapshot, and stays open."""

    def __init__(self, b, db):
        self.process = subprocess.Popen([server(b).bin / "psql", "-XAtq", "-d", server(b).conninfo(db)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        self.process.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT pg_current_xact_id();\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline().strip().isdigit(): sys.exit("no transaction to hold open")

    def __exit__(self, *_):
        self.process.communicate("COMMIT;\n")


def section_held(b):
    """Chunks of events, alternating with one drained in small batches, so that the position moves often."""
    chunk, small, chunks = b.backlog // 10, b.backlog // 100, 6 if b.quick else 10
    dbs = [fresh_db(b, "fresh"), fresh_db(b, "held")]
    found = {db: [] for db in dbs}

    def drain(db, events, batch):
        fill(b, db, events)
        return measured(b, lambda: program(b, "drain", url_of(b, db), events, batch, "bench"))
    with HeldOpen(b, "held"):
        for _ in range(chunks):
            for db in dbs: found[db].append(drain(db, chunk, 0))
            for db in dbs: found[db][-1]["churn"] = drain(db, small, 10)["rate"]
    dead = psql(b, "held", "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.lane'::regclass")
    for key, label in (("rate", "batches of 1,000"), ("churn", "batches of 10")):
        for part, name in ((slice(0, 3), "first"), (slice(-3, None), "last")):
            share = ratio(found["held"][part], found["fresh"][part], key)
            b.row(f"{name} chunks, {label}, held open", median(found["held"][part], key), "events/s", "of fresh", share,
                  ">= 0.90", share >= 0.90)
    b.row("dead rows of positions at the end", int(dead), "rows")
    psql(b, "postgres", "DROP DATABASE held; DROP DATABASE fresh;")


# ---- emitting ----

def emitted(b, db, mode, producers, n):
    def run():
        psql(b, db, "CHECKPOINT")
        return measured(b, lambda: program(b, "pg_emit", "-d", url_of(b, db), "-m", mode, "-n", n, "-j", producers,
                                           "-s", PAYLOAD, "-k", KEYS))
    return run


def section_emit(b):
    db = fresh_db(b, "emit")
    for producers, n in ((1, 1_500), (16, 8_000)) if b.quick else ((1, 5_000), (16, 30_000), (32, 30_000)):
        m = compete(b, {mode: emitted(b, db, mode, producers, n) for mode in ("bare", "insert", "emit", "notify")})
        b.row(f"bare INSERT, {producers} producers", median(m["bare"], "rate"), "events/s")
        for mode, label in (("insert", "INSERT INTO outbox.event"), ("emit", "SELECT outbox.emit()")):
            share = ratio(m[mode], m["bare"], "rate")
            b.row(f"  {label}", median(m[mode], "rate"), "events/s", "of bare", share,
                  ">= 0.85" if producers < 32 else "", share >= 0.85 if producers < 32 else None)
        b.row("  bare INSERT and NOTIFY", median(m["notify"], "rate"), "events/s", "of bare",
              ratio(m["notify"], m["bare"], "rate"))
        b.row("  server's time, outbox.emit()", median(m["emit"], "server_us"), "us/event", "bare us",
              median(m["bare"], "server_us"))
    psql(b, "postgres", "DROP DATABASE emit")


def section_notify(b):
    """Emits beside a relay that is always busy with a backlog, in small batches; and beside an idle one, which sleeps and is
    woken repeatedly. With wake-ups off, the idle relay polls."""
    db, n = fresh_db(b, "notify"), 5_000 if b.quick else 40_000
    fill(b, db, 10 * n)

    def beside(start, wakeup, mode, producers):
        def run():
            psql(b, db, f"ALTER DATABASE notify SET outbox.wakeup = '{'on' if wakeup else 'off'}'")
            name = b.name("bench")
            with Relay(b, url_of(b, db), *consumer_args(name, "/dev/null", "--from", start, "--batch", "10")):
                if start == "beginning": await_delivered(b, db, name, 1)
                else: time.sleep(0.5)  # until the relay is idle
                found = emitted(b, db, mode, producers, n)()
                if start == "beginning" and delivered(b, db, name) > 9 * n:
                    print("notify: the backlog was too short for the emits", file=sys.stderr)
            return found
        return run
    for producers in (16,) if b.quick else (16, 32):
        m = compete(b, {(start, mode, wakeup): beside(start, wakeup, mode, producers) for start, mode, wakeup in (
            ("beginning", "insert", False), ("beginning", "insert", True), ("beginning", "emit", True),
            ("end", "insert", False), ("end", "insert", True))})
        busy, lazy = m["beginning", "insert", False], m["end", "insert", False]
        b.row(f"{producers} producers, busy relay, wake-ups off", median(busy, "rate"), "events/s")
        for mode, label in (("insert", "INSERT"), ("emit", "outbox.emit()")):
            share = ratio(m["beginning", mode, True], busy, "rate")
            b.row(f"  wake-ups on, {label}", median(m["beginning", mode, True], "rate"), "events/s", "of off", share,
                  ">= 0.90" if mode == "insert" else "", share >= 0.90 if mode == "insert" else None)
        b.row(f"{producers} producers, idle relay, wake-ups off", median(lazy, "rate"), "events/s")
        b.row("  wake-ups on, INSERT", median(m["end", "insert", True], "rate"), "events/s", "of off",
              ratio(m["end", "insert", True], lazy, "rate"))
    psql(b, "postgres", "DROP DATABASE notify WITH (FORCE)")


TPCB = r"""\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
{emit}END;
"""
INSERT = ("INSERT INTO {} (type, aggregate_type, aggregate_id, payload) "
          "VALUES ('account.changed', 'account', :aid, :payload);\n")
EMITS = {"plain": "", "bare": INSERT.format("bench_event"), "insert": INSERT.format("outbox.event"),
         "emit": "SELECT outbox.emit('account.changed', 'account', :aid, :payload);\n"}


def section_tpcb(b):
    """pgbench's own transaction, and one event in it."""
    db, seconds, scale = fresh_db(b, "tpcb"), 2 if b.quick else 10, 16
    base = [str(server(b).bin / "pgbench"), "-h", str(server(b).dir), "-U", servers.USER]
    subprocess.run([*base, "-i", "-q", "-s", str(scale), db], check=True, capture_output=True)
    payload = '{"text":"' + "the quick brown fox " * 14 + '1234567"}'

    def run_with(name):
        script = b.path(f"tpcb-{name}.sql")
        script.write_text(TPCB.replace("{emit}", EMITS[name]))

        def run():
            psql(b, db, "CHECKPOINT")
            argv = [*base, "-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", str(seconds), "-f", script,
                    "-D", f"payload={payload}", "-D", f"scale={scale}", db]
            done = subprocess.run(argv, capture_output=True, text=True)
            found = re.search(r"tps = ([0-9.]+)", done.stdout)
            if done.returncode != 0 or not found: sys.exit(f"pgbench: {done.stderr.strip()}")
            return {"rate": float(found[1])}
        return run
    m = compete(b, {name: run_with(name) for name in EMITS})
    b.row("TPC-B-like, 16 clients", median(m["plain"], "rate"), "tx/s")
    for name, label in (("emit", "outbox.emit()"), ("insert", "INSERT INTO outbox.event")):
        share = ratio(m[name], m["plain"], "rate")
        b.row(f"  and {label}", median(m[name], "rate"), "tx/s", "of plain", share, ">= 0.85", share >= 0.85)
    b.row("  and a bare INSERT", median(m["bare"], "rate"), "tx/s", "of plain", ratio(m["bare"], m["plain"], "rate"))
    psql(b, "postgres", "DROP DATABASE tpcb")


# ---- memory, wake-up, idle ----

def peak(b, events, payload):
    """Peak memory of a relay, in MiB, after it has drained that many events."""
    db, consumer = backlog(b, events, payload), b.name("bench")
    with Relay(b, url_of(b, db), *consumer_args(consumer, "/dev/null"), "--max-payload", "64MiB") as pid:
        await_delivered(b, db, consumer, events)
        return peak_mib(pid)


def section_memory(b):
    memory_rows(b, peak)


def at_rest(b, name):
    """A database with one event, and the arguments of a relay that delivers it."""
    db, out, consumer = fresh_db(b, name), b.path("out.ndjson"), b.name("bench")
    remove(out)
    psql(b, db, "SELECT outbox.emit('order.changed', 'order', '1', '{}')")
    return db, out, consumer


def section_wakeup(b):
    """200 events a second, 0 to 10 ms apart."""
    db, out, consumer = at_rest(b, "wakeup")
    with Relay(b, url_of(b, db), *consumer_args(consumer, out)):
        await_delivered(b, db, consumer, 1)
        wakeup_rows(b, program(b, "wakeup", url_of(b, db), out, 400 if b.quick else 4_000, 0, 10_000))
    remove(out)


def section_idle(b):
    """Every query of the database is logged, and counted there."""
    seconds = 5 if b.quick else 30
    db, out, consumer = at_rest(b, "idle")
    psql(b, db, "ALTER DATABASE idle SET log_min_duration_statement = 0")
    with Relay(b, url_of(b, db), *consumer_args(consumer, out)) as pid:
        await_delivered(b, db, consumer, 1)
        time.sleep(1)  # let it become idle after our last query
        before, cpu, logged = run_ns(pid), server_cpu(b), len(server(b).log())
        time.sleep(seconds)
        share, cpu = (run_ns(pid) - before) / seconds / 1e9, (server_cpu(b) - cpu) / seconds
        queries = len(re.findall(r"duration: [0-9.]+ ms +(?:execute|statement)", server(b).log()[logged:]))
    if "duration:" not in server(b).log(): sys.exit("the server logged nothing")
    remove(out)
    b.row(f"idle for {seconds} s, processor", share * 100, "%", "", None, "< 0.1", share < 0.001)
    b.row("  the whole server", cpu * 100, "%")
    b.row("  queries in 5 s", queries * 5 / seconds, "queries", "", None, "<= 1", queries * 5 / seconds <= 1)


def section_redis(b):
    n, small = b.backlog, backlog(b, 10_000)
    db = backlog(b, n)

    def queue(redis):
        def run():
            psql(b, db, QUEUE.format(rows=n // 5))
            return on_redis.bare(b, redis, "skip-locked", url_of(b, db), n // 5)()
        return run
    on_redis.section(b, url_of(b, db), "postgres", url_of(b, db), (url_of(b, small), url_of(b, small)), queue)


def section_redis_cluster(b):
    db = backlog(b, b.backlog, kinds=on_redis.STREAMS)
    on_redis.cluster_section(b, url_of(b, db))


def section_handlers(b):
    db = backlog(b, 100_000)
    psql(b, db, "DROP TABLE IF EXISTS bench_effect; CREATE TABLE bench_effect (id bigint GENERATED ALWAYS AS IDENTITY "
                "PRIMARY KEY, event uuid NOT NULL, note text NOT NULL)")
    handler_rows(b, url_of(b, db), lambda: psql(b, db, "CHECKPOINT"), least=0.60)


SECTIONS = {"drain": section_drain, "consumers": section_consumers, "kept": section_kept, "held": section_held,
            "emit": section_emit, "notify": section_notify, "tpcb": section_tpcb, "memory": section_memory,
            "wakeup": section_wakeup, "idle": section_idle, "redis": section_redis, "redis-cluster": section_redis_cluster,
            "handlers": section_handlers}


def facts(b):
    kind = subprocess.run(["stat", "-f", "-c", "%T", server(b).dir], capture_output=True, text=True).stdout.strip()
    return {"postgresql": psql(b, "postgres", "SHOW server_version"), "its filesystem": kind}


def close(b):
    if hasattr(b, "server"): b.server.close()
