#!/usr/bin/env python3
"""A consumer: adds the orders to their customers' revenue, each exactly once.

    python3 consumer.py [--drain]        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database

Start as many as you like. With --drain it ends when no event is due; otherwise it waits for more. Delayed events are left until
they are due. It reconnects after a lost connection.
"""
import os
import socket
import sys
import time
import uuid

import psycopg2
from psycopg2.extras import Json, NamedTupleCursor

CONSUMER = "revenue"
WORKER = f"{socket.gethostname()}/{uuid.uuid4()}"  # a new one for every start
MAX_ATTEMPTS = 3
BACKOFF_MS = int(os.environ.get("BACKOFF_MS", "1000"))
POLL = 0.2  # seconds
RECONNECT = 0.5


class Database:
    """A connection that is reopened after a server restart or an administrator closed it. Everything done here may be
    repeated: after a lost answer to a claim its events return, and handle_once and settle return false the second time."""

    def __init__(self):
        self.connect()

    def connect(self):
        self.db = psycopg2.connect(os.environ.get("DATABASE_URL", ""), cursor_factory=NamedTupleCursor)

    def transaction(self, work):
        """Commits the work that `work` does with a cursor, and returns its result."""
        while True:
            try:
                with self.db, self.db.cursor() as sql:
                    return work(sql)
            except psycopg2.Error as error:
                if not self.lost(): raise
                self.connect_again(error)

    def lost(self):
        """Queries the server: the driver does not always know that a connection is closed."""
        try:
            with self.db, self.db.cursor() as sql:
                sql.execute("SELECT 1")
            return False
        except psycopg2.Error:
            return True

    def connect_again(self, error):
        print(f"lost the database: {described(error)}", file=sys.stderr)
        while True:
            time.sleep(RECONNECT)
            try:
                return self.connect()
            except psycopg2.OperationalError:
                continue

    def query(self, statement, *params):
        def work(sql):
            sql.execute(statement, params)
            return sql.fetchall()

        return self.transaction(work)


def described(error):
    """Includes the kind of error: a message alone ("'total'") may be meaningless."""
    return f"{type(error).__name__}: {str(error).strip()}"


def handle(db, ev):
    """Takes effect for one event, and records that in the same transaction: if the event is redelivered
    because we died before settling it, handle_once returns false."""
    def work(sql):
        sql.execute("SELECT outbox.handle_once(%s, %s) AS first", (CONSUMER, ev.inbox_key))
        if not sql.fetchone().first: return
        sql.execute("INSERT INTO revenue AS r (customer, total) VALUES (%s, %s)"
                    " ON CONFLICT (customer) DO UPDATE SET total = r.total + excluded.total",
                    (ev.payload["customer"], ev.payload["total"]))

    db.transaction(work)


def failure(ev, error):
    """Returns the outcome of an event that could not be handled: retried later, or never."""
    attempts = ev.attempts + 1
    print(f"event {ev.id}, attempt {attempts}: {described(error)}", file=sys.stderr)
    if attempts >= MAX_ATTEMPTS: return {"kind": "dead", "attempts": attempts, "error": described(error)}
    delay = min(BACKOFF_MS * 2 ** ev.attempts, 300_000)
    return {"kind": "retry", "attempts": attempts, "delay_ms": delay, "error": described(error)}


def deliver(db, batch):
    """Handles a batch and returns the outcomes for its settlement: only events that were *not* delivered."""
    outcomes, waiting = [], set()
    for ev in batch:
        key = (ev.aggregate_type, ev.aggregate_id) if ev.aggregate_id else ev.seq
        if ev.held or key in waiting:  # an earlier event of its key waits: keep the order
            outcome = {"kind": "behind", "attempts": ev.attempts}
        elif ev.delayed:  # not due yet
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
    """Returns whether no event is claimed or waits for a retry. Events that are not due yet do not count, nor those that
    wait behind one."""
    left = db.query("SELECT EXISTS (SELECT 1 FROM outbox.claim WHERE consumer = %s) OR EXISTS (SELECT 1 FROM outbox.parked"
                    " WHERE consumer = %s AND due_at IS NOT NULL AND (NOT delayed OR due_at <= now())) AS left", CONSUMER, CONSUMER)
    return not left[0].left


def main():
    drain = "--drain" in sys.argv[1:]
    db = Database()
    db.transaction(lambda sql: sql.execute(
        "CREATE TABLE IF NOT EXISTS revenue (customer text PRIMARY KEY, total bigint NOT NULL)"))
    db.query("SELECT outbox.register(%s, events => 'order.*')", CONSUMER)
    while True:
        # Committed before the first event is handled: until the lease is over (30 s), these are ours alone.
        batch = db.query("SELECT * FROM outbox.claim(%s, %s, max_events => 100, lease_ms => 30000)", CONSUMER, WORKER)
        if batch:
            outcomes = Json(deliver(db, batch))
            ours = db.query("SELECT outbox.settle(%s, %s, %s, %s) AS ours", CONSUMER, WORKER, batch[0].epoch, outcomes)
            if not ours[0].ours: print("already settled, or another worker took over after the lease expired", file=sys.stderr)
        elif drain and idle(db):
            break
        else:
            time.sleep(POLL)


if __name__ == "__main__":
    main()
