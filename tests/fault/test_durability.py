"""Events are on disk before they are delivered, whatever the database's settings; settings of a role or database stop no
worker."""
# build: plain
import psycopg2

import servers
from support import PgCase, wait_until


class Durable(PgCase):
    def setUp(self):
        super().setUp()
        # Only committing sessions write to the log: no periodic records for standbys.
        self.postgres = servers.Postgres({"wal_writer_delay": "10s", "autovacuum": "off", "wal_level": "minimal", "max_wal_senders": 0})
        self.postgres.start()
        self.addCleanup(self.postgres.close)
        self.store = self.postgres.create_database("shop")
        self.init()

    def test_delivered_event_survives_a_crash_without_sync_commits(self):
        self.sql("ALTER DATABASE shop SET synchronous_commit = off")
        out = self.path("out.ndjson")
        relay = self.relay("--consumer", "c", "--sink", f"file:{out}")
        for i in range(3):
            self.sql("SELECT outbox.emit('t', 'k', %s, '{}')", str(i))
            wait_until(lambda: len(self.ndjson(out)) == i + 1)
        self.postgres.kill()
        self.postgres.start()
        ids = {row[0] for row in self.sql("SELECT id FROM outbox.event")}
        relay.stop()
        self.assertEqual({e["id"] for e in self.ndjson(out)} - ids, set(), "delivered, then lost")

    def test_plain_sql_worker_is_durable_too(self):
        self.sql("ALTER DATABASE shop SET synchronous_commit = off")
        self.sql("SELECT outbox.register('c')")
        self.sql("SELECT outbox.emit('t', NULL, NULL, '{}')")
        got = self.sql("SELECT id FROM outbox.claim('c', 'w')")
        self.assertEqual(len(got), 1)
        self.postgres.kill()
        self.postgres.start()
        self.assertEqual(self.sql("SELECT id FROM outbox.event"), got)

    def on_disk(self):
        """The log position known to be on disk after an emit. Reading a page may have pruned it, which is logged, too: then
        another emit is needed."""
        wait_until(lambda: self.sql("SELECT outbox.emit('t', 'k', '1', '{}')") and self.sql("SELECT outbox._on_disk()") != [(None,)])
        return self.sql("SELECT outbox._on_disk()")[0][0]

    def mode(self, on_disk):
        """synchronous_commit of a turn that began with on_disk flushed; None: the session's own setting."""
        return self.sql("SELECT outbox._commit_mode(%s, pg_current_snapshot())", on_disk)[0][0]

    def test_commit_skips_the_flush_only_for_events_on_disk(self):
        on_disk = self.on_disk()
        self.assertEqual(self.mode(on_disk), "off")
        self.sql("SELECT outbox.emit('t', 'k', '2', '{}')")
        self.assertIsNone(self.mode(on_disk), "another transaction has ended since")
        self.assertIsNone(self.mode(None))

        self.sql("SET synchronous_commit = off; SELECT outbox.emit('t', 'k', '3', '{}')")
        self.assertEqual(self.sql("SELECT outbox._on_disk()"), [(None,)], "the last commit is not on disk")
        self.assertEqual(self.mode(None), "on")
        self.sql("RESET synchronous_commit")
        self.assertEqual(self.mode(self.on_disk()), "off", "the next commit flushed it")

        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'another'")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: self.sql("SHOW synchronous_standby_names") == [("another",)])
        self.sql("SET synchronous_commit = local")
        self.assertIsNone(self.mode(self.on_disk()), "a standby may lack it")

    def relay_that_stands_still(self):
        """A relay whose sink blocks on each event until released: nothing is settled meanwhile."""
        self.out, self.go = self.path("out"), self.path("go")
        relay = self.relay("--consumer", "c", "--lease", "1s", "--sink",
                           f"exec:echo $OUTBOX_AGGREGATE_ID >>{self.out}; until [ -e {self.go} ] || [ ! -e {self.out} ]; do sleep 0.01; done")
        return relay

    def got(self):
        return self.out.read_text().split() if self.out.exists() else []

    def take(self, n):
        """take emits event n and waits until the sink holds it."""
        self.go.unlink(missing_ok=True)
        self.sql("SELECT outbox.emit('t', 'k', %s, '{}')", str(n))
        wait_until(lambda: str(n) in self.got())

    def go_on(self):
        """go_on waits until everything is settled."""
        self.go.touch()
        wait_until(lambda: self.sql("SELECT count(*) FROM outbox.claim") == [(0,)])

    def warm_up(self, events):
        """The first turns of a consumer are not simple ones."""
        for n in range(events):
            self.take(n)
            self.go_on()

    def crash(self):
        self.postgres.kill()
        self.postgres.start()

    def lose_a_turn(self, n):
        """lose_a_turn makes the server die with events in flight from n on, until it has lost the claim. Reading a page may
        have pruned it, which is logged, too, so the turn waited; or the server itself has just written the log. Returns the
        event."""
        for n in range(n, n + 8):
            self.take(n)
            self.assertEqual(self.sql("SELECT count(*) FROM outbox.claim"), [(1,)])
            self.crash()
            if self.sql("SELECT count(*) FROM outbox.claim") == [(0,)]: return n
            self.go_on()
        self.fail("every turn waited for the disk")

    def test_turn_lost_in_a_crash_is_lost_entirely_and_repeated(self):
        relay = self.relay_that_stands_still()
        self.warm_up(8)
        n = self.lose_a_turn(8)
        self.sql("SELECT outbox.emit('t', 'k', %s, '{}')", str(n + 1))
        self.go.touch()
        wait_until(lambda: len(self.got()) >= n + 3, what=lambda: f"{self.got()}\n{relay.output()}")
        self.go_on()
        self.assertEqual(self.got()[:n + 1], [*map(str, range(n + 1))])
        self.assertEqual(sorted(self.got()[n + 1:]), sorted([str(n), str(n + 1)]), "of two keys, in either order")
        relay.stop()

    def test_turn_flushes_events_that_are_not_yet_on_disk(self):
        relay = self.relay_that_stands_still()
        self.warm_up(8)
        self.sql("SET synchronous_commit = off")
        self.take(8)
        self.crash()
        self.assertEqual(self.sql("SELECT aggregate_id FROM outbox.event ORDER BY seq"), [(str(n),) for n in range(9)], "delivered, then lost")
        self.go.touch()
        relay.stop()

    def test_doctor_reports_missing_durability(self):
        self.assertIn("fsync is off", self.outbox("doctor", status=None).stdout)


class Settings(PgCase):
    ODD = ("statement_timeout = '150ms'", "lock_timeout = '10ms'", "standard_conforming_strings = off", "search_path = ''",
           "default_transaction_isolation = serializable", "default_transaction_read_only = on", "idle_session_timeout = '1s'",
           "idle_in_transaction_session_timeout = '100ms'", "DateStyle = German", "IntervalStyle = sql_standard",
           "TimeZone = 'Asia/Kathmandu'", "bytea_output = escape", "client_encoding = LATIN1", "enable_indexscan = off",
           "work_mem = '64kB'", "extra_float_digits = -15", "transform_null_equals = on", "backslash_quote = off")

    def test_relay_works_under_any_database_setting(self):
        self.init()
        self.sql("; ".join(f"ALTER DATABASE {self.dbname} SET {setting}" for setting in self.ODD))
        out = self.path("out.ndjson")
        with self.relay("--consumer", "c", "--sink", f"file:{out}", "--events", "a_%.*,b\\x.*", "--lanes", "2"):
            self.outbox("emit", "a_%.ü", "--key", "k/ä", "--payload", '{"n":"ß€"}')
            self.outbox("emit", "b\\x.y", "--key", "k/1", "--payload", "1")
            wait_until(lambda: len(self.ndjson(out)) == 2)
        self.assertEqual(sorted(str(e["payload"]) for e in self.ndjson(out)), ["1", "{'n': 'ß€'}"])
        self.outbox("status")

    def test_database_timeouts_do_not_abort_a_waiting_turn(self):
        self.outbox("init")
        out = self.path("out.ndjson")
        self.sql(f"ALTER DATABASE {self.dbname} SET statement_timeout = '150ms'; ALTER DATABASE {self.dbname} SET lock_timeout = '10ms'")
        with self.relay("--consumer", "c", "--sink", f"file:{out}") as relay:
            db = psycopg2.connect(servers.patient(self.store))
            self.addCleanup(db.close)
            cursor = db.cursor()
            cursor.execute("LOCK TABLE outbox.claim IN ACCESS EXCLUSIVE MODE")
            self.outbox("emit", "a.b")
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.claim'::regclass"
            wait_until(lambda: cursor.execute(waits) or cursor.fetchone()[0] > 0, what=relay.output)
            cursor.execute("SELECT pg_sleep(0.3)")  # longer than both
            db.commit()
            wait_until(lambda: len(self.ndjson(out)) == 1)
            self.assertNotIn("canceling", relay.output())

    # Settings that workers refuse with an error (see below), and parameters that are not settings.
    NOT_SWEPT = {"default_transaction_isolation", "default_transaction_read_only", "transaction_isolation", "transaction_read_only",
                 "transaction_deferrable", "role", "session_authorization", "seed", "client_encoding"}
    TEXTS = {"DateStyle": ["German", "SQL, DMY", "Postgres, YMD", "ISO, YMD"], "search_path": ["pg_temp", "nowhere", "pg_temp, public"],
             "TimeZone": ["<+24>-24", "Asia/Kathmandu", "America/New_York"], "dynamic_library_path": ["/nowhere:$libdir"],
             "timezone_abbreviations": ["India"], "default_text_search_config": ["pg_catalog.german"], "backtrace_functions": ["nextval"],
             "lc_messages": ["C.UTF-8", "C"], "lc_numeric": ["C.UTF-8"], "lc_time": ["C.UTF-8"], "lc_monetary": ["C.UTF-8"]}

    rows = None

    def sweep(self, nth):
        """sweep returns every setting that a session may have, with the nth of its odd values."""
        self.rows = self.rows or self.sql("SELECT name, vartype, ARRAY[min_val, max_val], enumvals, setting FROM pg_settings WHERE context IN ('user', "
                        "'superuser') ORDER BY name = 'exit_on_error', name")
        for name, kind, ends, words, now in self.rows:
            if name in self.NOT_SWEPT: continue
            values = {"bool": ["off" if now == "on" else "on"], "enum": words, "integer": ends, "real": ends}.get(
                kind, self.TEXTS.get(name))
            if values: yield name, values[nth % len(values)]

    def test_session_settings_do_not_affect_emits_or_claims(self):
        """All of PostgreSQL's settings at once, with another odd value each time."""
        self.outbox("init")
        self.sql("SELECT outbox.register('c', 'a.*', lanes => 2)")
        for nth in range(4):
            with self.subTest(nth):
                db = psycopg2.connect(self.store)
                self.addCleanup(db.close)
                db.autocommit = True
                cursor = db.cursor()
                swept = 0
                for name, value in self.sweep(nth):
                    try:
                        cursor.execute(f"SET {name} = %s", (value,))
                        swept += 1
                    except psycopg2.Error: pass  # not here
                self.assertGreater(swept, 150)
                cursor.execute("SELECT outbox.emit('a.b', 'k', '1', '{\"n\": \"ü\"}'), outbox.emit('a.b', 'k', '2', '1.50', "
                               "idempotency_key => %s)", (f"k{nth}",))
                ids, got = list(cursor.fetchone()), []
                while len(got) < 2:
                    cursor.execute("SELECT epoch, seq, id, payload::text FROM outbox.claim('c', 'w', 10)")
                    rows = cursor.fetchall()
                    got += [(row[2], row[3]) for row in rows]
                    cursor.execute("SELECT outbox.settle('c', 'w', %s, %s)", (rows[0][0], '[]'))
                self.assertEqual(sorted(got), sorted(zip(ids, ('{"n": "ü"}', "1.50"))))
                cursor.execute("SELECT count(*) FROM outbox.delivery WHERE state = 'delivered'")
                self.assertEqual(cursor.fetchone(), (2 * nth + 2,))
                db.close()

    def test_database_settings_do_not_change_deliveries(self):
        self.outbox("init")
        out = self.path("out")
        db = psycopg2.connect(servers_of(self.store, self.dbname) + "&dbname=postgres")
        self.addCleanup(db.close)
        db.autocommit = True
        for nth in range(4):
            with self.subTest(nth):
                for name, value in self.sweep(nth):
                    try:
                        db.cursor().execute(f"ALTER DATABASE {self.dbname} SET {name} = %s", (value,))
                    except psycopg2.Error: pass
                id = self.emit("a.b", "k/ä", {"n": "ß€"})
                self.drain("--consumer", "c", "--sink", f"file:{out}")
                last = self.ndjson(out)[-1]
                self.assertEqual((len(self.ndjson(out)), last["id"], last["payload"]), (nth + 1, id, {"n": "ß€"}))
        self.outbox("status")

    def test_plain_sql_worker_error_names_the_offending_setting(self):
        self.init()
        self.sql("SELECT outbox.register('c', 'a.*')")
        self.sql("SELECT outbox.emit('a.b', NULL, NULL, '{}')")
        for setting, said in (("default_transaction_read_only = on", "read-only transaction"),
                              ("default_transaction_isolation = serializable", "READ COMMITTED"),
                              ("standard_conforming_strings = off", None), ("search_path = ''", None), ("DateStyle = German", None),
                              ("statement_timeout = '5s'", None)):
            with self.subTest(setting):
                db = psycopg2.connect(self.store)
                self.addCleanup(db.close)
                db.autocommit = True
                cursor = db.cursor()
                cursor.execute(f"SET {setting}")
                try:
                    cursor.execute("SELECT epoch FROM outbox.claim('c', 'w', 10, 1000)")
                    self.assertIsNone(said)
                    for (epoch,) in cursor.fetchall(): cursor.execute("SELECT outbox.settle('c', 'w', %s)", (epoch,))
                except psycopg2.Error as e:
                    self.assertIsNotNone(said, e)
                    self.assertIn(said, str(e))

    def test_non_utf_8_database_is_refused(self):
        server, name = servers_of(self.store, self.dbname), f"{self.dbname}_l"
        servers.execute(server + "&dbname=postgres", f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
                        "TEMPLATE template0")
        self.addCleanup(servers.drop_database, server, name)
        self.store = self.store.replace(self.dbname, name)
        done = self.outbox("init", status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("needs UTF8", done.stderr)


def servers_of(url, dbname):
    return url.replace(f"/{dbname}?", "/?")
