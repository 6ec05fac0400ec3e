"""Roles of the database that are hostile: each tries what it was not given. One outbox for all of it, with a row of everything in it;
what a role does is undone."""
# build: plain
import json
import subprocess
import unittest
import uuid

import psycopg2
import servers
from support import BIN, postgres_server

REFUSED = "42501"


class Lair:
    """An outbox in a database of its own, and the roles that try. Consumers: mail and audit are the platform's, a.mail and b.mail
    are tenants'."""

    def __init__(self):
        server = postgres_server()
        self.dbname = f"t_{uuid.uuid4().hex}"
        servers.create_database(server, self.dbname)
        self.url = server.replace("postgres:///?", f"postgres:///{self.dbname}?")
        self.db = psycopg2.connect(self.url)
        self.db.autocommit = True
        self.names = []
        self.outbox("init")
        self.fill()

    def close(self):
        for name in self.names: self.do(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        self.db.close()
        servers.drop_database(postgres_server(), self.dbname)

    def outbox(self, *args):
        done = subprocess.run([BIN, *args, "--store", self.url], capture_output=True, text=True, check=False)
        if done.returncode != 0: raise AssertionError(f"{args}: {done.stderr}")
        return done.stdout

    def do(self, statement, *params):
        with self.db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def role(self, *grants):
        """role makes one; each grant is what comes behind `outbox grant`, with {} for its name."""
        name = f"h{uuid.uuid4().hex[:12]}"
        self.do(f"CREATE ROLE {name} LOGIN")
        self.names.append(name)
        for grant in grants: self.outbox("grant", *(word.replace("{}", name) for word in grant.split()))
        return name

    def fill(self):
        """fill leaves a dead letter, a parked event, a live claim and more of each consumer, and of each tenant."""
        for tenant, consumers in (("", ("mail", "audit")), ("a", ("a.mail",)), ("b", ("b.mail",))):
            self.do("SELECT set_config('outbox.tenant', %s, false)", tenant)
            for i in (1, 2): self.do("SELECT outbox.emit('t', 'k', %s, %s)", f"{tenant}{i}", json.dumps(f"secret of {tenant}"))
            self.do("SELECT outbox.emit('t', 'k', '3', '3', idempotency_key => %s)", f"key of {tenant or 'all'}")
            for name in consumers: self.do("SELECT outbox.register(%s, lanes => 1)", name)
            self.do("SELECT outbox.handle_once(%s, 'seen')", consumers[0])
        self.do("SET outbox.tenant = ''")
        # As the owner cannot claim for a tenant, two roles leave what is theirs.
        self.claims = {}
        for name, role in (("mail", self.role("consumer {}")), ("a.mail", self.role("consumer {} --tenant a")),
                           ("b.mail", self.role("consumer {} --tenant b"))):
            self.do(f"SET SESSION AUTHORIZATION {role}")
            rows = self.do("SELECT epoch, seq FROM outbox.claim(%s, 'w')", name)
            out = [{"seq": rows[0][1], "kind": "dead", "error": "bad"}, {"seq": rows[1][1], "kind": "retry", "delay_ms": 3600000}]
            self.do("SELECT outbox.settle(%s, 'w', %s, %s)", name, rows[0][0], json.dumps(out))
            self.do("RESET SESSION AUTHORIZATION")
            self.do("SELECT outbox.emit('t', 'k', '4', '4', tenant => %s)", name[0] if name[1] == "." else None)
            self.do(f"SET SESSION AUTHORIZATION {role}")
            self.claims[name] = self.do("SELECT epoch FROM outbox.claim(%s, 'w', lease_ms => 86400000)", name)[0][0]
            self.do("RESET SESSION AUTHORIZATION")


lair = None


def setUpModule():
    global lair
    lair = Lair()


def tearDownModule():
    lair.close()


class Hostile(unittest.TestCase):
    def as_role(self, role):
        """as_role is a connection of the role's own, gone with the test."""
        db = psycopg2.connect(lair.url.replace("user=outbox_test", f"user={role}"))
        db.autocommit = True
        self.addCleanup(db.close)
        return db

    def run_on(self, db, statement, *params):
        with db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def refused(self, db, statement, *params, state=REFUSED):
        with self.assertRaises(psycopg2.Error, msg=statement) as caught: self.run_on(db, statement, *params)
        self.assertEqual(caught.exception.pgcode, state, f"{statement}: {caught.exception}")
        return str(caught.exception)


class Consumers(Hostile):
    """A role with the part consumer, for audit alone, and one for all."""

    @classmethod
    def setUpClass(cls):
        cls.audit, cls.all = lair.role("consumer {} --consumer audit"), lair.role("consumer {}")

    FORGED = "(consumer, seq, id, type, payload, attempts, created_at, dead_at, retrying) VALUES ('audit', 1000, gen_random_uuid(), " \
             "'order.paid', '{\"total\": 0}', 0, now(), now(), true)"

    def test_cannot_invent_an_event_that_the_relay_would_deliver(self):
        for role in (self.audit, self.all):
            db = self.as_role(role)
            self.refused(db, f"INSERT INTO outbox.dead {self.FORGED}")
            self.refused(db, "INSERT INTO outbox.parked (consumer, seq, key, attempts, due_at) VALUES ('audit', 1000, 0, 0, now())")
            self.refused(db, "INSERT INTO outbox.event (type) VALUES ('x')")

    def test_cannot_settle_extend_or_shrink_anothers_claim(self):
        db, epoch = self.as_role(self.audit), lair.claims["mail"]
        said = self.refused(db, "SELECT outbox.settle('mail', 'w', %s)", epoch)
        self.assertIn(f'role "{self.audit}" may not work on consumer "mail"', said)
        self.assertIn("--consumer mail", said)
        self.refused(db, "SELECT outbox.extend('mail', 'w', %s)", epoch)
        self.refused(db, "SELECT outbox.worker_shrink('mail', 'w', %s, 1)", epoch)
        self.refused(db, "SELECT outbox.claim('mail', 'v')")
        self.refused(db, "SELECT outbox.register('mail', events => 'none')")
        self.refused(db, "SELECT outbox.register('other')")
        self.refused(db, "SELECT outbox.report('mail', 'all is well')")

    def test_works_on_its_own_and_on_its_handlers(self):
        db = self.as_role(self.audit)
        self.assertEqual(self.run_on(db, "SELECT outbox.register('audit')"), [(False,)])
        self.run_on(db, "BEGIN")
        self.assertTrue(self.run_on(db, "SELECT outbox.handle_once('audit.ledger', 'k')")[0][0])
        self.refused(db, "SELECT outbox.handle_once('auditor', 'k')")
        self.run_on(db, "ROLLBACK")
        self.run_on(db, "BEGIN")
        self.assertTrue(self.run_on(db, "SELECT outbox.register('audit.ledger')")[0][0])
        self.run_on(db, "ROLLBACK")
        self.assertTrue(self.run_on(db, "SELECT count(*) > 0 FROM outbox.claim('audit', 'me', 1, 1)")[0][0])

    def test_cannot_see_anothers_dead_letters_claims_or_name(self):
        db = self.as_role(self.audit)
        for table in ("lane", "claim", "parked", "dead", "mark", "receipt", "setting", "ended", "former_filter", "delivery"):
            self.assertEqual(self.run_on(db, f"SELECT consumer FROM outbox.{table} WHERE consumer <> 'audit'"), [], table)
        self.assertEqual(self.run_on(db, "SELECT name FROM outbox.consumer_status"), [("audit",)])
        self.assertEqual(self.run_on(db, "SELECT 1 FROM outbox.claimed('mail', %s)", lair.claims["mail"]), [])

    def test_cannot_move_a_lane_or_a_sequence(self):
        for role in (self.audit, self.all):
            db = self.as_role(role)
            self.refused(db, "UPDATE outbox.lane SET seen = '9999:9999:'")
            self.refused(db, "DELETE FROM outbox.lane")
            for sequence in ("epoch", "event_seq_seq"):
                self.refused(db, f"SELECT nextval('outbox.{sequence}')")
                self.refused(db, f"SELECT setval('outbox.{sequence}', 1)")

    def test_cannot_leave_a_receipt_that_stops_every_consumer(self):
        """A receipt past the last event's number looks as if event numbers had begun again."""
        db = self.as_role(self.all)
        self.refused(db, """SELECT outbox.settle('mail', 'w', %s, '[{"seq": 9000000000000000000, "kind": "delivered",
            "id": "01a1e144-ba7a-7541-824e-a17ad541ace3", "receipt": "r"}]')""", lair.claims["mail"], state="OB004")

    def test_cannot_claim_past_the_last_event(self):
        """The numbers of claims are where new ones go on when an outbox is made right."""
        db = self.as_role(self.audit)
        self.run_on(db, "BEGIN")
        rows = self.run_on(db, "SELECT outbox.worker_turn('audit', 'me', 0, 0, '[]', 0, 1, 60000, 5, 2, true, false, 0, '{}', NULL, NULL, "
                               "NULL, NULL, -1, NULL, 0, 0, 0, 3, NULL)")
        target = self.run_on(db, "SELECT target::text, pos FROM outbox.lane WHERE consumer = 'audit' AND lane = 0")
        self.assertEqual(len(rows), 1)
        if target:
            self.run_on(db, "SELECT outbox.worker_turn('audit', 'me', 0, 0, '[]', 0, 1, 60000, 5, 2, true, false, 0, '{}', 'key', 1, '', '', "
                            "0, %s, %s, 9000000000000000000, 1, 3, NULL)", *target[0])
        self.assertEqual(self.run_on(db, "SELECT 1 FROM outbox.claim WHERE to_seq > 1000000"), [])
        self.run_on(db, "ROLLBACK")

    def test_what_it_says_of_the_cluster_is_not_believed(self):
        db = self.as_role(self.audit)
        self.run_on(db, "SET outbox.cluster = '1234567890'")
        self.run_on(db, "SELECT count(*) FROM outbox.claim('audit', 'me', 1, 1)")
        self.assertEqual(lair.do("SELECT 1 FROM outbox.lane WHERE home LIKE '1234567890%'"), [])
        self.assertEqual(lair.do("SELECT outbox.moved()"), [(False,)])

    def test_nothing_of_its_own_runs_with_the_owners_rights(self):
        """Functions and operators that look like PostgreSQL's, found first by its search_path."""
        db, schema = self.as_role(self.audit), f"s{uuid.uuid4().hex[:8]}"
        lair.do(f"CREATE SCHEMA {schema} AUTHORIZATION {self.audit}")
        lair.do(f"CREATE TABLE {schema}.ran_as (who text); GRANT INSERT, SELECT ON {schema}.ran_as TO PUBLIC")
        spy = f"LANGUAGE plpgsql AS $$BEGIN INSERT INTO {schema}.ran_as VALUES (current_user); RETURN "
        for name, args, returns, value in (
                ("hashtextextended", "text, int", "bigint", "1"), ("hashtextextended", "text, bigint", "bigint", "1"),
                ("coalesce_", "text", "text", "$1"), ("set_config", "text, text, boolean", "text", "$2"),
                ("current_setting", "text", "text", "'x'"), ("current_setting", "text, boolean", "text", "''"),
                ("clock_timestamp", "", "timestamptz", "now()"), ("greatest_", "", "int", "1"),
                ("has_table_privilege", "regclass, text", "boolean", "true"), ("has_table_privilege", "oid, text", "boolean", "true"),
                ("pg_has_role", "name, oid, text", "boolean", "true"), ("format", "text, text", "text", "$1"),
                ("eq", "text, text", "boolean", "true"), ("ne", "text, text", "boolean", "true")):
            self.run_on(db, f"CREATE FUNCTION {schema}.{name}({args}) RETURNS {returns} {spy}{value}; END$$")
        for sign, function in (("=", "eq"), ("<>", "ne"), ("~~", "eq"), ("!~", "ne")):
            self.run_on(db, f"CREATE OPERATOR {schema}.{sign} (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.{function})")
        self.run_on(db, f"SET search_path = {schema}, pg_catalog")
        for statement in ("SELECT outbox.worker_register('mail', '', '', 'key', 1, 'fast', 'end', NULL, 'start')",
                          "SELECT outbox.worker_extend('audit', 'w', 1, 1000)", "SELECT outbox.worker_handle('audit', 'k', 1)",
                          "SELECT outbox.worker_turn('audit', 'me', 0, 0, '[]', 0, 1, 1, 5, 2, true, false, 0, '{}', NULL, NULL, NULL, "
                          "NULL, -1, NULL, 0, 0, 0, 3, NULL)"):
            try:
                self.run_on(db, statement)
            except psycopg2.Error as error:
                self.assertIn("mail", statement, error)
        self.assertEqual(lair.do(f"SELECT DISTINCT who FROM {schema}.ran_as WHERE who <> %s", self.audit), [])

    def test_an_index_that_the_server_keeps_up_lends_it_nothing(self):
        """A function in an index of its own table, which a superuser's ANALYZE runs with its rights, in that one's session."""
        db, schema = self.as_role(self.audit), f"s{uuid.uuid4().hex[:8]}"
        lair.do(f"CREATE SCHEMA {schema} AUTHORIZATION {self.audit}")
        self.run_on(db, f"CREATE TABLE {schema}.t (x int, said text); INSERT INTO {schema}.t VALUES (1), (2)")
        self.run_on(db, f"CREATE FUNCTION {schema}.f(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN x; END'")
        self.run_on(db, f"CREATE INDEX i ON {schema}.t ({schema}.f(x))")
        self.run_on(db, f"CREATE FUNCTION {schema}.g() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM outbox.worker_report('mail', "
                        "'stolen'); EXCEPTION WHEN insufficient_privilege THEN NULL; END$$")
        self.run_on(db, f"CREATE OR REPLACE FUNCTION {schema}.f(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN PERFORM "
                        f"{schema}.g(); RETURN x; END$$")
        lair.do(f"ANALYZE {schema}.t")
        self.assertEqual(lair.do("SELECT 1 FROM outbox.consumer WHERE report = 'stolen'"), [])


class Tenants(Hostile):
    """Roles that are held to a tenant, and say that they are another, or the platform."""

    @classmethod
    def setUpClass(cls):
        cls.consumer = lair.role("consumer {} --tenant a")
        cls.producer = lair.role("producer {} --tenant a")
        cls.operator = lair.role("operator {} --tenant a")

    def connections(self, role):
        for said in ("", "a", "b"):
            db = self.as_role(role)
            self.run_on(db, "SELECT set_config('outbox.tenant', %s, false)", said)
            yield said, db

    def test_sees_its_own_whatever_it_says(self):
        for role in (self.consumer, self.operator):
            for said, db in self.connections(role):
                self.assertEqual(self.run_on(db, "SELECT DISTINCT tenant FROM outbox.event"), [("a",)], said)
                self.assertEqual(self.run_on(db, "SELECT name FROM outbox.consumer"), [("a.mail",)], said)
                self.assertEqual(self.run_on(db, "SELECT DISTINCT consumer FROM outbox.dead"), [("a.mail",)], said)

    def test_works_on_no_consumer_of_another(self):
        for said, db in self.connections(self.consumer):
            for name in ("b.mail", "mail"):
                state = REFUSED if said == "b" else "OB003"
                self.refused(db, f"SELECT outbox.claim('{name}', 'v')", state=state)
                self.refused(db, f"SELECT outbox.settle('{name}', 'w', {lair.claims[name]})", state=state)
                self.refused(db, f"SELECT outbox.register('{name}')", state=REFUSED if said == "b" else "OB004")
                if said != "b": self.assertEqual(self.run_on(db, f"SELECT outbox.extend('{name}', 'w', {lair.claims[name]})"), [(False,)])

    def test_operates_on_no_consumer_of_another(self):
        for said, db in self.connections(self.operator):
            if said == "b": continue
            for name in ("b.mail", "mail"):
                self.assertEqual(self.run_on(db, f"SELECT outbox.pause('{name}')"), [(False,)])
                self.refused(db, f"SELECT outbox.redrive('{name}')", state="OB003")
                self.assertEqual(self.run_on(db, f"SELECT known FROM outbox.remove('{name}', true)"), [(False,)])
            self.refused(db, "SELECT outbox.trim('0s')", state="OB004")
        self.assertEqual(lair.do("SELECT count(*) FROM outbox.consumer WHERE paused"), [(0,)])

    def test_emits_for_itself_and_chooses_no_id(self):
        event = lair.do("SELECT id FROM outbox.event WHERE tenant = 'b' LIMIT 1")[0][0]
        for said, db in self.connections(self.producer):
            self.run_on(db, "BEGIN")
            mine = self.run_on(db, "SELECT outbox.emit('x', 'k', '1', '1')")[0][0]
            once = self.run_on(db, "SELECT id, duplicate FROM outbox.emit_once('x', 'k', '1', '1', NULL, 'once')")[0]
            again = self.run_on(db, "SELECT id, duplicate FROM outbox.emit_once('x', 'k', '1', '1', NULL, 'once')")[0]
            self.assertEqual((once[1], again[1], again[0]), (False, True, once[0]))
            self.assertEqual(len(self.run_on(db, "SELECT id FROM outbox.event WHERE id IN (%s, %s)", mine, once[0])), 2)
            self.run_on(db, "ROLLBACK")
            self.refused(db, "SELECT outbox.emit('x', 'k', '1', '1', tenant => 'b')")
            self.refused(db, "INSERT INTO outbox.event (type, tenant) VALUES ('x', 'b')")
            self.refused(db, "INSERT INTO outbox.event (type, tenant) VALUES ('x', NULL)")
            self.refused(db, "INSERT INTO outbox.event (id, type, tenant) VALUES (%s, 'x', 'a')", event)

    def test_knows_no_keys_of_another(self):
        """Neither by looking, nor by using one: the same key is another one for it, and is not waited for."""
        holder = psycopg2.connect(lair.url)
        self.addCleanup(holder.close)
        with holder.cursor() as cursor: cursor.execute("SELECT outbox.emit('t', 'k', '1', '1', idempotency_key => 'held', tenant => 'b')")
        for said, db in self.connections(self.producer):
            self.assertEqual(self.run_on(db, "SELECT DISTINCT tenant FROM outbox.idempotency"), [("a",)], said)
            self.run_on(db, "SET statement_timeout = '5s'")
            self.run_on(db, "BEGIN")
            for key in ("key of b", "held"):
                self.assertEqual(self.run_on(db, f"SELECT duplicate FROM outbox.emit_once('t', 'k', '9', '9', NULL, '{key}')"), [(False,)])
            self.run_on(db, "ROLLBACK")
            self.refused(db, "INSERT INTO outbox.idempotency (tenant, key, event_id, hash) VALUES ('b', 'next', gen_random_uuid(), 0)")

    def test_has_an_inbox_of_its_own(self):
        for said, db in self.connections(self.consumer):
            if said == "b": continue
            self.run_on(db, "BEGIN")
            self.assertEqual(self.run_on(db, "SELECT outbox.handle_once('b.mail', 'seen')"), [(True,)])
            self.assertEqual(self.run_on(db, "SELECT outbox.handled_before('{mail}', '{seen}')"), [])
            self.run_on(db, "ROLLBACK")
            self.refused(db, "SELECT * FROM outbox.handled")
            self.refused(db, "INSERT INTO outbox.handled (handler, key, hash) VALUES ('mail', 'x', 0)")


if __name__ == "__main__":
    unittest.main()
