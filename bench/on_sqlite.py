"""on_sqlite: the sections of bench/run for the store in a SQLite file."""
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time

import on_kafka
import on_nats
import on_rabbitmq
import on_redis
from harness import (KEYS, PAYLOAD, Relay, compete, consumer_args, handler_rows, median, memory_rows, outbox, outbox_argv, peak_mib,
                     program, ratio, remove, run_ns, timed, wait_until, wakeup_rows)


def url_of(db):
    return f"sqlite:{db}"


def fresh_db(b, name):
    db = b.path(name)
    remove(db, f"{db}-wal", f"{db}-shm")
    outbox(b, url_of(db), "init")
    return db


def backlog(b, events, payload=PAYLOAD):
    """A database with that many events, made once and kept; every hundredth is an order.rare."""
    db = b.path(f"backlog-{events}-{payload}.db")
    if db.exists(): return db
    half = fresh_db(b, "half-made.db")
    program(b, "emit", "-d", half, "-m", "own", "-n", events, "-t", max(1, min(10_000, 10_000_000 // payload)),
            "-s", payload, "-k", KEYS, "-r", 100)
    os.replace(half, db)
    os.sync()
    return db


# ---- draining ----

def drained(b, db, argv_of, events):
    """A contender: argv_of(consumer, out) drains `events` events."""
    def run():
        consumer, out = b.name("bench"), b.path("out.ndjson")
        remove(out)
        seconds, cpu = timed(argv_of(consumer, out))
        lines = count_lines(out)
        remove(out)
        if lines != events: sys.exit(f"{argv_of(consumer, out)}: {lines} lines instead of {events}")
        return {"rate": events / seconds, "cpu_us": cpu / events * 1e6}
    return run


def count_lines(path):
    with open(path, "rb") as f:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: f.read(1 << 20), b""))


def ours(b, db, *options):
    return lambda consumer, out: outbox_argv(b, url_of(db), "relay", "--drain", *consumer_args(consumer, out, *options))


def bare(b, db, *options):
    return lambda consumer, out: [str(b.build / "bench/bare_drain"), str(db), str(out), consumer, *options]


def same_bytes(b, db):
    """The ceiling must do the same work: its file is the relay's, byte for byte."""
    a, c = b.path("ours.ndjson"), b.path("bare.ndjson")
    remove(a, c)
    timed(ours(b, db)("same", a))
    timed(bare(b, db)("same", c))
    if subprocess.run(["cmp", "-s", a, c]).returncode != 0: sys.exit("the bare loop writes other lines than the relay")
    remove(a, c)


def section_drain(b):
    db, n = backlog(b, b.backlog), b.backlog
    same_bytes(b, backlog(b, 10_000))
    m = compete(b, {"bare": drained(b, db, bare(b, db), n), "ours": drained(b, db, ours(b, db), n),
                    "no position": drained(b, db, bare(b, db, "--no-position"), n)})
    b.row("relay to file:", median(m["ours"], "rate"), "events/s")
    share = ratio(m["ours"], m["bare"], "rate")
    b.row("bare loop", median(m["bare"], "rate"), "events/s", "relay / bare", share, ">= 0.70", share >= 0.70)
    b.row("bare loop, no position", median(m["no position"], "rate"), "events/s", "relay / bare",
          ratio(m["ours"], m["no position"], "rate"))
    best = {name: max(row["rate"] for row in m[name]) for name in m}
    b.row("relay, best round", best["ours"], "events/s", "of bare's best", best["ours"] / best["bare"])
    b.row("relay, processor time", median(m["ours"], "cpu_us"), "us/event", "bare / relay",
          ratio(m["bare"], m["ours"], "cpu_us"))


def section_orders(b):
    db, n = backlog(b, b.backlog), b.backlog
    contenders = {"bare loop": drained(b, db, bare(b, db), n)}
    for order, lanes in (("none", 1), ("none", 4), ("key", 1), ("key", 4), ("global", 1)):
        contenders[f"order {order}, lanes {lanes}"] = \
            drained(b, db, ours(b, db, "--order", order, "--lanes", str(lanes)), n)
    m = compete(b, contenders)
    for name in contenders:
        b.row(name, median(m[name], "rate"), "events/s", "of bare", ratio(m[name], m["bare loop"], "rate"))


def section_filter(b):
    db, n = backlog(b, b.backlog), b.backlog
    rare = n // 100
    m = compete(b, {"--events": drained(b, db, ours(b, db, "--events", "order.rare"), rare),
                    "--where": drained(b, db, ours(b, db, "--where", "group = 7"), rare)})
    for name in m: b.row(f"{name} that 1 % match", median(m[name], "rate") * n / rare, "looked at/s")


def section_consumers(b):
    db, n = backlog(b, b.backlog), b.backlog

    def two():
        outs = [b.path("out-1.ndjson"), b.path("out-2.ndjson")]
        remove(*outs)
        args = [arg for out in outs for arg in consumer_args(b.name("bench"), out)]
        seconds, _ = timed(outbox_argv(b, url_of(db), "relay", "--drain", *args))
        if any(count_lines(out) != n for out in outs): sys.exit("two consumers: lines are missing")
        remove(*outs)
        return {"rate": 2 * n / seconds}
    m = compete(b, {"one": drained(b, db, ours(b, db), n), "two": two})
    b.row("one consumer", median(m["one"], "rate"), "deliveries/s")
    b.row("two at once, together", median(m["two"], "rate"), "deliveries/s", "of one",
          ratio(m["two"], m["one"], "rate"))


# ---- emitting ----

def emitted(b, name, mode, n, per_tx):
    def run():
        found = program(b, name, "-d", fresh_db(b, "emit.db"), "-m", mode, "-n", n, "-t", per_tx, "-s", PAYLOAD,
                        "-k", KEYS)
        found["each_us"] = found["seconds"] / n * 1e6
        found["cpu_us"] = found["cpu"] / n * 1e6
        return found
    return run


def section_emit(b):
    """Many short rounds, because single syncs differ so much; long enough for the log to be checkpointed."""
    n, rounds = (400, 5) if b.quick else (1_000, 4 * b.rounds)
    for title, mode, count, per_tx in (("own transaction", "own", n, 0), ("in the caller's", "caller", n, 1),
                                       ("in the caller's, 100 each", "caller", 10 * n, 100)):
        m = compete(b, {"plain": emitted(b, "bare_emit", "plain", count, per_tx),
                        "ours": emitted(b, "emit", mode, count, per_tx),
                        "same": emitted(b, "bare_emit", "same", count, per_tx)}, rounds)
        limit = 1.10 if per_tx == 0 else None
        b.row(f"emit, {title}", median(m["ours"], "each_us"), "us")
        for name, label in (("plain", "a plain table"), ("same", "outbox_event")):
            times = ratio(m["ours"], m[name], "each_us")
            b.row(f"  bare INSERT into {label}", median(m[name], "each_us"), "us", "emit / bare", times,
                  f"<= {limit:.2f}" if limit else "", times <= limit if limit else None)
        for label, key in (("median transaction", "p50_us"), ("processor time per event", "cpu_us")):
            b.row(f"  {label}", median(m["ours"], key), "us", "emit / plain", ratio(m["ours"], m["plain"], key))


def delivered(db, consumer):
    with sqlite3.connect(db, timeout=10) as c:
        row = c.execute("SELECT delivered FROM outbox_consumer WHERE name = ?", (consumer,)).fetchone()
    return row[0] if row else 0


def await_delivered(db, consumer, n):
    wait_until(lambda: delivered(db, consumer) >= n, f"{consumer}'s delivery of {n} events")


def section_draining(b):
    n = 100 if b.quick else 1_000
    source = backlog(b, b.backlog)
    db, out = b.path("draining.db"), b.path("out.ndjson")

    def while_draining(name, mode):
        def run():
            consumer = b.name("bench")
            remove(out)
            with Relay(b, url_of(db), *consumer_args(consumer, out)):
                await_delivered(db, consumer, 1)
                found = program(b, name, "-d", db, "-m", mode, "-n", n, "-s", PAYLOAD)
                still = delivered(db, consumer) < b.backlog
            if not still: print("draining: the backlog was too short for the emits", file=sys.stderr)
            return {key: found[key] for key in ("p50_us", "p99_us", "max_us")}
        return run
    shutil.copyfile(source, db)
    m = compete(b, {"bare": while_draining("bare_emit", "plain"), "ours": while_draining("emit", "own")})
    remove(db, out)
    for key in ("p50_us", "p99_us", "max_us"):
        b.row(f"emit while a relay drains, {key[:3]}", median(m["ours"], key), "us", "emit / bare",
              ratio(m["ours"], m["bare"], key))


# ---- memory, wake-up, idle ----

def peak(b, events, payload):
    """Peak memory of a relay, in MiB, after it has drained that many events."""
    db, out, consumer = backlog(b, events, payload), b.path("out.ndjson"), b.name("bench")
    remove(out)
    with Relay(b, url_of(db), *consumer_args(consumer, out), "--max-payload", "64MiB") as pid:
        await_delivered(db, consumer, events)
        mib = peak_mib(pid)
    remove(out)
    return mib


def section_memory(b):
    memory_rows(b, peak)


def section_wakeup(b):
    n = 200 if b.quick else 2_000
    db, out, consumer = fresh_db(b, "wakeup.db"), b.path("out.ndjson"), b.name("bench")
    remove(out)
    program(b, "emit", "-d", db, "-m", "own", "-n", 1)
    with Relay(b, url_of(db), *consumer_args(consumer, out)):
        await_delivered(db, consumer, 1)
        found = program(b, "wakeup", url_of(db), out, n)
    wakeup_rows(b, found)


def section_idle(b):
    seconds = 3 if b.quick else 10
    db, out, consumer = fresh_db(b, "idle.db"), b.path("out.ndjson"), b.name("bench")
    program(b, "emit", "-d", db, "-m", "own", "-n", 1)
    with Relay(b, url_of(db), *consumer_args(consumer, out)) as pid:
        await_delivered(db, consumer, 1)
        time.sleep(1)  # let it become idle after our last query
        before = run_ns(pid)
        time.sleep(seconds)
        share = (run_ns(pid) - before) / seconds / 1e9
        calls = system_calls(pid, seconds) if shutil.which("strace") else None
        before = run_ns(pid)
        program(b, "emit", "-d", db, "-m", "own", "-n", 1)
        await_delivered(db, consumer, 2)
        if run_ns(pid) == before: sys.exit("this kernel does not count processor time in schedstat")
    b.row(f"idle for {seconds} s, processor", share * 100, "%", "", None, "< 0.1", share < 0.001)
    if calls is not None: b.row(f"idle for {seconds} s, system calls", calls, "calls", "", None, "0 reads", calls < 10)


def system_calls(pid, seconds):
    """The number of system calls that begin within so many seconds, without those interrupted by attaching."""
    log = subprocess.run(["timeout", "-s", "INT", str(seconds), "strace", "-f", "-qq", "-p", str(pid)],
                         capture_output=True, text=True).stderr
    if not any(word in log for word in ("<detached", "<unfinished")): sys.exit(f"strace saw nothing: {log.strip()}")
    waiting = ("restart_syscall", "<unfinished", "<detached", "strace:")
    return sum(1 for line in log.splitlines() if "(" in line and not any(word in line for word in waiting))


def section_redis(b):
    db, small = backlog(b, b.backlog), backlog(b, 10_000)
    on_redis.section(b, url_of(db), "sqlite", db, (url_of(small), small))


def section_kafka(b):
    db, small = backlog(b, b.backlog), backlog(b, 1_000)
    on_kafka.section(b, url_of(db), db, (url_of(small), small))


def section_nats(b):
    on_nats.section(b, backlog(b, b.backlog), b.backlog)


def section_rabbitmq(b):
    on_rabbitmq.section(b, backlog(b, b.backlog), b.backlog)


def section_handlers(b):
    db = backlog(b, 100_000)
    with contextlib.closing(sqlite3.connect(db)) as own:
        own.execute("DROP TABLE IF EXISTS bench_effect")
        own.execute("CREATE TABLE bench_effect (id INTEGER PRIMARY KEY, event TEXT NOT NULL, note TEXT NOT NULL)")
    handler_rows(b, url_of(db), lambda: None)


SECTIONS = {"drain": section_drain, "orders": section_orders, "filter": section_filter, "consumers": section_consumers,
            "emit": section_emit, "draining": section_draining, "memory": section_memory, "wakeup": section_wakeup,
            "idle": section_idle, "redis": section_redis, "kafka": section_kafka,
            "nats": section_nats, "rabbitmq": section_rabbitmq, "handlers": section_handlers}
