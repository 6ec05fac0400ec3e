"""seed.py FOLDER: how the dumps beside this file were made, by the outbox whose version is in their names.

For each store: an outbox in which every table has rows and every state an event, dumped as SQL (VERSION.sqlite.sql,
VERSION.postgres.sql), and what a test must know of it (VERSION.STORE.json): all events, and by consumer those it had and
those it buried. Run it with a released binary ($OUTBOX_BIN) when a version is released; the dumps are kept for good.
"""
import json
import pathlib
import sqlite3
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import Case, PgCase, read_ndjson, wait_until  # noqa: E402

FOLDER = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".")
VERSION = "0.1.0"


def key(n): return f"order/{n % 8}"


class Seed:
    def seed(self):
        self.outbox("init")
        self.emit_many({"type": ("order.created", "order.paid", "stock.low")[n % 3], "aggregate_type": "order",
                        "aggregate_id": str(n % 8), "payload": {"n": n, "by": "card" if n % 2 else "post", "text": "ä\u2028\n\\"}}
                       for n in range(60))
        self.emit("order.paid", "order/1", {"n": 60}, "--idempotency-key", "once", "--header", "traceparent=00-1-2-3",
                  "--version", "7")
        self.emit("order.paid", None, {"n": 61})
        self.emit("order.paid", "order/3", {"n": 62}, "--delay", "1h")
        out = {name: self.path(f"{name}.ndjson") for name in ("done", "lanes", "global", "some", "paused")}
        deliver = lambda name, *more: self.drain("--consumer", name, "--sink", f"file:{out[name]}", *more)
        deliver("done", "--receipts")
        deliver("lanes", "--lanes", "4")
        deliver("global", "--order", "global")
        deliver("some", "--events", "order.*", "--where", 'by = "card"')
        deliver("paused")
        self.outbox("consumers", "pause", "paused")
        # Fails for keys 2 and 3, refuses key 4, takes the rest.
        self.path("flaky.ndjson").touch()
        flaky = self.relay("--consumer", "flaky", "--retry", "base=1h,cap=1h,attempts=5", "--sink",
                           "exec:case $OUTBOX_AGGREGATE_ID in 2|3) echo no >&2; exit 1;; 4) echo never >&2; exit 65;; esac;"
                           f" (flock 9; cat >&9; echo >&9) 9>>{self.path('flaky.ndjson')}")
        wait_until(lambda: "done" and [c for c in self.json("consumers", "list") if c["name"] == "flaky"][0]["behind"] == 0)
        wait_until(lambda: len(self.json("dead", "list", "--consumer", "flaky")) >= 7)
        flaky.stop()
        sent_back = self.json("dead", "list", "--consumer", "flaky")[0]["id"]
        self.outbox("dead", "retry", sent_back, "--consumer", "flaky")
        # More, which nobody had yet; one worker dies with claims in its hands.
        self.emit_many({"type": "order.paid", "aggregate_type": "order", "aggregate_id": str(n % 8), "payload": {"n": n, "by": "card"}}
                       for n in range(63, 90))
        killed = self.relay("--consumer", "killed", "--batch", "20", "--concurrency", "2", "--sink",
                            f"exec:(flock 9; cat >&9; echo >&9) 9>>{self.path('killed.ndjson')}; "
                            f"[ $OUTBOX_SEQ -lt 30 ] || sleep 600")
        wait_until(lambda: any(e["seq"] >= 30 for e in read_ndjson_loose(self.path("killed.ndjson"))))
        killed.kill()
        delivered = {name: [e["id"] for e in read_ndjson(path)] for name, path in out.items()}
        for name in ("flaky", "killed"): delivered[name] = [e["id"] for e in read_ndjson_loose(self.path(f"{name}.ndjson"))]
        self.extra()
        return {
            "events": [{"id": e["id"], "seq": e["seq"], "type": e["type"], "by": e["payload"].get("by") if isinstance(e["payload"], dict) else None}
                       for e in sorted(self.json("events", "list", "--limit", "1000"), key=lambda e: e["seq"])],
            "delivered": delivered,
            "dead": {"flaky": [d["id"] for d in self.json("dead", "list", "--consumer", "flaky")]},
            "sent_back": sent_back,
        }


def read_ndjson_loose(path):
    try:
        return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines() if line.strip()]
    except FileNotFoundError:
        return []


class OnSqlite(Seed, Case):
    def extra(self):
        self.sql("INSERT INTO outbox_handled (handler, key, hash, at) VALUES ('ledger', 'a', 1, 1700000000000)")
        self.sql("INSERT INTO outbox_mark (stream, consumer, hi, lo, at) VALUES ('orders', 'done', 5, 1, 1700000000000)")

    def test_dump(self):
        known = self.seed()
        with sqlite3.connect(self.db) as db:
            FOLDER.joinpath(f"{VERSION}.sqlite.sql").write_text("\n".join(db.iterdump()) + "\n")
        FOLDER.joinpath(f"{VERSION}.sqlite.json").write_text(json.dumps(known, indent=1) + "\n")


class OnPostgres(Seed, PgCase):
    def extra(self):
        self.sql("SELECT outbox.handle_once('ledger', 'a', '{}')")
        self.sql("INSERT INTO outbox.mark VALUES ('orders', 'done', 5, 1, now())")
        self.sql("CREATE TABLE shop_outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)")
        self.outbox("adopt", "shop_outbox", "--shape", "debezium")

    def test_dump(self):
        known = self.seed()
        dump = subprocess.run(["pg_dump", "--no-owner", self.store], check=True, capture_output=True, text=True).stdout
        FOLDER.joinpath(f"{VERSION}.postgres.sql").write_text(dump)
        FOLDER.joinpath(f"{VERSION}.postgres.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    unittest.main()
