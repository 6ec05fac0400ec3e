"""on_mariadb: the sections of bench/run for the store in MariaDB, on a server of our own that syncs to disk."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from harness import (KEYS, PAYLOAD, Relay, compete, consumer_args, median, memory_rows, outbox, outbox_argv, peak_mib, program, ratio,
                     remove, run_ns, timed, wait_until, wakeup_rows)

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import mariadb_server  # noqa: E402

# Server defaults, except for the sizes of its memory and log.
SETTINGS = {"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "1G", "innodb-flush-log-at-trx-commit": 1,
            "innodb-flush-method": "fsync", "innodb-doublewrite": "ON", "innodb-use-native-aio": "ON", "max-connections": 400}
CLIENT = "/usr/bin/mariadb"

# Tables for the bare loops, with the same columns and indexes as outbox_event and outbox_fresh.
BARE_TABLES = """
CREATE TABLE bench_event (
    nr BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT (UUID()),
    type VARCHAR(256) NOT NULL, aggregate_type VARCHAR(1025), aggregate_id VARCHAR(1025), version BIGINT, payload LONGTEXT NOT NULL,
    headers MEDIUMTEXT, tenant VARCHAR(1025), not_before BIGINT, created_at BIGINT NOT NULL DEFAULT (UNIX_TIMESTAMP() * 1000),
    idempotency_key VARBINARY(1025), UNIQUE KEY (id), UNIQUE KEY (idempotency_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
CREATE TABLE bench_marker (nr BIGINT UNSIGNED NOT NULL PRIMARY KEY) ENGINE = InnoDB;
CREATE TABLE bench_position (position BIGINT NOT NULL) ENGINE = InnoDB;
INSERT INTO bench_position VALUES (0);
"""
QUEUE = """
DROP TABLE IF EXISTS bench_queue;
CREATE TABLE bench_queue LIKE bench_event;
ALTER TABLE bench_queue ADD status VARCHAR(10) NOT NULL DEFAULT 'pending', ADD locked_until DATETIME, ADD KEY (status, nr);
INSERT INTO bench_queue (nr, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, created_at)
    SELECT nr, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, created_at
    FROM outbox_event ORDER BY nr LIMIT {rows};
"""
# Events like those of the program `emit`.
FILL = """
BEGIN NOT ATOMIC
    DECLARE t INT DEFAULT 0;
    WHILE t < {events} / {per_tx} DO
        INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
        SELECT IF(n % 100 = 0, 'order.rare', 'order.changed'), 'order', n % {keys},
               CONCAT(LEFT(CONCAT('{{"n":', n, ',"group":', n % 100, ',"text":"',
                                  REPEAT('the quick brown fox jumps over the lazy dog and ', {payload} DIV 48 + 1)),
                           {payload} - 2), '"}}')
          FROM (SELECT seq + t * {per_tx} AS n FROM seq_0_to_{last}) AS numbers;
        SET t = t + 1;
    END WHILE;
END
"""


# ---- the server ----

def server(b):
    """The server of this run; started on first use, ended with us."""
    if not hasattr(b, "mariadb"):
        if b.own_dir: tempfile.tempdir = str(b.dir)
        b.mariadb = mariadb_server.MariaDB(SETTINGS).start()
    return b.mariadb


def sql(b, db, text):
    argv = [CLIENT, "--no-defaults", f"--socket={server(b).socket}", "--user=root", "-N", "-B", "--delimiter=;;", db]
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"mariadb: {done.stderr.strip()}")
    return done.stdout.strip()


def script(b, db, text):
    """Several statements."""
    return [sql(b, db, part) for part in text.split(";\n") if part.strip()]


def url_of(b, db):
    return server(b).url(db)


def fresh_db(b, name):
    script(b, "mysql", f"DROP DATABASE IF EXISTS {name};\nCREATE DATABASE {name}")
    outbox(b, url_of(b, name), "init")
    script(b, name, BARE_TABLES)
    return name


def drop_db(b, *names):
    for name in names: sql(b, "mysql", f"DROP DATABASE {name}")


def at_peace(b):
    """Waits until the server has finished purging and flushing in the background."""
    sql(b, "mysql", "SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0.001")
    sql(b, "mysql", "SET GLOBAL innodb_max_dirty_pages_pct = 0")

    def clean():
        found = dict(line.split("\t") for line in sql(b, "mysql", "SHOW GLOBAL STATUS LIKE 'innodb_%'").splitlines())
        return int(found["Innodb_buffer_pool_pages_dirty"]) < 20 and int(found["Innodb_history_list_length"]) < 100
    with contextlib.suppress(SystemExit): wait_until(clean, "the server's rest", 60)
    sql(b, "mysql", "SET GLOBAL innodb_max_dirty_pages_pct = 90")
    sql(b, "mysql", "SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0")


def fill(b, db, events, payload=PAYLOAD, keys=KEYS, per_tx=1_000):
    """Adds events without a seq: draining them includes assigning it."""
    per_tx = max(1, min(per_tx, events, 50_000_000 // payload))
    sql(b, db, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    sql(b, db, FILL.format(events=events, payload=payload, keys=keys, per_tx=per_tx, last=per_tx - 1))
    sql(b, db, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def sequenced(b, db):
    """Assigns every event its seq."""
    outbox(b, url_of(b, db), "status")


def backlog(b, events, payload=PAYLOAD, keys=KEYS):
    """A database with that many events, each with a seq, made once and kept."""
    name = f"backlog_{events}_{payload}_{keys}"
    if sql(b, "mysql", f"SHOW DATABASES LIKE '{name}'"): return name
    fill(b, fresh_db(b, name), events, payload, keys)
    sequenced(b, name)
    at_peace(b)
    return name


def server_cpu(b):
    """Processor time of the server in seconds, threads that ended included."""
    stat = pathlib.Path(f"/proc/{server(b).popen.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(stat[field]) for field in (11, 12)) / os.sysconf("SC_CLK_TCK")


def delivered(b, db, consumer):
    return int(sql(b, db, f"SELECT COALESCE(SUM(delivered), 0) FROM outbox_consumer WHERE name = '{consumer}'"))


def await_delivered(b, db, consumer, n):
    wait_until(lambda: delivered(b, db, consumer) >= n, f"{consumer}'s delivery of {n} events")


# ---- draining ----

def measured(b, run):
    """The result of run(), with the processor time of the server added to that of the program."""
    before = server_cpu(b)
    found = run()
    found["rate"] = found["events"] / found["seconds"]
    found["server_us"] = (server_cpu(b) - before) / found["events"] * 1e6
    found["cpu_us"] = found["cpu"] / found["events"] * 1e6
    return found


def bare(b, db, mode, events):
    def run():
        found = measured(b, lambda: program(b, "my_drain", url_of(b, db), mode))
        if found["events"] != events: sys.exit(f"my_drain {mode}: {found['events']} events instead of {events}")
        return found
    return run


def handled(b, db, events, consumers=1, batch=0, name=None):
    """Through the library, to a handler that only reads the events: the null sink."""
    names = [name or b.name("bench") for _ in range(consumers)]
    return measured(b, lambda: program(b, "drain", url_of(b, db), events, batch, *names))


def relayed(b, db, events):
    """By a relay to /dev/null. Its start and stop time is measured by running it again with nothing to do."""
    argv = outbox_argv(b, url_of(b, db), "relay", "--drain", *consumer_args(b.name("bench"), "/dev/null"))

    def run():
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"events": events, "seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return measured(b, run)


CURSORS = {"cursor": "bare cursor, one after the other", "ahead": "bare cursor, reads ahead"}


def section_drain(b):
    n, queue_n = b.backlog, b.backlog // 5
    db = backlog(b, n)

    def skip_locked():
        script(b, db, QUEUE.format(rows=queue_n))
        at_peace(b)
        return bare(b, db, "skip-locked", queue_n)()

    def unnumbered():
        fill(b, fresh_db(b, "unnumbered"), queue_n)
        at_peace(b)
        return handled(b, "unnumbered", queue_n)
    m = compete(b, {**{mode: bare(b, db, mode, n) for mode in CURSORS}, "ours": lambda: handled(b, db, n),
                    "relay": lambda: relayed(b, db, n), "first": unnumbered, "queue": skip_locked})
    b.row("ours, to nowhere", median(m["ours"], "rate"), "events/s")
    top = max(CURSORS, key=lambda mode: median(m[mode], "rate"))  # the ceiling
    for mode, label in CURSORS.items():
        share = ratio(m["ours"], m[mode], "rate")
        b.row(label, median(m[mode], "rate"), "events/s", "ours / bare", share, ">= 0.70" if mode == top else "",
              share >= 0.70 if mode == top else None)
    times = ratio(m["ours"], m["queue"], "rate")
    b.row("bare SKIP LOCKED claims", median(m["queue"], "rate"), "events/s", "ours / bare", times, ">= 5", times >= 5)
    b.row("ours, seq given on the way", median(m["first"], "rate"), "events/s", "of SKIP LOCKED",
          ratio(m["first"], m["queue"], "rate"))
    b.row("relay to file:/dev/null", median(m["relay"], "rate"), "events/s", "of the cursor",
          ratio(m["relay"], m[top], "rate"))
    for name, label in (("ours", "ours"), (top, "bare cursor"), ("first", "seq on the way"), ("queue", "SKIP LOCKED")):
        b.row(f"processor time, {label}", median(m[name], "cpu_us"), "us/event", "server us",
              median(m[name], "server_us"))
    drop_db(b, "unnumbered")


def section_consumers(b):
    n = b.backlog // 2
    db = backlog(b, n)
    m = compete(b, {"one": lambda: handled(b, db, n), "ten": lambda: handled(b, db, n, consumers=10)})
    b.row("one consumer", median(m["one"], "rate"), "deliveries/s")
    times = ratio(m["ten"], m["one"], "rate")
    b.row("ten at once, together", median(m["ten"], "rate"), "deliveries/s", "ten / one", times, ">= 1.00", times >= 1)


def section_kept(b):
    """More events for a consumer that has delivered many times as many, which are still kept."""
    n, old = b.backlog // 10, b.backlog
    kept = fresh_db(b, "kept")
    fill(b, kept, old)
    handled(b, kept, old, name="old")

    def more(db_of):
        def run():
            db = db_of()
            fill(b, db, n)
            at_peace(b)
            return handled(b, db, n, name="old")
        return run
    m = compete(b, {"fresh": more(lambda: fresh_db(b, "fresh")), "kept": more(lambda: kept)}, 3)
    drop_db(b, "kept", "fresh")
    share = ratio(m["kept"], m["fresh"], "rate")
    b.row("drain, nothing kept", median(m["fresh"], "rate"), "events/s")
    b.row(f"drain, {old:,} delivered ones kept", median(m["kept"], "rate"), "events/s", "of fresh", share, ">= 0.90",
          share >= 0.90)


@contextlib.contextmanager
def held_open(b, db):
    """A transaction with a snapshot, which keeps the server from cleaning up, and with a row that it has written."""
    sql(b, db, "CREATE TABLE bench_held (n INT) ENGINE = InnoDB")
    argv = [CLIENT, "--no-defaults", f"--socket={server(b).socket}", "--user=root", "-N", "-B", "-n", db]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("START TRANSACTION WITH CONSISTENT SNAPSHOT; INSERT INTO bench_held VALUES (1); SELECT 42;\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "42": sys.exit("no transaction to hold open")
        yield
        process.communicate("COMMIT;\n")


def section_held(b):
    """Chunks of events, alternating with one drained in small batches, so that positions move often."""
    chunk, small, chunks = b.backlog // 10, b.backlog // 100, 6 if b.quick else 10
    dbs = [fresh_db(b, "fresh"), fresh_db(b, "held")]
    found = {db: [] for db in dbs}

    def drain(db, events, batch):
        fill(b, db, events)
        return handled(b, db, events, batch=batch, name="bench")
    with held_open(b, "held"):
        for _ in range(chunks):
            for db in dbs: found[db].append(drain(db, chunk, 0))
            for db in dbs: found[db][-1]["churn"] = drain(db, small, 10)["rate"]
    for key, label in (("rate", "large batches"), ("churn", "batches of 10")):
        for part, name in ((slice(0, 3), "first"), (slice(-3, None), "last")):
            share = ratio(found["held"][part], found["fresh"][part], key)
            b.row(f"{name} chunks, {label}, held open", median(found["held"][part], key), "events/s", "of fresh", share,
                  ">= 0.90", share >= 0.90)
    drop_db(b, *dbs)


# ---- emitting ----

def emitted(b, db, mode, producers, n):
    return lambda: measured(b, lambda: program(b, "my_emit", "-d", url_of(b, db), "-m", mode, "-n", n, "-j", producers,
                                               "-s", PAYLOAD, "-k", KEYS))


WAYS = {"marked": "and a marker, by hand", "insert": "INSERT INTO outbox_event", "call": "CALL outbox_emit()",
        "emit": "outbox_emit() of the library"}


def section_emit(b):
    db = fresh_db(b, "emit")
    for producers, n in ((1, 1_500), (16, 8_000)) if b.quick else ((1, 5_000), (16, 30_000)):
        m = compete(b, {mode: emitted(b, db, mode, producers, n) for mode in ("bare", *WAYS)})
        b.row(f"bare INSERT, {producers} producers", median(m["bare"], "rate"), "events/s", "p50 us", median(m["bare"], "p50_us"))
        for mode, label in WAYS.items():
            share = ratio(m[mode], m["bare"], "rate")
            wanted = mode != "marked"
            b.row(f"  {label}", median(m[mode], "rate"), "events/s", "of bare", share, ">= 0.80" if wanted else "",
                  share >= 0.80 if wanted else None)
        for mode in ("bare", "marked", "insert", "emit"):
            b.row(f"  server's time, {mode}", median(m[mode], "server_us"), "us/event", "p50 us", median(m[mode], "p50_us"))
    drop_db(b, db)


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
    sql(b, db, "CALL outbox_emit('order.changed', 'order', '1', '{}')")
    return db, out, consumer


def section_wakeup(b):
    """200 events a second, 0 to 10 ms apart; and one a second, each noticed after a pause."""
    db, out, consumer = at_rest(b, "wakeup")
    with Relay(b, url_of(b, db), *consumer_args(consumer, out)):
        await_delivered(b, db, consumer, 1)
        found = program(b, "wakeup", url_of(b, db), out, 400 if b.quick else 4_000, 0, 10_000)
        wakeup_rows(b, found)
        p50 = found["returned"]["p50_us"] / 1e3
        b.row("commit -> line readable, p50", p50, "ms", "", None, "< 5", p50 < 5)
        seldom = program(b, "wakeup", url_of(b, db), out, 4 if b.quick else 20, 900_000, 1_100_000)["returned"]
        b.row("  one event a second, p50", seldom["p50_us"] / 1e3, "ms")
        b.row("  one event a second, max", seldom["max_us"] / 1e3, "ms")
    remove(out)
    drop_db(b, db)


def section_idle(b):
    seconds = 10 if b.quick else 30
    db, out, consumer = at_rest(b, "idle")
    before = server_cpu(b)
    time.sleep(seconds)
    alone = (server_cpu(b) - before) / seconds
    with Relay(b, url_of(b, db), *consumer_args(consumer, out)) as pid:
        await_delivered(b, db, consumer, 1)
        time.sleep(15)  # idle for so long that it polls at its lowest rate
        before, cpu = run_ns(pid), server_cpu(b)
        time.sleep(seconds)
        share, cpu = (run_ns(pid) - before) / seconds / 1e9, (server_cpu(b) - cpu) / seconds
    remove(out)
    drop_db(b, db)
    b.row(f"idle for {seconds} s, relay", share * 100, "%", "", None, "< 0.1", share < 0.001)
    b.row("  the whole server", cpu * 100, "%", "without a relay", alone * 100)
    b.row("  relay and what it costs the server", (share + cpu - alone) * 100, "%", "", None, "< 0.5",
          share + cpu - alone < 0.005)


SECTIONS = {"drain": section_drain, "consumers": section_consumers, "kept": section_kept, "held": section_held,
            "emit": section_emit, "memory": section_memory, "wakeup": section_wakeup, "idle": section_idle}


def facts(b):
    kind = subprocess.run(["stat", "-f", "-c", "%T", server(b).dir], capture_output=True, text=True).stdout.strip()
    return {"mariadb": re.match(r"[\d.]+", sql(b, "mysql", "SELECT VERSION()"))[0], "filesystem of MariaDB": kind}


def close(b):
    if hasattr(b, "mariadb"): b.mariadb.close()
