"""on_webhook: webhooks from SQLite to receivers on this machine, beside a bare loop of libcurl's."""
import re
import signal
import sqlite3
import subprocess
import sys
import time

from harness import PAYLOAD, Relay, compete, median, outbox_argv, program, ratio, timed, wait_until
from on_sqlite import backlog, url_of

IN_FLIGHT = 200


class Receiver:
    """`outbox webhook listen` on a free port: `with Receiver(...) as url`."""

    def __init__(self, b, *args):
        self.process = subprocess.Popen([b.build / "outbox", "webhook", "listen", "--port", "0", "--quiet", *args],
                                        stdout=subprocess.PIPE, text=True)
        self.url = re.search(r"(http\S+)", self.process.stdout.readline())[1] + "hook"

    def __enter__(self):
        return self.url

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


def to_webhook(b, db, url, *options):
    return outbox_argv(b, url_of(db), "relay", "--drain", "--consumer", b.name("hook"), "--sink", url,
                       "--concurrency", IN_FLIGHT, *options)


def at_once(b):
    n = 10_000 if b.quick else 50_000
    db = backlog(b, n)
    with Receiver(b) as url:
        def ours(*options):
            return lambda: {"rate": n / timed(to_webhook(b, db, url, *options))[0]}

        def bare():
            return {"rate": n / program(b, "bare_post", url, n, IN_FLIGHT, PAYLOAD)["seconds"]}
        secrets = b.path("secrets")
        secrets.write_text(subprocess.run([b.build / "outbox", "webhook", "secret"], check=True, capture_output=True,
                                          text=True).stdout)
        m = compete(b, {"bare": bare, "ours": ours(), "signed": ours("--webhook-secret-file", secrets)})
    share = ratio(m["ours"], m["bare"], "rate")
    b.row(f"webhooks, {IN_FLIGHT} in flight", median(m["ours"], "rate"), "events/s")
    b.row("bare curl-multi loop", median(m["bare"], "rate"), "requests/s", "relay / bare", share, ">= 0.60", share >= 0.60)
    b.row("webhooks, signed", median(m["signed"], "rate"), "events/s", "of bare", ratio(m["signed"], m["bare"], "rate"))


def slow(b):
    """A receiver that takes 200 ms: only the number in flight matters."""
    n = IN_FLIGHT * (25 if b.quick else 50)
    db, want = backlog(b, n), IN_FLIGHT / 0.2
    with Receiver(b, "--delay", "200ms") as url:
        m = compete(b, {"ours": lambda: {"rate": n / timed(to_webhook(b, db, url))[0]}}, 1 if b.quick else 3)
    share = median(m["ours"], "rate") / want
    b.row("a receiver that takes 200 ms", median(m["ours"], "rate"), "events/s", "of in flight/0.2", share, ">= 0.95",
          share >= 0.95)


def delivered(db, names):
    with sqlite3.connect(db, timeout=10) as c:
        rows = c.execute("SELECT name, delivered FROM outbox_consumer").fetchall()
    found = dict(rows)
    return [found.get(name, 0) for name in names]


def nine_of_ten(b, db, n, urls, dead):
    """Seconds until nine consumers have everything, with or without a tenth whose endpoint is dead."""
    names = [b.name("ten") for _ in urls]
    args = []
    for name, url in zip(names, urls): args += ["--consumer", name, "--sink", url, "--concurrency", "20"]
    if dead: args += ["--consumer", b.name("ten"), "--sink", "http://127.0.0.1:1/", "--concurrency", "20"]
    started = time.perf_counter()
    with Relay(b, url_of(db), *args):
        wait_until(lambda: all(count >= n for count in delivered(db, names)), "nine consumers' delivery")
        seconds = time.perf_counter() - started
    return {"rate": len(urls) * n / seconds}


def ten(b):
    n = 10_000 if b.quick else 20_000
    db = backlog(b, n)
    receivers = [Receiver(b) for _ in range(9)]
    try:
        urls = [r.url for r in receivers]
        m = compete(b, {"nine": lambda: nine_of_ten(b, db, n, urls, False),
                        "ten": lambda: nine_of_ten(b, db, n, urls, True)})
    finally:
        for r in receivers: r.__exit__()
    share = ratio(m["ten"], m["nine"], "rate")
    b.row("nine endpoints", median(m["nine"], "rate"), "events/s")
    b.row("the same beside a dead one", median(m["ten"], "rate"), "events/s", "of nine alone", share, ">= 0.95",
          share >= 0.95)


def section_webhook(b):
    if not (b.build / "bench/bare_post").exists(): sys.exit("webhook: built without libcurl")
    at_once(b)
    slow(b)
    ten(b)


SECTIONS = {"webhook": section_webhook}
