"""Shared by the tests of adopted tables: the table of a service that delivered by a single flag, on each store."""
import sqlite3

import psycopg2

from support import MariaCase, PgCase

SQLITE = """CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    processed_at TEXT
)"""
# Copied verbatim from the service.
POSTGRES = """CREATE TABLE outbox (
    id BIGSERIAL PRIMARY KEY,
    event_type TEXT NOT NULL,
    payload JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    processed_at TIMESTAMPTZ
)"""
MARIADB = """CREATE TABLE outbox (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    event_type VARCHAR(255) NOT NULL,
    payload JSON NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    processed_at TIMESTAMP NULL
) ENGINE = InnoDB"""


class FlagTable:
    """A mixin: rows of the flagged table are identified by the n of their payload."""

    def setUp(self):
        super().setUp()
        self.init()
        self.postgres = isinstance(self, PgCase)
        self.flagged, self.n = SQLITE, "json_extract(payload, '$.n')"
        if self.postgres: self.flagged, self.n = POSTGRES, "(payload ->> 'n')::int"
        if isinstance(self, MariaCase): self.flagged, self.n = MARIADB, "CAST(json_value(payload, '$.n') AS INT)"

    def drained(self, name="mail", *more):
        """drained drains a consumer and returns everything ever delivered to it."""
        out = self.path(f"{name}.ndjson")
        self.drain("--consumer", name, "--sink", f"file:{out}", *more)
        return self.ndjson(out)

    def numbers(self, name="mail", *more):
        return [event["payload"]["n"] for event in self.drained(name, *more)]

    def put(self, n, *, at=None, processed=None):
        columns = {"event_type": "message:created", "payload": '{"n": %d}' % n, "created_at": at, "processed_at": processed}
        given = {name: value for name, value in columns.items() if value is not None}
        self.ask(f"INSERT INTO outbox ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})", *given.values())

    def old_rows(self, n):
        """old_rows fills the table, newest times first so that order by id shows; every third row is processed."""
        self.sql(self.flagged)
        for i in range(1, n + 1):
            self.put(i, at=f"2024-04-{31 - i:02} 00:00:00", processed="2024-05-02 03:04:05" if i % 3 == 0 else None)

    def insert(self, *numbers):
        for n in numbers: self.put(n)

    def processed(self):
        return [n for n, in self.sql(f"SELECT {self.n} FROM outbox WHERE processed_at IS NOT NULL ORDER BY id")]

    def session(self):
        """session returns do(statement) on a separate connection, which begins and commits only when told to."""
        if self.postgres:
            db = psycopg2.connect(self.store)
            db.autocommit = True
        else:
            db = self.connect() if isinstance(self, MariaCase) else sqlite3.connect(self.db, isolation_level=None)
        self.addCleanup(db.close)
        return db.cursor().execute

    def triggers(self, table):
        """triggers counts the triggers of a table."""
        if self.postgres: return self.sql("SELECT count(*) FROM pg_trigger WHERE tgrelid = %s::regclass", table)[0][0]
        if isinstance(self, MariaCase):
            return self.sql("SELECT count(*) FROM information_schema.triggers WHERE event_object_schema = database() AND event_object_table = %s", table)[0][0]
        return self.sql("SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", table)[0][0]
