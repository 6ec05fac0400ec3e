"""outbox doctor: every finding is provoked for real, and a healthy outbox has none. On private servers: its findings about
transactions and connections concern the whole server."""
# build: plain
# quick: no
import os
import re

import psycopg2
import servers
from support import BIN, Case, PgCase, wait_until

FOUND, DATA = 1, 65
SERVERS = {}


def server(name, **settings):
    """server returns the server of that name, started on first use; it ends with this file."""
    if name not in SERVERS:
        SERVERS[name] = servers.Postgres({"fsync": "on", **settings}).start()
    return SERVERS[name]


def tearDownModule():
    for pg in SERVERS.values():
        pg.close()


class Doctor:
    """Common to the cases on both stores."""

    def doctor(self, *args, status=0, **kw):
        """doctor returns its findings: [(level, name, text, advice)]."""
        said = self.json("doctor", *args, status=status, **kw)
        self.assertEqual(said["ok"], status == 0)
        found = [(f["level"], f["name"], f["text"], f["advice"]) for f in said["findings"]]
        for level in ("problem", "warning", "note"):
            self.assertEqual(said[level + "s"], sum(f[0] == level for f in found))
        return found

    def bad(self, *args, **kw):
        """bad returns the warnings and problems; there must be at least one."""
        return [f for f in self.doctor(*args, status=FOUND, **kw) if f[0] in ("warning", "problem")]

    def one(self, level, name, *texts, args=(), **kw):
        """one expects exactly one warning or problem, which contains all texts; it returns that."""
        found = self.bad(*args, **kw)
        self.assertEqual([f[:2] for f in found], [(level, name)], found)
        for text in texts:
            self.assertIn(text, f"{found[0][2]}; {found[0][3]}")
        return found[0]

    def consume(self, *more):
        self.drain("--consumer", "mail", "--sink", f"file:{self.path('out')}", *more)


class PgDoctor(Doctor, Case):
    def setUp(self):
        super().setUp()
        self.use(server("plain", autovacuum_naptime="1d"))  # it would consume transaction ids itself

    def use(self, pg):
        self.pg = pg
        self.dbname = f"t{os.urandom(8).hex()}"
        self.store = pg.create_database(self.dbname)
        self.addCleanup(servers.drop_database, pg.url(""), self.dbname)
        self.addCleanup(self._end_children)
        self.init()

    def sql(self, statement, *params):
        return servers.execute(self.store, statement, *params)

    alter_events = PgCase.alter_events

    def connect(self):
        db = psycopg2.connect(self.store, application_name="forgetful")
        self.addCleanup(db.close)
        return db

    def role(self):
        """role creates a role, and returns it and its URL of the store."""
        name = f"r{os.urandom(6).hex()}"
        self.sql(f"CREATE ROLE {name} LOGIN")
        self.addCleanup(self.sql, f"DROP OWNED BY {name}; DROP ROLE {name}")
        return name, re.sub(r"user=\w+", f"user={name}", self.store)


class Server(PgDoctor):
    def test_healthy_outbox_has_no_findings(self):
        self.emit("order.paid", "order/1")
        with self.relay("--consumer", "mail", "--sink", f"file:{self.path('out')}"):
            wait_until(lambda: self.ndjson(self.path("out")))
            wait_until(lambda: self.json("status")["consumers"][0]["in_flight"] == 0)
            found = self.doctor()
            text = self.outbox("doctor").stdout
        self.assertEqual({f[0] for f in found}, {"ok"})
        self.assertLessEqual({"version", "server", "connections", "transaction", "prepared-transaction", "wraparound",
                              "durability", "grants", "wakeup", "dead-rows", "claim", "restore", "clock", "consumer",
                              "retention"}, {f[1] for f in found})
        self.assertRegex(text, r"(?s)\A(ok +[a-z-]+ +[^\n]+\n)+all is well: 0 problems, 0 warnings, 0 notes\n\Z")

    def test_doctor_changes_nothing(self):
        self.sql("SELECT outbox.register('mail')")
        self.emit("order.paid")
        look = "SELECT (SELECT string_agg(t::text, ',') FROM outbox.{} t)"
        tables = ("meta", "event", "consumer", "lane", "claim", "parked", "dead")
        before = [self.sql(look.format(t)) for t in tables], self.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())")
        self.doctor()
        self.assertEqual(([self.sql(look.format(t)) for t in tables],
                          self.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())")), before)

    def test_old_transaction_is_found_with_its_session(self):
        db = self.connect()
        db.cursor().execute("SELECT outbox.emit('order.paid', NULL, NULL, '{}')")
        pid = db.info.backend_pid
        self.one("warning", "transaction", f"pid {pid}", 'application "forgetful"', "idle in transaction", "has written",
                 f"pg_terminate_backend({pid})", args=("--patience", "0s"))
        self.doctor()  # it is not old enough for a separate warning
        db.rollback()
        self.doctor("--patience", "0s")

    def test_open_transaction_does_not_make_a_consumer_look_stuck(self):
        db = self.connect()
        db.cursor().execute("SELECT outbox.emit('order.paid', NULL, NULL, '{}')")
        self.emit("order.sent")
        self.consume()
        self.assertEqual(len(self.ndjson(self.path("out"))), 1)
        self.alter_events("UPDATE outbox.event SET created_at = created_at - interval '1 hour'")
        self.doctor()

    def test_ordinary_role_cannot_see_other_transactions(self):
        role, store = self.role()
        self.outbox("grant", "consumer", role)
        self.outbox("grant", "operator", role)
        db = self.connect()
        db.cursor().execute("SELECT outbox.emit('order.paid', NULL, NULL, '{}')")
        found = [f for f in self.doctor("--store", store) if f[1] == "transaction"]
        self.assertEqual(found[0][0], "note")
        self.assertIn("pg_read_all_stats", found[0][3])

    def test_synchronous_commit_off_is_reported_as_a_risk(self):
        role, store = self.role()
        self.sql(f"ALTER ROLE {role} SET synchronous_commit = off")
        self.one("warning", "durability", f'role "{role}"', "crashes")
        self.sql(f"ALTER ROLE {role} RESET synchronous_commit")
        self.sql(f"ALTER DATABASE {self.dbname} SET synchronous_commit = off")
        self.one("warning", "durability", "every role in this database")

    def test_pooler_that_makes_relays_poll_is_found(self):
        with servers.PgBouncer(self.pg) as pooler:
            self.one("warning", "wakeup", "pooler", "poll every few milliseconds", args=("--store", pooler.url(self.dbname)))

    def test_disabled_wake_ups_are_reported(self):
        self.sql(f"ALTER DATABASE {self.dbname} SET outbox.wakeup = 'off'")
        self.assertIn("note", [f[0] for f in self.doctor() if f[1] == "wakeup" and "outbox.wakeup" in f[2]])

    def test_clock_difference_is_found(self):
        self.sql("CREATE OR REPLACE FUNCTION outbox._clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
                 "'SELECT statement_timestamp() - interval ''90 seconds'''")
        self.one("warning", "clock", "the store's clock is 1m", "behind this one")

    def test_dead_rows_that_cannot_be_removed_are_found(self):
        self.sql("INSERT INTO outbox.parked (consumer, seq, key, attempts) SELECT 'x', g, 0, 0 FROM "
                 "generate_series(1, 60000) g; DELETE FROM outbox.parked")
        servers.forget_connections()  # a session reports its activity when it ends, or much later
        wait_until(lambda: self.outbox("doctor", status=None).returncode == FOUND)
        self.one("warning", "dead-rows", "table parked has 60000 dead rows", 'VACUUM "outbox".parked')


class Roles(PgDoctor):
    def test_privileges_reported_as_missing_are_sufficient(self):
        role, store = self.role()
        self.assertIn(("problem", "grants"), [f[:2] for f in self.bad("--store", store)])
        self.outbox("grant", "consumer", role)
        found = [f for f in self.doctor("--store", store) if f[1] == "grants"]
        self.assertEqual([f[0] for f in found], ["note"])  # it may not trim
        self.assertIn('EXECUTE on "outbox"._operator_trim', found[0][2])
        self.emit("order.paid")
        self.consume("--store", store)
        self.assertEqual(len(self.ndjson(self.path("out"))), 1)

        self.sql(f"REVOKE SELECT ON outbox.setting FROM {role}")
        self.one("problem", "grants", f'role "{role}" cannot work as consumer, it lacks SELECT on "outbox".setting',
                 args=("--store", store))
        self.outbox("grant", "consumer", role)
        self.sql(f"REVOKE EXECUTE ON FUNCTION outbox._worker_turn FROM {role}")
        self.one("problem", "grants", 'EXECUTE on "outbox"._worker_turn', args=("--store", store))
        self.outbox("grant", "consumer", role)
        self.sql(f"REVOKE SELECT ON SEQUENCE outbox.epoch FROM {role}")
        self.one("problem", "grants", 'SELECT on "outbox".epoch', args=("--store", store))

    def test_role_without_usage_on_the_schema_is_found(self):
        role, store = self.role()
        found = self.bad("--store", store)
        self.assertIn(("problem", "grants", f'schema "outbox" is closed to role "{role}"'), [f[:3] for f in found])


class Consumers(PgDoctor):
    def age(self, interval):
        self.alter_events(f"UPDATE outbox.event SET created_at = created_at - interval '{interval}'")

    def test_stuck_and_abandoned_consumers_are_found(self):
        self.sql("SELECT outbox.register('mail')")
        self.emit("order.paid")
        self.doctor()
        self.age("10 minutes")
        self.one("problem", "consumer", 'consumer "mail" is stuck: 1 event waits, the oldest for 10m', "start a relay")
        self.age("3 days")
        self.one("problem", "consumer", "is abandoned", "outbox consumers remove mail")
        self.sql("SELECT outbox.pause('mail')")
        self.assertIn(("note", "consumer"), [f[:2] for f in self.doctor()])
        self.sql("SELECT outbox.pause('mail', false)")
        self.consume()
        self.doctor()

    def test_overdue_retry_is_found(self):
        self.emit("order.paid")
        self.sql("SELECT outbox.register('mail')")
        self.sql("SELECT outbox.settle('mail', 'w', c.epoch, '[{\"seq\": 1, \"kind\": \"retry\", \"attempts\": 1, "
                 "\"delay_ms\": 1, \"error\": \"no route\"}]') FROM outbox.claim('mail', 'w') c")
        wait_until(lambda: self.outbox("doctor", "--patience", "1ms", status=None).returncode == FOUND)
        self.one("problem", "consumer", "is stuck", args=("--patience", "1ms"))
        self.assertIn("no route", str([f for f in self.doctor() if f[:2] == ("note", "retry")]))

    def test_claim_of_a_killed_worker_is_found(self):
        self.emit("order.paid")
        relay = self.relay("--consumer", "mail", "--sink", f"exec:echo >>{self.path('begun')}; sleep 60", "--lease",
                           "100ms")
        wait_until(self.path("begun").exists)
        relay.kill()
        wait_until(lambda: any(f[1] == "claim" and f[0] == "warning"
                               for f in self.json_findings("--patience", "1ms")))
        found = [f for f in self.bad("--patience", "1ms") if f[1] == "claim"]
        self.assertIn('consumer "mail": 1 claim of workers that vanished', found[0][2])
        self.consume()
        self.doctor("--patience", "1ms")

    def json_findings(self, *args):
        return [(f["level"], f["name"]) for f in self.json("doctor", *args, status=None)["findings"]]

    def test_dead_letters_are_found(self):
        self.emit("order.paid")
        self.drain("--consumer", "mail", "--sink", "exec:exit 65", "--sweep", "100ms")
        self.one("warning", "dead-letter", 'consumer "mail" has 1 dead letter', "outbox dead list --consumer mail")

    def test_doctor_names_the_consumer_that_keeps_old_events(self):
        self.emit("order.paid")
        self.consume()
        self.age("30 days")
        self.one("warning", "retention", "30d old; no consumer needs it", "outbox trim")
        self.assertEqual(self.json("trim")["events"], 0)
        self.doctor()  # its time of delivery is known only from now on
        self.sql("UPDATE outbox.passed SET at = at - interval '8 days'")
        self.one("warning", "retention", "30d old; no consumer needs it", "outbox trim")
        self.sql("SELECT outbox.register('audit'); SELECT outbox.pause('audit')")
        self.one("warning", "retention", 'kept for consumer "audit" (position at 0, paused)')
        self.doctor("--retention", "60d")
        self.doctor("--retention", "0s")


class Versions(PgDoctor):
    def test_missing_older_and_newer_outboxes_are_found(self):
        self.one("problem", "version", "there is no outbox", "outbox init", args=("--store", self.store + "&schema=no"))
        self.sql("UPDATE outbox.meta SET value = '99' WHERE name = 'schema_version'")
        self.one("problem", "version", "version 99", "use a newer outbox")

    def test_restore_into_another_cluster_is_found(self):
        self.sql("UPDATE outbox.meta SET value = '1' WHERE name = 'system_identifier'")
        self.one("problem", "restore", "another cluster")
        self.outbox("status")
        self.assertIn(("note", "restore"), [f[:2] for f in self.doctor()])

    def test_earlier_repair_does_not_hide_an_outbox_at_home(self):
        self.sql("INSERT INTO outbox.meta (name, value) VALUES ('renumbered_at', 'then'), ('renumbered_why', 'reset')")
        self.assertEqual([f[0] for f in self.doctor() if f[1] == "restore"], ["note", "ok"])


class OtherServers(PgDoctor):
    def setUp(self):
        Case.setUp(self)

    def test_prepared_transactions_and_disabled_wake_ups_are_found(self):
        self.use(server("prepared", max_prepared_transactions=2, max_connections=12))
        self.assertIn(("note", "wakeup"), [f[:2] for f in self.doctor()])
        db = self.connect()
        db.cursor().execute("SELECT outbox.emit('order.paid', NULL, NULL, '{}')")
        db.cursor().execute("PREPARE TRANSACTION 'left behind'")
        db.close()
        found = self.one("problem", "prepared-transaction", '"left behind"', self.dbname, args=("--patience", "0s"))
        self.assertIn("ROLLBACK PREPARED 'left behind'", found[3])
        self.assertIn(("note", "prepared-transaction"), [f[:2] for f in self.doctor()])
        self.sql("ROLLBACK PREPARED 'left behind'")
        self.doctor("--patience", "0s")

    def test_foreign_names_are_quoted_without_control_characters(self):
        self.use(server("prepared", max_prepared_transactions=2, max_connections=12))
        db = self.connect()
        db.cursor().execute("SELECT outbox.emit('order.paid', NULL, NULL, '{}')")
        db.cursor().execute("PREPARE TRANSACTION E'it''s \\x1b[31m'")
        db.close()
        text = self.outbox("doctor", "--patience", "0s", status=FOUND).stdout
        self.assertNotIn("\x1b", text)
        self.assertIn("ROLLBACK PREPARED 'it''s \\u001b[31m'", text)
        self.sql("ROLLBACK PREPARED E'it''s \\x1b[31m'")

    def test_nearly_exhausted_connections_are_found(self):
        self.use(server("prepared", max_prepared_transactions=2, max_connections=12))
        self.doctor()
        servers.forget_connections()
        for _ in range(8):
            self.connect()
        self.one("warning", "connections", "9 of 9 connections")

    def test_standby_is_found(self):
        self.use(server("standby"))
        self.pg.stop("fast")
        self.pg.write("data/standby.signal", "")
        self.pg.ready = self.standby_ready
        self.pg.start()
        found = self.bad()
        self.assertEqual([f[:2] for f in found], [("problem", "server"), ("warning", "wakeup")])
        self.assertIn("standby", found[0][2])
        self.pg.stop("fast")
        (self.pg.dir / "data" / "standby.signal").unlink()
        del self.pg.ready
        self.pg.start()

    def standby_ready(self):
        try:
            lines = (self.pg.dir / "data" / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pg.popen.pid) and lines[7].strip() in ("standby", "ready")

    def test_transaction_id_wraparound_is_found(self):
        pg = server("old", autovacuum_freeze_max_age=2000000000)
        self.use(pg)
        pg.stop("fast")
        page = (pg.dir / "data" / "pg_xact" / "0000").read_bytes()
        xid = 1600000 * 1024
        segment = xid // (32 * 8192 * 4)
        pg.write(f"data/pg_xact/{segment:04X}", "\0" * len(page) * 32)
        pg.run(str(pg.bin / "pg_resetwal"), "-x", str(xid), str(pg.dir / "data"))
        pg.start()
        self.assertIn(("problem", "wraparound"), [f[:2] for f in self.bad()])


class Sqlite(Doctor, Case):
    def setUp(self):
        super().setUp()
        self.init()

    def test_healthy_database_has_no_findings(self):
        self.emit("order.paid")
        self.consume()
        found = self.doctor()
        self.assertEqual({f[0] for f in found}, {"ok"})
        self.assertLessEqual({"version", "file", "space", "journal", "claim", "clock", "consumer", "retention"},
                             {f[1] for f in found})

    def test_doctor_does_not_create_a_file(self):
        self.outbox("doctor", "--store", f"sqlite:{self.path('other.db')}", status=DATA)
        self.assertFalse(self.path("other.db").exists())

    def test_missing_wal_mode_is_found(self):
        self.sql("PRAGMA journal_mode = DELETE")
        self.one("warning", "journal", "journal mode is delete")
        self.outbox("status")
        self.doctor()

    def test_stuck_consumer_and_expired_claim_are_found(self):
        self.emit("order.paid")
        relay = self.relay("--consumer", "mail", "--sink", f"exec:echo >>{self.path('begun')}; sleep 60", "--lease",
                           "100ms")
        wait_until(self.path("begun").exists)
        relay.kill()
        names = lambda: [f["name"] for f in self.json("doctor", "--patience", "1ms", status=None)["findings"]
                         if f["level"] == "warning"]
        wait_until(lambda: "claim" in names())
        self.consume()
        self.emit("order.paid")
        self.alter_events("UPDATE outbox_event SET created_at = created_at - 600000")
        self.one("problem", "consumer", "is stuck")

    def test_other_schema_version_is_found(self):
        self.sql("UPDATE outbox_meta SET value = '99' WHERE name = 'schema_version'")
        self.one("problem", "version", "version 99")

    def test_unwritable_file_is_found(self):
        self.sql("PRAGMA journal_mode = DELETE")  # with a log it could not even be read
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        for mode, name in ((0o444, "shop.db"), (0o666, self.dir.name)):
            self.dir.chmod(0o755 if mode == 0o444 else 0o555)
            self.db.chmod(mode)
            child = self.spawn(*prefix, BIN, "doctor")
            child.wait(FOUND)
            self.assertRegex(child.output(), rf"(?m)^problem +file .*{name} is not writable")
