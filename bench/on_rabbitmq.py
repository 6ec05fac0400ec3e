"""on_rabbitmq: draining a SQLite outbox to RabbitMQ, a quorum queue with confirms; the section `rabbitmq` of bench/run. One
node, and with OUTBOX_TEST_CLUSTERS=1 also a cluster of three."""
import os
import pathlib
import sys

import own_tools
from harness import compete, median, outbox_argv, program, ratio, timed

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import broker_rabbitmq  # noqa: E402

WINDOW = 2048  # the sink's
TARGET = 0.75
TOOL = "rabbitmq-perf-test"


def counted(node, events, run):
    """Runs a contender on a new queue, and checks that every event is there once."""
    node.declare("bench", "bench")
    found = run()
    with node.channel() as ch: stored = ch.queue_declare("bench", passive=True).method.message_count
    node.delete("bench")
    if stored != events: sys.exit(f"{stored} messages instead of {events}")
    return {**found, "rate": events / found["seconds"]}


def bare(b, node, db, events):
    return lambda: counted(node, events, lambda: program(b, "rabbitmq_drain", db, str(node.port), "bench", "k", str(WINDOW)))


def ours(b, node, sink, url, events):
    """A relay, without its start and stop time, which a second run without events measures."""
    def run():
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--order", "key", "--batch", 1000, "--sink", sink)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return lambda: counted(node, events, run)


def tool(b, node, events):
    """RabbitMQ's own load tool, which reports its own rate."""
    run = lambda: {"seconds": events / own_tools.rabbitmq(node.port, "bench", "k", events, WINDOW)}
    return own_tools.contender(b, TOOL, lambda: counted(node, events, run))


def rows(b, node, sink, db, events, label):
    m = compete(b, {"bare": bare(b, node, db, events), "ours": ours(b, node, sink, f"sqlite:{db}", events),
                    **tool(b, node, events)})
    share = ratio(m["ours"], m["bare"], "rate")
    b.row(f"bare librabbitmq loop, {label}", median(m["bare"], "rate"), "events/s")
    b.row(f"relay to RabbitMQ, {label}", median(m["ours"], "rate"), "events/s", "ours / bare", share, f">= {TARGET}", share >= TARGET)
    own_tools.add_row(b, TOOL, m)


def section(b, db, events):
    with broker_rabbitmq.Rabbit() as node:
        rows(b, node, node.url("bench", "routing-key=k"), db, events, "quorum queue, one node")
    if not os.environ.get("OUTBOX_TEST_CLUSTERS"): return
    with broker_rabbitmq.Cluster(3) as cluster:
        rows(b, cluster.nodes[0], cluster.url("bench", "routing-key=k"), db, events, "quorum queue, three nodes")
