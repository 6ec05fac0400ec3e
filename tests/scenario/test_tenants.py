"""Tenants: a connection that works for one sees that tenant's events and consumers alone; the platform's, which works for none,
sees all. All roles here are ordinary: row-level security does not apply to the owner of the tables."""
# build: plain
# quick: no
import json
import unittest

import psycopg2
from support import PgCase, wait_until

DATA, CONFIG, UNAVAILABLE = 65, 78, 69


class Tenants(PgCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.producer, self.consumer = self.role("producer"), self.role("producer", "consumer")
        self.operator = self.role("operator")

    def of(self, tenant, store=None):
        """of is a store in the context of a tenant; None: the platform's."""
        return (store or self.consumer) + (f"&tenant={tenant}" if tenant else "")

    def connect(self, tenant, store=None):
        db = psycopg2.connect(store or self.consumer)
        self.addCleanup(db.close)
        db.autocommit = True
        if tenant: self.run_on(db, "SELECT set_config('outbox.tenant', %s, false)", tenant)
        return db

    def run_on(self, db, statement, *params):
        with db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def refused(self, db, state, statement, *params):
        with self.assertRaises(psycopg2.Error) as caught:
            self.run_on(db, statement, *params)
        self.assertEqual(caught.exception.pgcode, state, caught.exception)
        return str(caught.exception)

    def emit_for(self, tenant, *payloads):
        for payload in payloads:
            self.emit("a", f"k/{payload}", payload, "--store", self.of(tenant, self.producer))

    def mixed(self):
        """mixed emits two events of each tenant and of none, in turns."""
        for i in (1, 2):
            for tenant in ("a", "b", None): self.emit_for(tenant, f"{tenant}{i}")

    def drained(self, name, tenant, *more, sink=None):
        out = self.path(f"{name}.ndjson")
        self.outbox("relay", "--drain", "--consumer", name, "--sink", sink or f"file:{out}", *more,
                    "--store", self.of(tenant))
        return [e["payload"] for e in self.ndjson(out)]

    def payloads(self, db, statement, *params):
        return [row[0] for row in self.run_on(db, f"SELECT payload #>> '{{}}' FROM {statement}", *params)]

    # ---- producing ----

    def test_producer_writes_only_for_its_tenant(self):
        db = self.connect("a", self.producer)
        self.run_on(db, "INSERT INTO outbox.event (type, payload) VALUES ('x', '1')")
        self.run_on(db, "SELECT outbox.emit('x', NULL, NULL, '2')")
        self.run_on(db, "SELECT outbox.emit_once('x', NULL, NULL, '3', NULL, 'key')")
        self.run_on(db, "SELECT outbox.emit('x', NULL, NULL, '4', tenant => 'a')")
        self.emit_for("a", 5)
        self.assertEqual(self.sql("SELECT DISTINCT tenant FROM outbox.event"), [("a",)])
        for statement in ("INSERT INTO outbox.event (type, tenant) VALUES ('x', 'b')",
                          "INSERT INTO outbox.event (type, tenant) VALUES ('x', NULL)",
                          "SELECT outbox.emit('x', NULL, NULL, '2', tenant => 'b')",
                          "SELECT outbox.emit_once('x', NULL, NULL, '3', NULL, 'new', tenant => 'b')"):
            with self.subTest(statement): self.refused(db, "42501", statement)
        self.outbox("emit", "x", "--tenant", "b", "--store", self.of("a", self.producer), status=UNAVAILABLE)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(5,)])

    def test_platform_writes_for_every_tenant(self):
        db = self.connect(None, self.producer)
        self.run_on(db, "INSERT INTO outbox.event (type) VALUES ('x')")
        self.run_on(db, "INSERT INTO outbox.event (type, tenant) VALUES ('x', 'b')")
        self.run_on(db, "SELECT outbox.emit('x', NULL, NULL, '2', tenant => 'a')")
        self.assertEqual(self.sql("SELECT tenant FROM outbox.event ORDER BY seq"), [(None,), ("b",), ("a",)])

    def test_each_tenant_has_its_own_idempotency_keys(self):
        a = self.emit("x", None, 1, "--idempotency-key", "k", "--store", self.of("a", self.producer))
        b = self.emit("x", None, 2, "--idempotency-key", "k", "--store", self.of("b", self.producer))
        self.assertNotEqual(a, b)
        self.assertEqual(self.emit("x", None, 1, "--idempotency-key", "k", "--store", self.of("a", self.producer)), a)
        said = self.outbox("emit", "x", "--payload", "2", "--idempotency-key", "k", "--store", self.of("a", self.producer),
                           status=DATA).stderr
        self.assertNotIn(b, said)
        self.assertEqual(self.run_on(self.connect("b", self.producer), "SELECT event_id FROM outbox.idempotency"), [(b,)])

    # ---- consuming ----

    def test_tenant_gets_its_own_events_and_the_platform_gets_all(self):
        self.mixed()
        self.assertEqual(self.drained("a-mail", "a"), ["a1", "a2"])
        self.assertEqual(self.drained("b-mail", "b"), ["b1", "b2"])
        self.assertEqual(self.drained("all", None), ["a1", "b1", "None1", "a2", "b2", "None2"])
        self.mixed()
        self.assertEqual(self.drained("a-mail", "a"), ["a1", "a2"] * 2)

    def test_tenant_relay_is_woken_only_for_its_tenant(self):
        out = self.path("a.ndjson")
        with self.relay("--consumer", "a-mail", "--sink", f"file:{out}", "--retention", "0s",
                        "--store", self.of("a")) as relay:
            self.mixed()
            wait_until(lambda: len(self.ndjson(out)) >= 2, what=relay.output)
        self.assertEqual([e["payload"] for e in self.ndjson(out)], ["a1", "a2"])

    def leave_traces(self, tenant, first):
        """leave_traces creates a consumer with a row in every table, from the two events of its tenant."""
        db, name = self.connect(tenant), f"{tenant}-mail"
        self.emit("a", None, f"{tenant}3", "--idempotency-key", "key", "--store", self.of(tenant, self.producer))
        self.run_on(db, "SELECT outbox.register(%s)", name)
        epoch = self.run_on(db, "SELECT epoch FROM outbox.claim(%s, 'w')", name)[0][0]
        outcomes = [{"seq": first, "kind": "dead", "attempts": 1, "error": f"secret of {tenant}"},
                    {"seq": first + 3, "kind": "retry", "attempts": 1, "delay_ms": 3600000, "error": f"secret of {tenant}"}]
        self.run_on(db, "SELECT outbox.settle(%s, 'w', %s, %s)", name, epoch, json.dumps(outcomes))
        self.emit_for(tenant, f"{tenant}4")
        epoch = self.run_on(db, "SELECT epoch FROM outbox.claim(%s, 'w', lease_ms => 3600000)", name)[0][0]
        self.sql("INSERT INTO outbox.receipt VALUES (%s, %s, gen_random_uuid(), 'r', now())", name, first)
        return epoch

    def test_tenant_sees_nothing_of_another_tenant(self):
        self.mixed()
        self.leave_traces("a", 1)
        self.leave_traces("b", 2)
        a, everything = self.connect("a"), self.connect(None, self.operator)
        columns = {"event": "tenant", "idempotency": "tenant", "consumer": "name", "consumer_status": "name"}
        for table in ("event", "dead", "consumer", "lane", "claim", "parked", "receipt", "idempotency", "delivery",
                      "consumer_status"):
            with self.subTest(table):
                what = f"SELECT DISTINCT left({columns.get(table, 'consumer')}, 1) FROM outbox.{table}"
                self.assertEqual(self.run_on(a, what), [("a",)])
                self.assertLessEqual({("a",), ("b",)}, set(self.run_on(everything, what)))
        self.assertEqual([e["payload"] for e in self.json("events", "list", "--store", self.of("a"))],
                         ["a1", "a2", "a3", "a4"])
        self.assertEqual([c["name"] for c in self.json("consumers", "list", "--store", self.of("a"))], ["a-mail"])
        self.assertEqual([d["error"] for d in [self.json("dead", "show", "1", "--store", self.of("a"))]], ["secret of a"])
        self.outbox("dead", "show", "2", "--store", self.of("a"), status=DATA)
        self.outbox("events", "show", "2", "--store", self.of("a"), status=DATA)

    def test_claimed_and_parked_events_stay_with_their_tenant(self):
        self.mixed()
        a, b = self.connect("a"), self.connect("b")
        self.run_on(a, "SELECT outbox.register('a-mail')")
        epoch = self.run_on(a, "SELECT epoch FROM outbox.claim('a-mail', 'w')")[0][0]
        self.assertEqual(self.payloads(a, "outbox._claimed('a-mail', %s)", epoch), ["a1", "a2"])
        self.assertEqual(self.payloads(b, "outbox._claimed('a-mail', %s)", epoch), [])
        self.assertTrue(self.run_on(a, """SELECT outbox.settle('a-mail', 'w', %s, '[{"seq": 1, "kind": "retry", "attempts": 1,
            "delay_ms": 1}]')""", epoch)[0][0])
        wait_until(lambda: self.run_on(a, "SELECT 1 FROM outbox.parked WHERE due_at < clock_timestamp()"))
        epoch = self.run_on(a, "SELECT epoch FROM outbox.claim('a-mail', 'w')")[0][0]
        self.assertEqual(self.payloads(a, "outbox._claimed('a-mail', %s)", epoch), ["a1"])
        self.assertEqual(self.payloads(b, "outbox._claimed('a-mail', %s)", epoch), [])
        self.assertEqual(self.run_on(b, "SELECT outbox.extend('a-mail', 'w', %s)", epoch), [(False,)])

    def test_expired_claim_is_taken_over_only_by_its_tenant(self):
        """Taken over by another tenant's worker, its events would be invisible to the worker and lost."""
        self.mixed()
        a, b, platform = self.connect("a"), self.connect("b"), self.connect(None)
        self.run_on(a, "SELECT outbox.register('a-mail')")
        self.run_on(a, "SELECT count(*) FROM outbox.claim('a-mail', 'w1', lease_ms => 1)")
        wait_until(lambda: self.run_on(a, "SELECT 1 FROM outbox.claim WHERE locked_until < clock_timestamp()"))
        self.refused(b, "OB003", "SELECT outbox.claim('a-mail', 'w2')")
        self.assertIn('belongs to tenant "a"', self.refused(platform, "OB004", "SELECT outbox.claim('a-mail', 'w2')"))
        got = []
        for _ in range(2):  # one at a time, after a crash
            rows = self.run_on(a, "SELECT epoch, payload #>> '{}' FROM outbox.claim('a-mail', 'w2')")
            got += [row[1] for row in rows]
            self.run_on(a, "SELECT outbox.settle('a-mail', 'w2', %s)", rows[0][0])
        self.assertEqual(got, ["a1", "a2"])
        self.assertEqual(self.run_on(a, "SELECT outbox.claim('a-mail', 'w2')"), [])

    def test_dead_letters_are_retried_by_their_tenant_or_platform(self):
        self.mixed()
        for tenant in ("a", "b"): self.drained(f"{tenant}-mail", tenant, sink="exec:exit 65")
        self.drained("all", None, sink="exec:exit 65")
        a = self.of("a", self.operator)
        db = self.connect("a", self.operator)
        self.refused(db, "OB003", "SELECT outbox.redrive('b-mail')")
        self.refused(db, "OB003", "SELECT outbox.redrive('all')")
        self.assertEqual(self.json("dead", "retry", "--all", "--store", a)["retried"], 2)
        self.assertEqual(self.sql("SELECT consumer, count(*) FROM outbox.dead WHERE retrying GROUP BY 1"), [("a-mail", 2)])
        self.assertEqual(self.drained("a-mail", "a"), ["a1", "a2"])
        self.assertEqual(self.json("dead", "drop", "--all", "--yes", "--store", a)["dropped"], 0)
        self.assertEqual(self.json("dead", "retry", "--all", "--store", self.operator)["retried"], 8)
        self.assertEqual(self.drained("b-mail", "b"), ["b1", "b2"])
        self.assertEqual(self.drained("all", None), ["a1", "b1", "None1", "a2", "b2", "None2"])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.dead"), [(0,)])

    def test_consumer_keeps_its_tenant(self):
        self.mixed()
        self.drained("mail", "a")
        for other in ("b", None):
            with self.subTest(other=other):
                self.outbox("relay", "--drain", "--consumer", "mail", "--sink", "stdout:", "--store", self.of(other),
                            status=CONFIG)
        self.assertIn("taken", self.refused(self.connect("b"), "OB004", "SELECT outbox.register('mail')"))
        operator = self.connect("b", self.operator)
        self.assertEqual(self.run_on(operator, "SELECT outbox.pause('mail')"), [(False,)])
        self.outbox("consumers", "remove", "mail", "--force", "--yes", "--store", self.of("b", self.operator), status=DATA)
        self.outbox("consumers", "remove", "mail", "--force", "--yes", "--store", self.of("a", self.operator))

    def test_role_can_be_bound_to_one_tenant(self):
        self.mixed()
        self.leave_traces("a", 1)
        self.leave_traces("b", 2)
        name = self.consumer.partition("user=")[2].partition("&")[0]
        self.outbox("grant", "consumer", name, "--tenant", "a")
        for said in ("a", "b", None):
            db = self.connect(said)
            for table, column in (("event", "tenant"), ("idempotency", "tenant"), ("consumer", "tenant"), ("dead", "tenant"),
                                  ("lane", "left(consumer, 1)"), ("claim", "left(consumer, 1)"),
                                  ("parked", "left(consumer, 1)"), ("receipt", "left(consumer, 1)")):
                with self.subTest(said=said, table=table):
                    self.assertEqual(self.run_on(db, f"SELECT DISTINCT {column} FROM outbox.{table}"), [("a",)])
            self.refused(db, "42501", "SELECT outbox.emit('x', NULL, NULL, '1', tenant => 'b')")
            if said == "b": self.refused(db, "42501", "SELECT outbox.register('b-mine')")
        self.drained("a-second", "a")

    def test_every_write_runs_in_its_tenants_context(self):
        """A trigger on each table notes the context of each statement that changes it, in any owner's function."""
        self.sql("CREATE TABLE seen (tab text, tenant text); GRANT INSERT ON seen TO PUBLIC")
        self.sql("CREATE FUNCTION see() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN "
                 "INSERT INTO public.seen VALUES (TG_TABLE_NAME, coalesce(current_setting('outbox.tenant', true), '')); "
                 "RETURN NULL; END $$")
        for name, in self.sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'"):
            self.sql(f"CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON outbox.{name} EXECUTE FUNCTION public.see()")
        for tenant in ("a", None):
            with self.subTest(tenant=tenant):
                self.sql("DELETE FROM seen")
                lines = "".join(json.dumps({"type": "a", "payload": n}) + "\n" for n in range(10))
                self.outbox("emit", "--ndjson", "-", "--store", self.of(tenant), input=lines)
                # One is delivered, one fails, one dies: every table a delivery can touch.
                script = "exec:case $OUTBOX_SEQ in *[147]) ;; *[258]) exit 75 ;; *) exit 65 ;; esac"
                with self.relay("--consumer", f"{tenant}-mail", "--sink", script, "--receipts", "--retention", "0s", "--retry",
                                "base=1h,cap=1h,attempts=2,outage=0s", "--store", self.of(tenant)) as relay:
                    for table in ("receipt", "parked", "dead"):
                        wait_until(lambda: self.sql(f"SELECT 1 FROM outbox.{table} WHERE consumer = %s", f"{tenant}-mail"),
                                   what=relay.output)
                seen = self.sql("SELECT DISTINCT tab, tenant FROM seen")
                self.assertEqual({context for _, context in seen}, {tenant or ""}, seen)
                self.assertLessEqual({"event", "consumer", "lane", "claim", "parked", "dead", "receipt"},
                                     {table for table, _ in seen})

    # ---- the platform's rights ----

    def test_only_the_platform_can_trim(self):
        self.mixed()
        self.drained("a-mail", "a")
        said = self.outbox("trim", "--older-than", "0s", "--yes", "--store", self.of("a", self.operator), status=CONFIG).stderr
        self.assertIn("a tenant cannot trim", said)
        self.outbox("trim", "--older-than", "0s", "--dry-run", "--store", self.of("a", self.operator), status=CONFIG)
        self.drained("all", None)
        self.assertEqual(self.json("trim", "--older-than", "0s", "--yes", "--store", self.operator)["events"], 6)

    def test_role_bypassing_row_security_cannot_serve_a_tenant(self):
        self.mixed()
        self.assertIn("row-level security", self.outbox("status", "--store", self.of("a", self.store), status=CONFIG).stderr)
        owner = self.connect("a", self.store)
        self.run_on(owner, "SELECT outbox.register('mail')")
        self.assertIn("row-level security does not apply", self.refused(owner, "OB004", "SELECT outbox.claim('mail', 'w')"))


if __name__ == "__main__":
    unittest.main()
