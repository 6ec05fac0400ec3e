"""stores: the interface to a store for sections that run on both."""
import contextlib
import shutil
import sqlite3

import on_postgres
import on_sqlite

# Rows deleted for comparison: copies of all events, which nothing else reads.
PG_BARE_ROWS = """INSERT INTO bench_event (type, aggregate_type, aggregate_id, payload)
    SELECT type, aggregate_type, aggregate_id, payload FROM outbox.event;
VACUUM ANALYZE bench_event; CHECKPOINT"""
SQLITE_BARE_ROWS = """INSERT INTO bench_event SELECT seq, id, type, aggregate_type, aggregate_id, version, payload, headers,
    tenant, not_before, created_at FROM outbox_event"""
BARE_TABLE = """
DROP TABLE IF EXISTS bench_event;
CREATE TABLE bench_event (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, type TEXT NOT NULL,
    aggregate_type TEXT, aggregate_id TEXT, version INTEGER, payload TEXT NOT NULL, headers TEXT, tenant TEXT,
    not_before INTEGER, created_at INTEGER NOT NULL);
"""
# Of all consumers together.
DELIVERED = """SELECT coalesce(sum(l.delivered), 0) FROM outbox.consumer c
CROSS JOIN LATERAL outbox._lanes(c.name, c.lanes) l"""


class Postgres:
    name = "postgres"

    def __init__(self, b):
        self.b = b

    def fresh(self, name):
        return on_postgres.fresh_db(self.b, name)

    def drop(self, db):
        on_postgres.psql(self.b, "postgres", f"DROP DATABASE IF EXISTS {db} WITH (FORCE)")

    def backlog(self, events, payload=on_postgres.PAYLOAD):
        return on_postgres.backlog(self.b, events, payload)

    def filled(self, name, events):
        """A new database with that many events."""
        db = self.fresh(name)
        on_postgres.fill(self.b, db, events, per_tx=1_000)
        return db

    def copy(self, db, name):
        self.sql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE);\nCREATE DATABASE {name} TEMPLATE {db};")
        return name

    def held_open(self, db):
        return on_postgres.HeldOpen(self.b, db)

    def url(self, db):
        return on_postgres.url_of(self.b, db)

    def sql(self, db, text):
        return on_postgres.psql(self.b, db, text)

    def rest(self, db):
        self.sql(db, "CHECKPOINT")

    def bare_rows(self, db):
        self.clear_bare(db)
        self.sql(db, PG_BARE_ROWS)

    def clear_bare(self, db):
        self.sql(db, "TRUNCATE bench_notify; TRUNCATE bench_event")

    def delivered(self, db):
        return int(self.sql(db, DELIVERED))

    def cpu(self):
        return on_postgres.server_cpu(self.b)

    def connections(self, db):
        return int(self.sql(db, f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{db}' "
                                "AND application_name LIKE 'outbox%'"))


class Sqlite:
    """No server: all work is done by the relay."""
    name = "sqlite"

    def __init__(self, b):
        self.b = b

    def fresh(self, name):
        return on_sqlite.fresh_db(self.b, f"{name}.db")

    def drop(self, db):
        on_sqlite.remove(db, f"{db}-wal", f"{db}-shm")

    def backlog(self, events, payload=on_sqlite.PAYLOAD):
        return on_sqlite.backlog(self.b, events, payload)

    def filled(self, name, events):
        return self.copy(self.backlog(events), name)

    def copy(self, db, name):
        path = self.b.path(f"{name}.db")
        self.drop(path)
        shutil.copyfile(db, path)
        return path

    @contextlib.contextmanager
    def held_open(self, db):
        """A transaction that reads, and so keeps the log from being reset."""
        with contextlib.closing(sqlite3.connect(db, isolation_level=None)) as own:
            own.execute("BEGIN")
            own.execute("SELECT count(*) FROM outbox_consumer").fetchone()
            yield

    def url(self, db):
        return on_sqlite.url_of(db)

    def sql(self, db, text):
        with contextlib.closing(sqlite3.connect(db, timeout=30)) as own:
            own.executescript(text)

    def rest(self, db):
        pass

    def bare_rows(self, db):
        self.clear_bare(db)
        self.sql(db, SQLITE_BARE_ROWS)

    def clear_bare(self, db):
        self.sql(db, BARE_TABLE)

    def delivered(self, db):
        with contextlib.closing(sqlite3.connect(db, timeout=30)) as own:
            return own.execute("SELECT coalesce(sum(delivered), 0) FROM outbox_consumer").fetchone()[0]

    def cpu(self):
        return 0.0

    def connections(self, db):
        return None
