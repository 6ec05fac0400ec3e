"""on_nats: draining a SQLite outbox to NATS JetStream; the section `nats` of bench/run. One server, and with
OUTBOX_TEST_CLUSTERS=1 also a cluster of three."""
import os
import pathlib
import sys

from harness import compete, median, outbox_argv, program, ratio, timed

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import broker_nats  # noqa: E402

WINDOW = 1024
TARGET = 0.75


def counted(servers, replicas, events, run):
    """Runs a contender on a new stream, and checks that every event is there once."""
    servers.stream("B", subjects=["b"], num_replicas=replicas)
    found = run()
    stored = servers.api("STREAM.INFO.B")["state"]["messages"]
    servers.api("STREAM.DELETE.B")
    if stored != events: sys.exit(f"{stored} messages instead of {events}")
    return {**found, "rate": events / found["seconds"]}


def bare(b, servers, port, replicas, db, events):
    return lambda: counted(servers, replicas, events, lambda: program(b, "nats_drain", db, str(port), "B", "b", str(WINDOW)))


def ours(b, servers, replicas, url, events, query):
    """A relay, without its start and stop time, which a second run without events measures."""
    def run():
        argv = outbox_argv(b, url, "relay", "--drain", "--consumer", b.name("bench"), "--order", "key", "--batch", 1000,
                           "--sink", servers.url("b", f"stream=B&window={WINDOW}{query}"))
        seconds, cpu = timed(argv)
        idle, idle_cpu = timed(argv)
        return {"seconds": seconds - idle, "cpu": cpu - idle_cpu}
    return lambda: counted(servers, replicas, events, run)


def rows(b, servers, port, replicas, db, events, label):
    url = f"sqlite:{db}"
    m = compete(b, {"bare": bare(b, servers, port, replicas, db, events), "ours": ours(b, servers, replicas, url, events, ""),
                    "exclusive": ours(b, servers, replicas, url, events, "&exclusive=on")})
    b.row(f"bare libnats loop, {label}", median(m["bare"], "rate"), "events/s")
    for name, what in (("ours", "relay to NATS"), ("exclusive", "relay to NATS, exclusive=on")):
        share = ratio(m[name], m["bare"], "rate")
        b.row(f"{what}, {label}", median(m[name], "rate"), "events/s", "ours / bare", share, f">= {TARGET}", share >= TARGET)


def section(b, db, events):
    with broker_nats.Nats() as nats: rows(b, nats, nats.port, 1, db, events, "R1, file")
    if not os.environ.get("OUTBOX_TEST_CLUSTERS"): return
    with broker_nats.Cluster(3) as cluster: rows(b, cluster, cluster.nodes[0].port, 3, db, events, "R3, file")
