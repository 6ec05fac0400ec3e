"""on_kafka: draining to a topic of a real Kafka, acks=all, idempotent; the section `kafka` of bench/run."""
import itertools
import os
import pathlib
import sys
import time

import own_tools
from harness import compete, median, outbox_argv, program, ratio, timed

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))

PARTITIONS = 6
TOOL = "kafka-producer-perf-test"
names = (f"bench{n}" for n in itertools.count(1))


def counted(kafka, replicas, events, run):
    """Runs a contender on a new topic, checks that every event is there, and deletes the topic."""
    topic = kafka.create(next(names), PARTITIONS, replicas)
    time.sleep(1)  # until every broker knows of it
    found = run(topic)
    there = int(kafka.tool("count", topic))
    if there != events: sys.exit(f"{there} messages instead of {events}")
    kafka.delete(topic)
    return {**found, "rate": events / found["seconds"]}


def bare(b, kafka, replicas, db, events):
    return lambda: counted(kafka, replicas, events, lambda topic: program(b, "kafka_drain", db, kafka.hosts, topic))


def ours(b, kafka, replicas, url, events):
    """A relay, without its start and stop time, which a second run without events measures."""
    def run(topic):
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", f"kafka://{kafka.hosts}/{topic}",
                           "--order", "key", "--batch", 1000)
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return lambda: counted(kafka, replicas, events, run)


def tool(b, kafka, replicas, events, jars):
    """Kafka's own load tool, which reports its own rate."""
    run = lambda topic: {"seconds": events / own_tools.kafka(kafka.hosts, topic, events, jars)}
    return own_tools.contender(b, TOOL, lambda: counted(kafka, replicas, events, run))


def same_messages(b, kafka, url, db):
    """The ceiling must do the same work: it writes the same messages as the relay."""
    first, second = kafka.create(next(names), 1), kafka.create(next(names), 1)
    timed(outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--sink", f"kafka://{kafka.hosts}/{first}"))
    program(b, "kafka_drain", db, kafka.hosts, second)
    mine, theirs = kafka.read(first), kafka.read(second)
    if mine != theirs: sys.exit(f"the bare loop writes other messages than the relay:\n{theirs[0]}\n{mine[0]}")


def section(b, url, db, small):
    os.environ["OUTBOX_BIN"] = str(b.build / "outbox")
    import broker_kafka
    if why := broker_kafka.unavailable():
        print(f"kafka: {why}", file=sys.stderr)
        return
    makes = {"one broker": (broker_kafka.Kafka, 1), "three brokers, three replicas": (broker_kafka.Cluster, 3)}
    for label, (make, replicas) in makes.items():
        with make() as kafka:
            same_messages(b, kafka, *small)
            m = compete(b, {"bare": bare(b, kafka, replicas, db, b.backlog), "ours": ours(b, kafka, replicas, url, b.backlog),
                            **tool(b, kafka, replicas, b.backlog, broker_kafka.JARS)})
        share = ratio(m["ours"], m["bare"], "rate")
        b.row(f"relay to kafka, {label}", median(m["ours"], "rate"), "events/s")
        b.row("bare loop with librdkafka, overlapped", median(m["bare"], "rate"), "events/s", "ours / bare", share, ">= 0.75",
              share >= 0.75)
        own_tools.add_row(b, TOOL, m)
