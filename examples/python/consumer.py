#!/usr/bin/env python3
"""A consumer: adds the orders to their customers' revenue, each exactly once.

    python3 consumer.py [--drain]        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database

Start as many as you like. With --drain it ends when nothing is left to do; without, it waits for more.
"""
import os
import socket
import sys
import time
import uuid

import psycopg2
from psycopg2.extras import Json, NamedTupleCursor

CONSUMER = "revenue"
WORKER = f"{socket.gethostname()}/{uuid.uuid4()}"  # another one with every start
MAX_ATTEMPTS = 3
BACKOFF_MS = int(os.environ.get("BACKOFF_MS", "1000"))
POLL = 0.2  # seconds


def query(db, statement, *params):
    """query runs one statement in a transaction of its own."""
    with db, db.cursor() as sql:
        sql.execute(statement, params)
        return sql.fetchall()


def handle(db, ev):
    """handle takes effect for one event. That it did is recorded in the same transaction: should the event come again,
    because we died before we could settle it, handle_once says no."""
    with db, db.cursor() as sql:
        sql.execute("SELECT outbox.handle_once(%s, %s) AS first", (CONSUMER, ev.id))
        if not sql.fetchone().first: return
        sql.execute("INSERT INTO revenue AS r (customer, total) VALUES (%s, %s)"
                    " ON CONFLICT (customer) DO UPDATE SET total = r.total + excluded.total",
                    (ev.payload["customer"], ev.payload["total"]))


def failure(ev, error):
    """failure says what becomes of an event that could not be handled: it is tried again later, or never."""
    attempts = ev.attempts + 1
    print(f"event {ev.id}, attempt {attempts}: {error}", file=sys.stderr)
    if attempts >= MAX_ATTEMPTS: return {"kind": "dead", "attempts": attempts, "error": str(error)}
    delay = min(BACKOFF_MS * 2 ** ev.attempts, 300_000)
    return {"kind": "retry", "attempts": attempts, "delay_ms": delay, "error": str(error)}


def deliver(db, batch):
    """deliver handles a batch and gives the outcomes to settle it with: only what was *not* delivered."""
    outcomes, waiting = [], set()
    for ev in batch:
        key = (ev.aggregate_type, ev.aggregate_id) if ev.aggregate_id else ev.seq
        if ev.held or key in waiting:  # an earlier event of its key waits: order
            outcome = {"kind": "behind", "attempts": ev.attempts}
        elif ev.delayed:  # its time has not come
            outcome = {"kind": "delay", "attempts": ev.attempts}
        else:
            try:
                handle(db, ev)
                continue
            except Exception as error:
                outcome = failure(ev, error)
        if outcome["kind"] != "dead": waiting.add(key)
        outcomes.append({"seq": ev.seq, **outcome})
    return outcomes


def idle(db):
    """idle says whether nothing waits for a retry, for its time, or in another worker's hands."""
    return query(db, "SELECT parked + inflight AS n FROM outbox.consumer_status WHERE name = %s", CONSUMER)[0].n == 0


def main():
    drain = "--drain" in sys.argv[1:]
    db = psycopg2.connect(os.environ.get("DATABASE_URL", ""), cursor_factory=NamedTupleCursor)
    with db, db.cursor() as sql:
        sql.execute("CREATE TABLE IF NOT EXISTS revenue (customer text PRIMARY KEY, total bigint NOT NULL)")
    query(db, "SELECT outbox.register(%s, events => 'order.*')", CONSUMER)
    while True:
        # Committed before the first event is handled: until the lease is over (30 s), these are ours alone.
        batch = query(db, "SELECT * FROM outbox.claim(%s, %s, max_events => 100, lease_ms => 30000)", CONSUMER, WORKER)
        if batch:
            outcomes = Json(deliver(db, batch))
            ours = query(db, "SELECT outbox.settle(%s, %s, %s, %s) AS ours", CONSUMER, WORKER, batch[0].epoch, outcomes)
            if not ours[0].ours: print("the lease ran out: somebody else has the batch now", file=sys.stderr)
        elif drain and idle(db):
            break
        else:
            time.sleep(POLL)
    db.close()


if __name__ == "__main__":
    main()
