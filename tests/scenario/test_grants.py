"""Rights: a role gets one or several parts of the outbox, and no others."""
# build: plain
import json
import unittest

import psycopg2
from support import PgCase, wait_until

DATA, UNAVAILABLE = 65, 69
REFUSED = "42501"
PRODUCER, CONSUMER, OPERATOR = "producer", "consumer", "operator"

# Operations, and the roles allowed to run them. %(epoch)s is a live claim of the worker "w".
RULES = [
    ("SELECT outbox.emit('a', 'k', '1', '1')", {PRODUCER}),
    ("SELECT outbox.emit('a', 'k', '1', '1', idempotency_key => 'new')", {PRODUCER}),
    ("SELECT duplicate FROM outbox.emit_once('a', 'k', '1', '1', NULL, 'known')", {PRODUCER}),
    ("INSERT INTO outbox.event (type, payload) VALUES ('a', '1')", {PRODUCER}),
    ("INSERT INTO outbox.event (type, xid) VALUES ('a', '3')", set()),
    ("INSERT INTO outbox.event (type, created_at) VALUES ('a', 'infinity')", set()),
    ("INSERT INTO outbox.event (type, seq) OVERRIDING SYSTEM VALUE VALUES ('a', 1000)", set()),
    ("UPDATE outbox.event SET payload = '2'", set()),
    ("DELETE FROM outbox.event", set()),
    ("TRUNCATE outbox.event", set()),
    ("SELECT * FROM outbox.event", {CONSUMER, OPERATOR}),
    ("SELECT id FROM outbox.event", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox.idempotency", {OPERATOR}),
    ("DELETE FROM outbox.idempotency", set()),

    ("SELECT outbox.register('new')", {CONSUMER, OPERATOR}),
    ("SELECT outbox.register('mail', events => 'b.*')", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox.claim('mail', 'v')", {CONSUMER}),
    ("SELECT outbox.extend('mail', 'w', %(epoch)s)", {CONSUMER}),
    ("SELECT outbox.settle('mail', 'w', %(epoch)s)", {CONSUMER}),
    ("""SELECT outbox.settle('mail', 'w', %(epoch)s, '[{"seq": 2, "kind": "dead", "attempts": 1, "error": "no"}]')""",
     {CONSUMER}),
    ("""SELECT outbox.settle('mail', 'w', %(epoch)s, '[{"seq": 2, "kind": "retry", "attempts": 1, "delay_ms": 1}]')""",
     {CONSUMER}),
    ("""SELECT outbox.settle('mail', 'w', %(epoch)s, '[{"seq": 2, "kind": "delivered", "receipt": "r",
        "id": "01a1e144-ba7a-7541-824e-a17ad541ace3"}]')""", {CONSUMER}),
    ("SELECT outbox.handle_once('mail', 'key')", {CONSUMER}),
    ("UPDATE outbox.handled SET hash = 0", set()),
    ("SELECT outbox.wakeup_sleep()", {PRODUCER, CONSUMER, OPERATOR}),  # locks that any role may take

    ("SELECT outbox.pause('mail')", {OPERATOR}),
    ("SELECT outbox.redrive('mail')", {OPERATOR}),
    ("UPDATE outbox.dead SET retrying = true", set()),
    ("UPDATE outbox.dead SET payload = '2'", set()),
    ("DELETE FROM outbox.dead", set()),
    ("SELECT outbox.drop_dead('mail', 1)", {OPERATOR}),
    ("DELETE FROM outbox.consumer", set()),
    ("SELECT outbox.remove('mail', true)", {OPERATOR}),
    ("SELECT outbox._report('mail', 'down')", {CONSUMER}),
    ("SELECT outbox.trim('0s')", {OPERATOR}),
    ("SELECT outbox._trim_dry_run('0s')", {OPERATOR}),
    ("SELECT * FROM outbox.consumer_status", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox.delivery", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox.dead", {CONSUMER, OPERATOR}),
    ("SELECT * FROM outbox.claim", {CONSUMER, OPERATOR}),
    ("SELECT value FROM outbox.meta", {PRODUCER, CONSUMER, OPERATOR}),

    ("UPDATE outbox.meta SET value = '9'", set()),
    ("SELECT outbox.allow('operator', current_user)", set()),
    ("SELECT outbox.disallow('operator', current_user)", set()),
    ("SELECT * FROM outbox.adopt('outbox.meta')", set()),
    ("SELECT outbox.unadopt('outbox.meta')", set()),
    ("CREATE TABLE outbox.mine (x int)", set()),
    ("ALTER TABLE outbox.event DISABLE TRIGGER ring", set()),
    ("DROP TABLE outbox.event", set()),
]


class Grants(PgCase):
    def setUp(self):
        super().setUp()
        self.init()

    def fill(self):
        """fill creates one object of each kind: a dead letter, a live claim (it returns the epoch), a key."""
        self.emit("a", "k/1", 1, "--idempotency-key", "known")
        self.sql("SELECT outbox.register('mail')")
        epoch = self.sql("SELECT epoch FROM outbox.claim('mail', 'w')")[0][0]
        self.sql("""SELECT outbox.settle('mail', 'w', %s,
                    '[{"seq": 1, "kind": "dead", "attempts": 1, "error": "no"}]')""", epoch)
        self.sql("SELECT outbox.handle_once('mail', 'old')")
        self.emit("a", "k/2", 2)
        epoch = self.sql("SELECT epoch FROM outbox.claim('mail', 'w', lease_ms => 3600000)")[0][0]
        self.emit("a", "k/3", 3)
        return epoch

    def attempt(self, store, statement, params):
        """attempt returns whether a role may run the statement, and undoes the change."""
        db = psycopg2.connect(store)
        try:
            with db.cursor() as cursor:
                cursor.execute(statement, params)
                return True
        except psycopg2.Error as error:
            self.assertEqual(error.pgcode, REFUSED, f"{statement}: {error}")
            return False
        finally:
            db.rollback()
            db.close()

    def test_each_grant_allows_exactly_its_operations(self):
        epoch = self.fill()
        roles = {part: self.role(part) for part in (PRODUCER, CONSUMER, OPERATOR)}
        for statement, allowed in RULES:
            for part, store in roles.items():
                with self.subTest(part=part, statement=statement):
                    may = self.attempt(store, statement, {"epoch": epoch})
                    self.assertEqual(may, part in allowed)

    def test_role_without_a_grant_may_do_nothing(self):
        epoch = self.fill()
        stranger = self.role()
        for statement, _ in RULES:
            with self.subTest(statement=statement):
                self.assertFalse(self.attempt(stranger, statement, {"epoch": epoch}))

    def test_operator_can_read_every_table(self):
        operator = self.role(OPERATOR)
        for name, in self.sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN "
                              "('r', 'v', 'S')"):
            with self.subTest(table=name):
                self.assertTrue(self.attempt(operator, f"SELECT * FROM outbox.{name}", None))

    def test_cli_needs_only_the_grant(self):
        """From an emit to a delivery, a dead letter and its retry, each step with its own role."""
        producer, consumer, operator = (self.role(p) for p in (PRODUCER, CONSUMER, OPERATOR))
        out = self.path("out.ndjson")
        ok = self.emit("a", "k/1", 1, "--store", producer)
        self.emit("a", "k/2", 2, "--idempotency-key", "once", "--store", producer)
        self.emit("a", "k/2", 2, "--idempotency-key", "once", "--store", producer)
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", "exec:exit 65", "--receipts", "--store", consumer)
        self.assertEqual(len(self.json("dead", "list", "--store", consumer)), 2)
        self.outbox("dead", "retry", "--all", "--store", consumer, status=UNAVAILABLE)
        self.outbox("consumers", "pause", "mail", "--store", operator)
        self.outbox("consumers", "resume", "mail", "--store", operator)
        self.assertEqual(self.json("dead", "retry", "--all", "--store", operator)["retried"], 2)
        self.outbox("relay", "--drain", "--consumer", "mail", "--sink", f"file:{out}", "--receipts", "--store", consumer)
        self.assertEqual([e["payload"] for e in self.ndjson(out)], [1, 2])
        self.assertEqual(self.ndjson(out)[0]["id"], ok)
        self.assertEqual(self.json("dead", "list", "--store", operator), [])
        self.outbox("trim", "--older-than", "0s", "--yes", "--store", consumer, status=UNAVAILABLE)
        self.assertEqual(self.json("trim", "--older-than", "0s", "--yes", "--store", operator)["events"], 2)
        self.outbox("emit", "a", "--store", operator, status=UNAVAILABLE)
        self.outbox("emit", "a", "--store", consumer, status=UNAVAILABLE)
        self.outbox("events", "list", "--store", producer, status=UNAVAILABLE)
        self.outbox("consumers", "remove", "mail", "--yes", "--store", consumer, status=UNAVAILABLE)
        self.outbox("consumers", "remove", "mail", "--yes", "--store", operator)

    def test_relay_can_sleep_with_only_consumer_rights(self):
        producer, consumer = self.role(PRODUCER), self.role(CONSUMER)
        out = self.path("out.ndjson")
        with self.relay("--consumer", "mail", "--sink", f"file:{out}", "--store", consumer, "--retention", "0s") as relay:
            self.emit("a", None, 1, "--store", producer)
            wait_until(lambda: len(self.ndjson(out)) == 1, what=relay.output)
        self.assertNotIn("permission denied", relay.output())

    def test_revoking_one_grant_keeps_the_others(self):
        store = self.role(PRODUCER, CONSUMER)
        name = store.partition("user=")[2].partition("&")[0]
        self.assertEqual(self.outbox("revoke", "--dry-run", "consumer", name).stdout,
                         f'role "{name}": would no longer have consumer rights\n')
        self.outbox("revoke", "--dry-run", "consumer", "nobody_at_all", status=DATA)
        self.assertEqual(self.outbox("revoke", "--yes", "consumer", name).stdout, f'role "{name}": no longer has consumer rights\n')
        self.assertEqual(self.json("revoke", "--dry-run", "consumer", name)["changed"], False)
        self.assertEqual(self.outbox("revoke", "--yes", "consumer", name).stdout, f'role "{name}": had no consumer rights\n')
        self.emit("a", None, 1, "--idempotency-key", "k", "--store", store)
        self.assertFalse(self.attempt(store, "SELECT * FROM outbox.event", None))
        self.assertEqual(json.loads(self.outbox("revoke", "--yes", "producer", name, "--json").stdout)["changed"], True)
        self.assertFalse(self.attempt(store, "SELECT 1 FROM outbox.meta", None))
        self.assertEqual(self.sql("SELECT count(*) FROM pg_class c, aclexplode(c.relacl) x WHERE x.grantee = %s::regrole",
                                  name), [(0,)])
        self.assertEqual(self.sql("SELECT has_schema_privilege(%s, 'outbox', 'USAGE')", name), [(False,)])

    def test_invalid_grants_are_explained(self):
        odd = 'odd "role'
        self.sql('CREATE ROLE "odd ""role"')
        self.addCleanup(self.sql, 'DROP OWNED BY "odd ""role"; DROP ROLE "odd ""role"')
        self.outbox("grant", "operator", odd)
        self.assertEqual(self.sql("SELECT outbox.parts(%s)", odd), [("operator",)])
        self.assertIn('no role "nobody_there"', self.outbox("grant", "producer", "nobody_there", status=DATA).stderr)
        self.assertIn("did you mean producer?", self.outbox("grant", "produzer", odd, status=64).stderr)
        self.assertIn("no roles", self.outbox("grant", "producer", odd, "--store", "sqlite::memory:", status=78).stderr)
        self.assertIn("permission denied", self.outbox("grant", "producer", odd, "--store", self.role(OPERATOR),
                                                       status=UNAVAILABLE).stderr)


if __name__ == "__main__":
    unittest.main()
