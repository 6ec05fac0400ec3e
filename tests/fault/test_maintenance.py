"""An administrator maintains the outbox's tables while producers emit and relays deliver: tables and indexes are rewritten or
moved to another tablespace, and tables get more columns. Every session waits for a moment, and nothing is lost."""
# build: plain
# quick: no
import contextlib
import time

import psycopg2
import servers
from on_server import Load
from support import SOAK, PgCase, wait_until

HEAL = 30  # seconds from the end of a statement until relays deliver again
EXTRA = "CREATE INDEX CONCURRENTLY extra ON outbox.event (created_at)", "DROP INDEX CONCURRENTLY outbox.extra"


class Maintenance(Load):
    lease = "2s"

    def tables(self):
        """tables returns the outbox's tables, each with an index by which it can be ordered."""
        return self.sql("SELECT c.relname, min(i.indexrelid::regclass::text) FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid "
                        "WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND i.indpred IS NULL AND "
                        "(SELECT amname FROM pg_am m, pg_class x WHERE x.oid = i.indexrelid AND m.oid = x.relam) = 'btree' GROUP BY 1")

    def statements(self):
        """statements returns [(kind, statements)] for all that an administrator may do to a table."""
        every = [("schema reindexed", ["REINDEX SCHEMA outbox"]), ("schema reindexed concurrently", ["REINDEX SCHEMA CONCURRENTLY outbox"]),
                 ("index added and dropped", EXTRA), ("vacuumed and analyzed", ["VACUUM (FREEZE, ANALYZE)"])]
        for table, index in self.tables():
            t = f"outbox.{servers.quoted(table)}"
            every += [("vacuum full", [f"VACUUM FULL {t}"]), ("clustered", [f"CLUSTER {t} USING {index.split('.')[-1]}"]),
                      ("reindexed", [f"REINDEX TABLE {t}"]), ("reindexed concurrently", [f"REINDEX TABLE CONCURRENTLY {t}"]),
                      ("tablespace changed", [f"ALTER TABLE {t} SET TABLESPACE other", f"ALTER TABLE {t} SET TABLESPACE pg_default"]),
                      ("column added and dropped", [f"ALTER TABLE {t} ADD COLUMN odd int DEFAULT 7", f"ALTER TABLE {t} DROP COLUMN odd"]),
                      ("column added in a transaction", [f"BEGIN; ALTER TABLE {t} ADD COLUMN even text; SELECT pg_sleep(0.2); COMMIT"])]
        return every

    def do(self, statement):
        """do returns whether the statement succeeded: a deadlock with another session ends one of the two."""
        with contextlib.closing(psycopg2.connect(self.store)) as db:
            db.autocommit = True
            try:
                with db.cursor() as cursor: cursor.execute(statement)
                return True
            except psycopg2.errors.DeadlockDetected:
                return False

    def prepare(self):
        self.server.run("mkdir", "-p", str(self.server.dir / "other"))
        if not self.sql("SELECT 1 FROM pg_tablespace WHERE spcname = 'other'"):
            self.sql(f"CREATE TABLESPACE other LOCATION '{self.server.dir / 'other'}'")

    def standstill(self, statement, crew):
        """standstill describes the state when nothing makes progress."""
        doing = self.sql("SELECT pid, application_name, state, wait_event, now() - query_start, left(query, 100) FROM pg_stat_activity "
                         "WHERE datname = current_database()")
        relays = [[line for line in crew[place].output().splitlines() if "flaky" not in line][-20:] for place in crew if place[0] == "relay"]
        lines = [statement, f"{self.happened()} events, {self.books()} in the books", *doing, *self.held(), *sum(relays, [])]
        return "\n".join(map(str, lines))

    def play(self, kinds):
        self.begin(2)
        self.sinks = {who: self.sinks[who] for who in ("books", "flaky")}
        self.prepare()
        crew = self.crew(1, 2)  # a rate that the flaky consumer's commands keep up with on a busy machine
        self.wait_books(10, crew)
        every = self.statements()
        self.random.shuffle(every)
        every.sort(key=lambda one: one[0] == "column added in a transaction")  # the column stays: it is the last one
        seen = {}
        for kind, statements in every:
            seen[kind] = seen.get(kind, 0) + 1
            everybodys = any(table in statements[0] for table in ('."event"', '."lane"'))  # that every turn reads
            if seen[kind] > kinds and not everybodys: continue
            for statement in statements:
                while not self.do(statement): self.fault("deadlock")
                self.fault(kind)
                before = self.books()
                wait_until(lambda: self.books() > before + 2, HEAL, lambda: self.standstill(statement, crew))
                self.healed()
        self.wait_books(10, crew)
        self.dismiss(crew)
        self.heal()
        self.check()
        self.outbox("status")
        self.outbox("trim")

    def test_table_maintenance_under_load_loses_nothing(self):
        """VACUUM FULL, CLUSTER, REINDEX, also CONCURRENTLY, another tablespace, further columns and indexes, on every table:
        events committed meanwhile are delivered, in order, within 30 s of each statement."""
        self.rounds(lambda _: self.play(99 if SOAK else 2), 0)


class Altered(PgCase):
    """A foreign column in every table."""

    def test_column_added_to_every_table_changes_nothing(self):
        self.init()
        self.outbox("relay", "--drain", "--consumer", "early", "--sink", f"file:{self.path('early')}", "--lanes", 4)
        tables = [table for table, in self.sql("SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace "
                                               "AND relkind = 'r'")]
        self.assertGreater(len(tables), 10)
        for table in tables: self.sql(f"ALTER TABLE {table} ADD COLUMN odd int NOT NULL DEFAULT 7")
        for n in range(40): self.emit("a" if n % 4 else "b", f"k/{n % 5}", n)
        out = self.path("out")
        self.drain("--consumer", "early", "--sink", f"file:{self.path('early')}", "--lanes", 4)
        # Fails once for every fifth event, and always for those of type b.
        self.drain("--consumer", "c", "--lanes", 2, "--retry", "base=1ms,cap=1ms,attempts=9,outage=0s", "--sink",
                   f'exec:[ "$OUTBOX_TYPE" = a ] || exit 65; [ $((OUTBOX_SEQ % 5)) -ne 0 ] || [ "$OUTBOX_ATTEMPT" -gt 1 ] || exit 75; cat >>{out}')
        self.assertEqual(sorted(ev["payload"] for ev in self.ndjson(self.path("early"))), list(range(40)))
        self.assertEqual(sorted(ev["payload"] for ev in self.ndjson(out)), [n for n in range(40) if n % 4])
        self.assertEqual(len(self.json("dead", "list")), 10)
        self.outbox("dead", "retry", "--all")
        self.outbox("consumers", "pause", "c")
        self.outbox("consumers", "resume", "c")
        self.drain("--consumer", "c", "--lanes", 2, "--sink", f"file:{out}")
        self.assertEqual(sorted(ev["payload"] for ev in self.ndjson(out)), list(range(40)))
        self.sql("ALTER SEQUENCE outbox.event_seq_seq RESTART")  # repairs wrong numbers
        self.emit("a", "k/1", 40)
        self.drain("--consumer", "c", "--lanes", 2, "--sink", f"file:{out}")
        self.drain("--consumer", "c", "--lanes", 3, "--sink", f"file:{out}")
        self.assertIn(40, [ev["payload"] for ev in self.ndjson(out)])
        for command in (["init"], ["status"], ["doctor"], ["events", "list"], ["consumers", "list"], ["trim", "--older-than", "0s", "--yes"]):
            self.assertNotIn("SQLSTATE", self.outbox(*command, status=None).stderr, command)
        for command in (["init"], ["status"], ["events", "list"], ["consumers", "list"]): self.outbox(*command)
