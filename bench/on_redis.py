"""on_redis: draining to a Redis stream, from either store; the sections `redis` of bench/run."""
import pathlib
import sys

import own_tools
from harness import compete, median, outbox_argv, program, ratio, timed

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import broker_redis  # noqa: E402
import servers  # noqa: E402

TOOL = "redis-benchmark"
# Without the append-only file, and with its usual settings.
STREAMS = 48  # of a cluster
MODES = {"no AOF": {"appendonly": "no"}, "AOF everysec": {"appendonly": "yes", "appendfsync": "everysec"}}


def counted(redis, stream, events, run):
    """Runs a contender, checks that every event is in the stream, and empties the stream."""
    redis("DEL", stream)
    found = run()
    if redis("XLEN", stream) != events: sys.exit(f"{redis('XLEN', stream)} entries instead of {events}")
    redis("DEL", stream)
    return {**found, "rate": events / found["seconds"]}


def bare(b, redis, mode, source, events):
    return lambda: counted(redis, "bare", events, lambda: program(b, "redis_drain", mode, source, redis.socket, "bare"))


def ours(b, redis, url, events):
    """A relay, without its start and stop time, which a second run without events measures."""
    def run():
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", redis.url("stream=ours"),
                           "--order", "key", "--batch", 1000)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return lambda: counted(redis, "ours", events, run)


def same_entries(b, redis, url, mode, source):
    """The ceiling must do the same work: it adds the same entries as the relay, except for the stream's name."""
    ours_argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", redis.url("stream=same"))
    timed(ours_argv)
    mine = sorted(fields[1] for _, fields in redis("XRANGE", "same", "-", "+"))
    redis("DEL", "same")
    program(b, "redis_drain", mode, source, redis.socket, "same")
    theirs = sorted(fields[1] for _, fields in redis("XRANGE", "same", "-", "+"))
    redis("DEL", "same")
    if mine != theirs: sys.exit(f"the bare loop adds other entries than the relay:\n{theirs[0]}\n{mine[0]}")


def cluster_total(cluster):
    return sum(node("EVAL", "local n=0 for _,k in ipairs(redis.call('KEYS','*')) do n=n+redis.call('XLEN',k) end return n", 0)
               for node in cluster.masters())


def on_cluster(cluster, events, run):
    """Runs a contender, and checks that every event is in one of the streams."""
    for node in cluster.masters(): node("FLUSHALL")
    found = run()
    if cluster_total(cluster) != events: sys.exit(f"{cluster_total(cluster)} entries instead of {events}")
    return {**found, "rate": events / found["seconds"]}


def cluster_section(b, url):
    """Three masters without replicas, which keep two cores busy. A stream for each kind of aggregate, so that all masters have
    work; and the cost of dedupe=on."""
    n = b.backlog

    def relay(more):
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink",
                           cluster.url("stream=s.{aggregate_type}" + more), "--order", "key", "--batch", 1000)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    with broker_redis.Cluster(3, replicas=0, settings={"appendonly": "no"}) as cluster:
        ports = ",".join(str(node.port) for _, _, node in sorted(cluster.slots(), key=lambda slot: slot[0]))
        m = compete(b, {"bare": lambda: on_cluster(cluster, n, lambda: program(b, "redis_drain", "postgres", url, ports, "s.")),
                        "ours": lambda: on_cluster(cluster, n, lambda: relay("")),
                        "once": lambda: on_cluster(cluster, n, lambda: relay("&dedupe=on")),
                        **cluster_tool(b, cluster, n)})
    share = ratio(m["ours"], m["bare"], "rate")
    b.row("relay to a redis cluster of three", median(m["ours"], "rate"), "events/s")
    b.row("bare loop, overlapped and pipelined", median(m["bare"], "rate"), "events/s", "ours / bare", share, ">= 0.75", share >= 0.75)
    own_tools.add_row(b, TOOL, m)
    b.row("dedupe=on", median(m["once"], "rate"), "events/s", "on / off", ratio(m["once"], m["ours"], "rate"))


def tool(b, redis, events):
    """Redis' own load tool, which reports its own rate."""
    run = lambda: {"seconds": events / own_tools.redis(["-s", redis.socket], events, "tool")}
    return own_tools.contender(b, TOOL, lambda: counted(redis, "tool", events, run))


def cluster_tool(b, cluster, events):
    """The same with a connection to each server; it adds hash tags to the names, so that each gets the same load."""
    where = ["--cluster", "-h", "127.0.0.1", "-p", cluster.masters()[0].port]
    run = lambda: {"seconds": events / own_tools.redis(where, events, "s.{tag}", len(cluster.masters()))}
    return own_tools.contender(b, TOOL, lambda: on_cluster(cluster, events, run))


def dedupe_rows(b, redis, url, n):
    """The cost of dedupe=on if all events go to one stream."""
    def relay(more):
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", redis.url("stream=ours" + more),
                           "--order", "key", "--batch", 1000)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    m = compete(b, {"off": lambda: counted(redis, "ours", n, lambda: relay("")),
                    "on": lambda: counted(redis, "ours", n, lambda: relay("&dedupe=on"))})
    b.row("one stream, dedupe=on", median(m["on"], "rate"), "events/s", "on / off", ratio(m["on"], m["off"], "rate"))


def section(b, url, mode, source, small, queue=None):
    n = b.backlog
    for label, settings in MODES.items():
        with servers.Redis(settings) as redis:
            same_entries(b, redis, small[0], mode, small[1])
            contenders = {"bare": bare(b, redis, mode, source, n), "ours": ours(b, redis, url, n), **tool(b, redis, n)}
            if queue: contenders["queue"] = queue(redis)
            m = compete(b, contenders)
        share = ratio(m["ours"], m["bare"], "rate")
        b.row(f"relay to redis, {label}", median(m["ours"], "rate"), "events/s")
        b.row("bare loop, overlapped and pipelined", median(m["bare"], "rate"), "events/s", "ours / bare", share, ">= 0.75",
              share >= 0.75)
        own_tools.add_row(b, TOOL, m)
        if label == "no AOF":
            with servers.Redis(settings) as redis: dedupe_rows(b, redis, url, n)
        if not queue: continue
        times = ratio(m["ours"], m["queue"], "rate")
        b.row("bare SKIP LOCKED claims", median(m["queue"], "rate"), "events/s", "ours / bare", times, ">= 5", times >= 5)
