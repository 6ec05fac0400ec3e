"""Shared by the isolation tests: sessions on an outbox in PostgreSQL that a test steps one statement at a time.

    class Late(Exact):
        def test_late_commit_is_handed_out(self):
            self.register("c")
            writer = self.session()
            writer.do("BEGIN")
            seq = writer.emit("order/1")
            self.assertEqual(self.take("c"), [])
            writer.do("COMMIT")
            self.assertEqual(self.take("c"), [seq])
"""
import json

import psycopg2

from support import PgCase, servers


def request(**fields):
    """request returns what a relay asks _turn for, for json_populate_record on top of _no_request: ten events, and these fields."""
    return json.dumps({"max_events": 10, "lease_ms": 60000, "max_attempts": 5, "suspect_policy": 2, "parked_first": True, "known": [],
                       **fields})


class Session:
    """One connection. It begins and commits only by do()."""

    def __init__(self, url, schema="outbox"):
        self.db = psycopg2.connect(url)
        self.db.autocommit = True
        self.cursor = self.db.cursor()
        self.name, self.schema = schema, servers.quoted(schema)

    def do(self, statement, *params):
        """do runs a statement and returns its rows; @ is replaced by the schema. A statement that locks all tables of an outbox
        in use, in its own order, may become the victim of a deadlock: it is retried, as an operator would do."""
        schema = self.schema.replace("%", "%%") if params else self.schema
        by_itself = self.db.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE
        while True:
            try:
                self.cursor.execute(statement.replace("@", schema), params or None)
                break
            except psycopg2.errors.DeadlockDetected:
                if not by_itself or not statement.startswith(("TRUNCATE", "DROP SCHEMA")): raise
        return self.cursor.fetchall() if self.cursor.description else []

    def force(self, statement, *params):
        """force is do for statements that change or delete events, which are insert-only."""
        self.cursor.execute("SET outbox.change_events = 'on'")
        rows = self.do(statement, *params)
        self.cursor.execute("RESET outbox.change_events")
        return rows

    def emit(self, key=None, type="t.e", payload="{}"):
        """emit inserts an event, with a key as "aggregate/id", and returns its seq."""
        aggregate, _, name = key.partition("/") if key else (None, None, None)
        return self.do("INSERT INTO @.event (type, aggregate_type, aggregate_id, payload) VALUES "
                       "(%s, %s, %s, %s) RETURNING seq", type, aggregate, name, payload)[0][0]

    def claim(self, consumer, worker="w", max_events=100, lease_ms=3600000, max_attempts=5):
        """claim returns (epoch, [(seq, type, key, held)]); (None, []) if no event can be claimed."""
        rows = self.do("SELECT epoch, seq, type, aggregate_type, aggregate_id, held FROM @.claim"
                       "(%s, %s, %s, %s, %s)", consumer, worker, max_events, lease_ms, max_attempts)
        key = lambda r: None if r[3] is None else f"{r[3]}/{r[4]}"
        return (rows[0][0] if rows else None), [(r[1], r[2], key(r), r[5]) for r in rows]

    def settle(self, consumer, epoch, worker="w", outcomes=(), release_from=0):
        return self.do("SELECT @.settle(%s, %s, %s, %s, %s)", consumer, worker, epoch,
                       json.dumps(list(outcomes)), release_from)[0][0]

    def take(self, consumer, worker="w", max_events=100):
        """take claims, settles everything as delivered, and returns the seqs."""
        epoch, events = self.claim(consumer, worker, max_events)
        if epoch is not None and not self.settle(consumer, epoch, worker): raise AssertionError("the claim was lost")
        return [event[0] for event in events]

    def drain(self, consumer, worker="w", max_events=100):
        """drain repeats take until no event is left."""
        seqs = []
        while batch := self.take(consumer, worker, max_events): seqs += batch
        return seqs

    def close(self):
        self.db.close()


class Exact(PgCase):
    """A PgCase with an outbox in it, and sessions that end with the test. self.reader is one of them."""

    def setUp(self):
        super().setUp()
        self.init()
        self.reader = self.session()

    def session(self, url=None, schema="outbox"):
        session = Session(url or self.store, schema)
        self.addCleanup(session.close)
        return session

    def register(self, consumer, events="", ordering="key", lanes=1, start_at="beginning", session=None):
        return (session or self.reader).do(
            "SELECT @.register(%s, %s, '', %s, %s, 'fast', %s)", consumer, events, ordering, lanes, start_at)[0][0]

    def take(self, consumer, **kw):
        return self.reader.take(consumer, **kw)

    def drain_all(self, consumer, **kw):
        return self.reader.drain(consumer, **kw)


class ExactAlone(Exact):
    """An Exact on a server with these settings that only the cases of the class use."""
    settings = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.postgres = servers.Postgres(cls.settings)
        cls.addClassCleanup(cls.postgres.close)
        cls.postgres.start()

    def init(self):
        if self._store is None:
            self.store = self.postgres.create_database(self.dbname)
            self.addCleanup(servers.drop_database, self.postgres.url(""), self.dbname)
        return super().init()
