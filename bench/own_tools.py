"""own_tools: the brokers' own load tools, as a second ceiling beside our bare loops. They read no database and build no
envelope: they send the same bytes repeatedly, as fast as the broker accepts them.

Kafka's is in its jars, Redis' in Debian's redis-tools. RabbitMQ's comes from Maven Central (tools/pom.xml), into the cache
of the tests. That of NATS (`nats bench`) is written in Go, and is neither in Debian nor in Maven Central, so it is not used
here."""
import os
import pathlib
import re
import shutil
import subprocess

from harness import PAYLOAD, Undoable, median, ratio

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-tests"
SIZE = PAYLOAD + 100  # of a message: payload and headers, or the envelope


def rate_of(argv, words):
    """Runs a tool, and returns the rate per second: the last number that matches the group of `words`."""
    try:
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Undoable(e) from None
    found = re.findall(words, done.stdout)
    if done.returncode or not found: raise Undoable(f"{argv[0]}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return float(found[-1].replace(",", ""))


def kafka(hosts, topic, events, jars):
    """kafka-producer-perf-test, with the settings of the sink."""
    props = [f"bootstrap.servers={hosts}", "acks=all", "enable.idempotence=true", "linger.ms=5", "batch.size=1000000",
             "buffer.memory=67108864"]
    return rate_of(["java", "-Xmx256m", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
                    "--num-records", events, "--record-size", SIZE, "--throughput", -1, "--producer-props", *props],
                   r"records sent, ([\d.]+) records/sec")


def rabbitmq(port, exchange, key, events, window):
    """rabbitmq-perf-test: one producer, mandatory persistent messages with confirms."""
    return rate_of(["java", "-Xmx256m", "-cp", f"{perf_test()}/*", "com.rabbitmq.perf.PerfTest", "-h", f"amqp://127.0.0.1:{port}",
                    "-p", "-e", exchange, "-k", key, "-x", 1, "-y", 0, "-C", events, "-c", window, "-s", SIZE, "-f", "persistent",
                    "-f", "mandatory"], r"sending rate avg: ([\d,.]+) msg/s")


def perf_test():
    """Returns the folder with RabbitMQ's tool, which is downloaded once."""
    place = CACHE / "perf-test"
    if place.is_dir(): return place
    draft = CACHE / f"perf-test-draft.{os.getpid()}"
    argv = ["mvn", "-q", "-B", "-f", ROOT / "bench/tools/pom.xml", "dependency:copy-dependencies", "-DincludeScope=runtime",
            f"-DoutputDirectory={draft}"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
        if done.returncode: raise Undoable("rabbitmq-perf-test: mvn cannot get it from Maven Central")
        draft.rename(place)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Undoable(f"rabbitmq-perf-test: {e}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def redis(where, events, stream, clients=1):
    """redis-benchmark, with 1,000 commands in a row on each connection."""
    return rate_of(["redis-benchmark", *where, "-n", events, "-P", 1000, "-c", clients, "-q", "XADD", stream, "*", "event", "x" * SIZE],
                   r"([\d.]+) requests per second")


def add_row(b, name, m):
    """Compares the relay with the tool, if the tool could be run; m is the result of compete."""
    if "tool" not in m: return
    b.row(name, median(m["tool"], "rate"), "messages/s", "ours / it", ratio(m["ours"], m["tool"], "rate"))


def contender(b, name, run):
    """Returns {"tool": run} for compete, if a trial shows that the tool can be run."""
    try:
        run()
    except Undoable as e:
        b.cannot(name, e)
        return {}
    return {"tool": run}
