"""on_redis: draining to a Redis stream, from either store; the sections `redis` of bench/run."""
import pathlib
import sys

from harness import compete, median, outbox_argv, program, ratio, timed

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import servers  # noqa: E402

# Without the append-only file, and with it as most have it.
MODES = {"no AOF": {"appendonly": "no"}, "AOF everysec": {"appendonly": "yes", "appendfsync": "everysec"}}


def counted(redis, stream, events, run):
    """counted runs it, and sees to it that every event is in the stream; then that is emptied."""
    redis("DEL", stream)
    found = run()
    if redis("XLEN", stream) != events: sys.exit(f"{redis('XLEN', stream)} entries instead of {events}")
    redis("DEL", stream)
    return {**found, "rate": events / found["seconds"]}


def bare(b, redis, mode, source, events):
    return lambda: counted(redis, "bare", events, lambda: program(b, "redis_drain", mode, source, redis.socket, "bare"))


def ours(b, redis, url, events):
    """A relay, without the time it takes to start and to end: that is seen by running it again, with nothing to do."""
    def run():
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", redis.url("stream=ours"),
                           "--order", "key", "--batch", 1000)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return lambda: counted(redis, "ours", events, run)


def same_entries(b, redis, url, mode, source):
    """The ceiling must do the same work: what it adds is what the relay adds, but for the stream's name."""
    ours_argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", redis.url("stream=same"))
    timed(ours_argv)
    mine = sorted(fields[1] for _, fields in redis("XRANGE", "same", "-", "+"))
    redis("DEL", "same")
    program(b, "redis_drain", mode, source, redis.socket, "same")
    theirs = sorted(fields[1] for _, fields in redis("XRANGE", "same", "-", "+"))
    redis("DEL", "same")
    if mine != theirs: sys.exit(f"the bare loop adds other entries than the relay:\n{theirs[0]}\n{mine[0]}")


def section(b, url, mode, source, small, queue=None):
    n = b.backlog
    for label, settings in MODES.items():
        with servers.Redis(settings) as redis:
            same_entries(b, redis, small[0], mode, small[1])
            contenders = {"bare": bare(b, redis, mode, source, n), "ours": ours(b, redis, url, n)}
            if queue: contenders["queue"] = queue(redis)
            m = compete(b, contenders)
        share = ratio(m["ours"], m["bare"], "rate")
        b.row(f"relay to redis, {label}", median(m["ours"], "rate"), "events/s")
        b.row("bare loop, overlapped and pipelined", median(m["bare"], "rate"), "events/s", "ours / bare", share, ">= 0.75",
              share >= 0.75)
        if not queue: continue
        times = ratio(m["ours"], m["queue"], "rate")
        b.row("bare SKIP LOCKED claims", median(m["queue"], "rate"), "events/s", "ours / bare", times, ">= 5", times >= 5)
