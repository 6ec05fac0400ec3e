"""The examples work as described, in every language, and the languages work together on one outbox."""
# build: plain
# quick: no
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

import psycopg2
import servers
from pages import items, section
from support import BIN, ROOT, TIMEOUT, Case, PgCase, clean_env, thorough, wait_until

EXAMPLES = ROOT / "examples"
SHOP = pathlib.Path(BIN).parent / "examples" / "shop"
WORKER = pathlib.Path(BIN).parent / "examples" / "worker"
# The folders of npm modules installed by ./test and of Debian's modules.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outbox-tests"
NODE_PATH = ":".join(filter(None, [os.environ.get("NODE_PATH"), str(CACHE / "node_modules"), "/usr/share/nodejs"]))
NO_NODE = "no module pg for node: ./test says why it could not get it"


def node_has_pg():
    try:
        done = subprocess.run(["node", "-e", "require('pg')"], env={**os.environ, "NODE_PATH": NODE_PATH},
                              capture_output=True)
        return done.returncode == 0
    except FileNotFoundError:
        return False


NODE = node_has_pg()
# Go uses the modules that ./test has downloaded, and downloads nothing itself.
GO_ENV = {"GOMODCACHE": str(CACHE / "go" / "mod"), "GOCACHE": str(CACHE / "go" / "build"), "GOPROXY": "off", "GOFLAGS": "-mod=readonly",
          "GOTOOLCHAIN": "local"}
NO_GO = "no Go, or no module pgx for it: ./test says why it could not get it"


def go_has_pgx():
    try:
        done = subprocess.run(["go", "list", "github.com/jackc/pgx/v5"], cwd=EXAMPLES / "go", env={**os.environ, **GO_ENV},
                              capture_output=True)
        return done.returncode == 0
    except FileNotFoundError:
        return False


GO = go_has_pgx()


class ExampleCase(PgCase):
    """A Case with an outbox, and the examples to run on it."""

    PROGRAMS = {
        ("python", "producer"): [sys.executable, EXAMPLES / "python" / "producer.py"],
        ("python", "consumer"): [sys.executable, EXAMPLES / "python" / "consumer.py", "--drain"],
        ("node", "producer"): ["node", EXAMPLES / "node" / "producer.js"],
        ("node", "consumer"): ["node", EXAMPLES / "node" / "consumer.js", "--drain"],
        ("psql", "producer"): ["psql", "-X", "-f", EXAMPLES / "psql" / "producer.sql"],
        ("psql", "consumer"): [EXAMPLES / "psql" / "consumer.sh", "--drain"],
    }

    def setUp(self):
        super().setUp()
        self.init()

    def env(self, extra=None):
        """env names the database the way libpq does, which every driver understands."""
        url = urllib.parse.urlsplit(self.store)
        where = {f"PG{name.upper()}": value for name, value in urllib.parse.parse_qsl(url.query)}
        env = clean_env({**where, "PGDATABASE": url.path.lstrip("/"), "BACKOFF_MS": "20", "NODE_PATH": NODE_PATH})
        env.pop("DATABASE_URL", None)
        return {**env, "OUTBOX_STORE": self.store, **(extra or {})}

    def example(self, language, what, env=None):
        done = subprocess.run(self.PROGRAMS[language, what], cwd=self.dir, env=self.env(env), capture_output=True,
                              text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, f"{language} {what}\n{done.stdout}{done.stderr}")
        return done

    def produce(self, language):
        return self.example(language, "producer").stdout

    def consume(self, language):
        """consume runs a consumer until no event is left, not even a delayed one."""
        said = ""

        def idle():
            nonlocal said
            said += self.example(language, "consumer").stderr
            return self.status("parked + inflight + behind") == 0

        wait_until(idle)
        return said

    def status(self, what):
        return self.sql(f"SELECT {what} FROM outbox.consumer_status WHERE name = 'revenue'")[0][0]

    def order(self, order, customer, total, not_before=None):
        payload = json.dumps({"customer": customer, "total": total})
        return self.sql("SELECT outbox.emit('order.created', 'order', %s, %s, not_before => now() + %s::interval)",
                        str(order), payload, not_before)[0][0]

    def revenue(self):
        return dict(self.sql("SELECT customer, total FROM revenue"))

    def revenue_if_any(self):
        there = self.sql("SELECT to_regclass('revenue') IS NOT NULL")[0][0]
        return self.revenue() if there else {}

    def states(self):
        rows = self.sql("SELECT state FROM outbox.delivery WHERE consumer = 'revenue' ORDER BY seq")
        return [state for (state,) in rows]


class Claims:
    """Claims about every language."""

    def test_rollback_leaves_no_event_behind(self):
        self.produce(self.language)
        self.assertEqual(self.sql("SELECT customer, total FROM shop_order ORDER BY id"), [("ada", 30), ("ada", 12)])
        self.assertEqual(self.sql("SELECT type, payload FROM outbox.event ORDER BY seq"),
                         [("order.created", {"customer": "ada", "total": 30}),
                          ("order.created", {"customer": "ada", "total": 12})])
        self.assertEqual(self.sql("SELECT aggregate_id FROM outbox.event ORDER BY seq"),
                         self.sql("SELECT id::text FROM shop_order ORDER BY id"))

    def test_committed_events_are_consumed_once_across_two_runs(self):
        self.produce(self.language)
        self.consume(self.language)
        self.assertEqual(self.revenue(), {"ada": 42})
        self.assertEqual(self.states(), ["delivered"] * 2)
        self.consume(self.language)
        self.assertEqual(self.revenue(), {"ada": 42})
        self.assertEqual(self.status("delivered"), 2)

    def test_redelivered_event_takes_effect_once(self):
        self.produce(self.language)
        self.consume(self.language)
        for table in "consumer WHERE name", "lane WHERE consumer":  # removed, it starts at the beginning again
            self.sql(f"DELETE FROM outbox.{table} = 'revenue'")
        self.consume(self.language)
        self.assertEqual((self.status("delivered"), self.revenue()), (2, {"ada": 42}))

    def test_failing_event_holds_back_only_its_key_until_buried(self):
        bad = self.order(1, "ada", "oops")
        self.order(1, "ada", 1)
        self.order(2, "bob", 2)
        self.consume(self.language)
        self.assertEqual(self.states(), ["expired", "delivered", "delivered"])
        self.assertEqual(self.sql("SELECT id, attempts, error LIKE '%%oops%%' FROM outbox.dead WHERE consumer = %s",
                                  "revenue"), [(bad, 3, True)])
        self.assertEqual(self.revenue(), {"ada": 1, "bob": 2})
        handled = self.sql("SELECT e.payload ->> 'customer' FROM outbox.handled h JOIN outbox.event e"
                           " ON e.id::text = h.key ORDER BY h.at")
        self.assertEqual(handled, [("bob",), ("ada",)])  # behind the failed event, its own key waited

    CLASSES = {"python": "InvalidTextRepresentation: ", "node": "DatabaseError: ", "psql": "22P02: "}

    def test_stored_error_names_its_class(self):
        self.order(1, "ada", "oops")
        self.consume(self.language)
        error = self.sql("SELECT error FROM outbox.dead")[0][0]
        self.assertTrue(error.startswith(self.CLASSES[self.language]), error)

    def test_draining_does_not_wait_for_delayed_events(self):
        self.order(1, "ada", 1, "1h")
        self.order(1, "ada", 2)  # it waits behind the first event
        self.order(2, "bob", 4)
        self.example(self.language, "consumer")
        self.assertEqual(self.revenue(), {"bob": 4})
        self.assertEqual(self.status("parked"), 2)

    def test_lost_connection_is_reopened(self):
        worker = self.spawn(*self.PROGRAMS[self.language, "consumer"][:-1])
        end = ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
               "pid <> pg_backend_pid() AND backend_type = 'client backend'")
        for n in range(1, 4):
            self.order(n, "ada", n)
            wait_until(lambda: self.revenue_if_any() == {"ada": n * (n + 1) // 2}, what=worker.output)
            wait_until(lambda: self.sql(end), what=worker.output)
        # Half-way through an event, too: its transaction is undone, and it is handled again.
        with psycopg2.connect(self.store, application_name="outside") as db, db.cursor() as sql:
            sql.execute("SELECT 1 FROM revenue FOR UPDATE")
            self.order(4, "ada", 4)
            waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            pid = wait_until(lambda: self.sql(waits), what=worker.output)[0][0]
            self.sql("SELECT pg_terminate_backend(%s)", pid)
        db.close()
        if self.language == "psql":  # which cannot finish its batch: another worker takes it over when its lease expires
            self.sql("UPDATE outbox.claim SET locked_until = now()")
        wait_until(lambda: self.revenue_if_any() == {"ada": 10}, what=worker.output)
        wait_until(lambda: self.status("parked + inflight") == 0, what=worker.output)
        self.assertTrue(worker.running(), worker.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.dead"), [(0,)])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.parked WHERE attempts > 0"), [(0,)])

    def test_event_is_not_handled_before_its_time(self):
        self.order(1, "ada", 1, "1s")
        self.order(1, "ada", 2)
        self.order(2, "bob", 4)
        self.consume(self.language)
        self.assertEqual(self.revenue(), {"ada": 3, "bob": 4})
        late = "SELECT bool_and(h.at >= e.not_before) FROM outbox.handled h JOIN outbox.event e ON e.id::text = h.key"
        self.assertEqual(self.sql(late), [(True,)])
        self.assertEqual(self.status("delivered"), 3)

    def test_claim_of_a_dead_worker_is_taken_over(self):
        self.produce(self.language)
        self.sql("SELECT outbox.register('revenue', events => 'order.*')")
        self.assertEqual(len(self.sql("SELECT * FROM outbox.claim('revenue', 'the late one', lease_ms => 500)")), 2)
        wait_until(lambda: self.sql("SELECT 1 FROM outbox.claim WHERE locked_until < clock_timestamp()"))
        self.consume(self.language)
        self.assertEqual((self.status("delivered"), self.revenue()), (2, {"ada": 42}))


class Python(Claims, ExampleCase):
    language = "python"

    def test_database_url_selects_the_database(self):
        nowhere = {"PGHOST": "/nonexistent", "DATABASE_URL": self.store}
        self.assertIn("card declined", self.example("python", "producer", nowhere).stdout)
        self.example("python", "consumer", nowhere)
        self.assertEqual(self.revenue(), {"ada": 42})


@thorough("one language will do")
@unittest.skipUnless(NODE, NO_NODE)
class Node(Claims, ExampleCase):
    language = "node"


@thorough("one language will do")
@unittest.skipUnless(GO, NO_GO)
class Go(ExampleCase):
    """pgx asks the server for the type of each parameter, so its input depends on the casts."""
    language = "go"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.programs = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.programs.cleanup)
        for source in "producer.go", ROOT / "tests" / "scenario" / "pgx_emit.go":  # the first time, Go compiles its library, too
            subprocess.run(["go", "build", "-o", cls.programs.name + "/", source], cwd=EXAMPLES / "go", env={**os.environ, **GO_ENV},
                           check=True, timeout=600)

    def example(self, language, what, env=None):
        done = subprocess.run([f"{self.programs.name}/{what}"], env=self.env(env), capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    test_rollback_leaves_no_event_behind = Claims.test_rollback_leaves_no_event_behind

    def test_ids_payloads_and_headers_of_every_go_type_are_emitted(self):
        want = {tuple(line.split()) for line in self.example("go", "pgx_emit").stdout.splitlines()}
        self.assertEqual(len(want), 3 * 4 * 6 * 7 + 2)
        rows = self.sql("SELECT id::text, aggregate_id, headers IS NOT NULL, payload, coalesce(headers, '{\"a\": \"x\"}') FROM outbox.event")
        self.assertEqual({(id, key, str(headed).lower()) for id, key, headed, _, _ in rows}, want)
        self.assertTrue(all(payload == headers == {"a": "x"} for *_, payload, headers in rows))


@thorough("one language will do")
class Psql(Claims, ExampleCase):
    language = "psql"


class Together(ExampleCase):
    def test_events_from_one_language_are_consumed_in_another(self):
        self.produce("python")
        self.consume("psql")
        self.assertEqual(self.revenue(), {"ada": 42})
        self.produce("psql")
        self.consume("python")
        self.assertEqual(self.revenue(), {"ada": 84})
        self.assertEqual(self.states(), ["delivered"] * 4)

    @unittest.skipUnless(NODE, NO_NODE)
    def test_python_produces_and_node_consumes(self):
        self.produce("python")
        self.consume("node")
        self.assertEqual(self.revenue(), {"ada": 42})
        self.produce("node")
        self.consume("python")
        self.assertEqual(self.revenue(), {"ada": 84})
        self.assertEqual(self.states(), ["delivered"] * 4)

    def test_payload_in_bytes_is_json_in_utf8(self):
        given = '{"n": "\u00fc\u20ac"}'.encode()
        for function, more in ("emit", ""), ("emit_once", ", NULL::json, 'k'"):
            self.sql(f"SELECT outbox.{function}('t.e', 'order', 7, %s{more})", psycopg2.Binary(given))
        self.assertEqual(self.sql("SELECT payload::text FROM outbox.event"), [(given.decode(),)] * 2)

    def test_events_take_effect_once_with_workers_in_many_languages(self):
        self.consume("psql")  # create the table first: PostgreSQL fails if several sessions create it at once
        self.sql("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)"
                 " SELECT 'order.created', 'order', i::text, json_build_object('customer', 'c' || i %% 7, 'total', i)"
                 " FROM generate_series(1, %s) AS i", 1000)
        languages = ["python", "node" if NODE else "python", "psql"]
        workers = [self.spawn(*self.PROGRAMS[language, "consumer"]) for language in languages]
        for worker in workers: worker.wait()
        self.assertEqual(sum(self.revenue().values()), 1000 * 1001 // 2)
        self.assertEqual((self.status("delivered"), self.status("parked")), (1000, 0))


@thorough("one language will do")
class Restart(ExampleCase):
    """Workers in every language, and a server that restarts under them."""

    def setUp(self):
        Case.setUp(self)
        self.server = servers.Postgres()
        self.server.__enter__()
        self.addCleanup(self.server.close)
        self.addCleanup(self._end_children)
        self.server.create_database("shop")
        self.store = self.server.url("shop")
        self.init()

    def test_every_worker_continues_after_a_server_restart(self):
        total = 0
        for language in ["python", "psql"] + (["node"] if NODE else []):
            worker = self.spawn(*self.PROGRAMS[language, "consumer"][:-1])
            for mode in "fast", "immediate", None:
                total += 1
                self.order(total, "ada", 1)
                wait_until(lambda: self.revenue_if_any() == {"ada": total}, what=worker.output)
                if mode: self.server.restart(mode)
            self.assertTrue(worker.running(), f"{language}\n{worker.output()}")
            worker.kill()
            wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop'") == [(1,)])
            self.sql("UPDATE outbox.claim SET locked_until = now()")


class Shop:
    """The shop in C, on either store."""

    def shop(self, count):
        done = subprocess.run([SHOP, self.store, str(count)], cwd=self.dir, env=self.env(), capture_output=True,
                              text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def letters(self):
        return [line.split()[0] for line in self.path("mail.txt").read_text().splitlines()]

    def count(self, what):
        return self.sql(f"SELECT count(*) FROM {what}")[0][0]

    def exact(self, count):
        """exact: everything that was ordered has left the shelf, once, and every notification was sent."""
        kept = [i for i in range(1, count + 1) if i % 7]
        self.assertEqual(self.sql("SELECT id FROM orders ORDER BY id"), [(i,) for i in kept])
        for k, item in enumerate(("apple", "pear", "plum")):
            left = 100000 - sum(1 + i % 5 for i in kept if i % 3 == k)
            self.assertEqual(self.sql(f"SELECT quantity FROM stock WHERE item = '{item}'"), [(left,)], item)
        for name in "shop.stock", "shop.mail":
            self.assertEqual(self.count(f"{self.PREFIX}handled WHERE handler = '{name}'"), len(kept), name)
        self.assertEqual(set(self.letters()), {str(i) for (i,) in self.sql(f"SELECT id FROM {self.PREFIX}event")})
        self.assertEqual(len(set(self.letters())), len(kept))
        self.assertEqual(self.count(f"{self.PREFIX}dead"), 0)

    def test_orders_take_effect_once_and_a_second_run_does_nothing(self):
        said = {"placed": 26, "orders": 26, "ordered": sum(1 + i % 5 for i in range(1, 31) if i % 7)}
        said["taken"] = said["ordered"]
        self.assertEqual(self.shop(30), said)
        self.exact(30)
        self.assertEqual(self.shop(30), {**said, "placed": 0})
        self.exact(30)
        self.assertEqual(len(self.letters()), 26)

    def test_repeatedly_killed_shop_ends_with_exact_figures(self):
        killed_at = (lambda: self.count("orders") > 50,
                     lambda: self.count("stock WHERE quantity < 100000") > 0,
                     lambda: len(self.letters()) > 250)
        orders, kills = 700, 0
        for ready in killed_at:
            shop = self.spawn(SHOP, self.store, orders)

            def now():
                try: return ready()
                except Exception: return False  # no table, no file, or locked just now

            wait_until(lambda: now() or not shop.running(), what=shop.output)
            status = shop.kill()
            self.assertIn(status, (-9, 0), shop.output())
            if status == 0: orders += 700  # it had finished before the test reached it
            else: kills += 1
        self.assertGreater(kills, 0)
        said = self.shop(orders)
        self.assertEqual(said["ordered"], said["taken"])
        self.exact(orders)
        self.assertLessEqual(len(self.letters()), orders * 6 // 7 + kills)  # of those in the moment of each kill, at most


class ShopOnSqlite(Shop, Case):
    PREFIX = "outbox_"


class ShopOnPostgres(Shop, PgCase):
    PREFIX = "outbox."


class Worker:
    """The worker in C that claims, delivers and settles on its own, on either store."""

    def work(self, *target):
        done = subprocess.run([WORKER, self.store, *target], cwd=self.dir, env=self.env(), capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def test_separate_worker_delivers_for_one_or_all_consumers(self):
        self.init()
        self.emit_many([{"type": type, "aggregate_type": "order", "aggregate_id": "1"} for type in ("order.paid", "order.shipped")])
        self.emit("user.new")
        # An event refused the first time holds back its key, and precedes it.
        self.assertEqual(self.work("mail"), ["mail order.paid null", "mail order.shipped null"])
        self.emit("order.closed")
        lines = self.work()
        self.assertEqual([line for line in lines if line.startswith("mail")], ["mail order.closed null"])
        of_audit = [line.split()[1] for line in lines if line.startswith("audit")]
        self.assertEqual(sorted(of_audit), ["order.closed", "order.paid", "order.shipped", "user.new"])
        self.assertLess(of_audit.index("order.paid"), of_audit.index("order.shipped"))
        self.assertEqual(self.work(), [])

    def test_documents_quote_the_core_of_the_example(self):
        part = section(ROOT / "docs" / "c.md", "## Claiming events yourself")
        quote, = re.findall(r"^```c\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        self.assertIn(quote, (EXAMPLES / "worker.c").read_text())


class WorkerOnSqlite(Worker, Case):
    pass


class WorkerOnPostgres(Worker, PgCase):
    pass


class Reference(ExampleCase):
    """docs/sql.md is accurate: its examples print the documented output, and its descriptions match the functions."""

    TEXT = (ROOT / "docs" / "sql.md").read_text()
    TYPES = {"int": "integer", "timestamptz": "timestamp with time zone"}

    def test_examples_print_the_documented_output(self):
        found = re.findall(r"^```sql\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", self.TEXT, re.MULTILINE | re.DOTALL)
        self.assertGreater(len(found), 5)
        mark = "-- end of block --"
        script = "".join(f"{text}\\echo '{mark}'\n" for text, _ in found)
        done = subprocess.run(["psql", "-XqAt", "-v", "ON_ERROR_STOP=1"], input=script, env=self.env(), timeout=TIMEOUT,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        ids = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
        for (text, shown), got in zip(found, done.stdout.split(mark + "\n")):
            self.assertEqual(ids.sub("ID", got), ids.sub("ID", shown), text)

    # Names that stand for several types.
    MANY = {"JSON": {"json", "jsonb", "text", "bytea", "anycompatible", "anyelement"}, "any": {"anycompatible", "anyelement", "text"}}

    def test_documented_functions_have_the_documented_arguments(self):
        found = re.findall(r"^    outbox\.(\w+)\(([^)]*)\)", self.TEXT, re.MULTILINE)
        self.assertEqual(len(found), 27)
        for name, arguments in found:
            shown = [argument.split()[:2] for argument in arguments.split(",")]
            there = self.sql("SELECT array_agg(a.name ORDER BY a.n), array_agg(format_type(a.type, NULL) ORDER BY a.n)"
                             " FROM pg_proc p, unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY AS a (name, type, n)"
                             " WHERE a.type IS NOT NULL AND p.pronamespace = 'outbox'::regnamespace AND p.proname = %s"
                             " GROUP BY p.oid", name)
            with self.subTest(function=name):
                self.assertTrue(there)
                for names, types in there:  # one for each type that drivers send
                    self.assertEqual([arg for arg, _ in shown], names)
                    for (arg, kind), type in zip(shown, types):
                        self.assertIn(type, self.MANY.get(kind, {self.TYPES.get(kind, kind)}), arg)

    def test_every_public_function_is_described(self):
        """Functions without a leading underscore are public. turn is for relays of an earlier version."""
        there = {name for (name,) in self.sql(r"SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname !~ '^_'")}
        described = set(re.findall(r"outbox\.(\w+)\(", self.TEXT)) | set(re.findall(r"`outbox\.(\w+)`", self.TEXT))
        self.assertEqual(there - described, set())
        self.assertEqual({name for name in described if name.startswith("_")}, set())

    def test_documented_views_have_the_documented_columns(self):
        for view in "delivery", "consumer_status":
            said = items(section(ROOT / "docs" / "sql.md", f"### {view}"))
            shown = re.findall(r"\w+", " ".join(re.match(r"(`\w+`(?:, `\w+`)*): ", item)[1] for item in said))
            there = self.sql("SELECT column_name FROM information_schema.columns WHERE table_schema = 'outbox'"
                             " AND table_name = %s", view)
            with self.subTest(view=view):
                self.assertEqual(sorted(shown), sorted(name for (name,) in there))


if __name__ == "__main__":
    unittest.main()
