"""PostgreSQL failures and misuse of PostgreSQL: connections cut in the middle of a claim or a settlement, terminated backends,
timeouts, deadlocks, missing rights, wrong addresses. Nothing is lost, order is kept, unrecoverable errors are clear and never
contain a password. Servers that stop and restart are in test_postgres_servers.py."""
# build: plain
# quick: no
import contextlib
import json
import pathlib
import re
import signal
import threading
import time
import urllib.parse

import psycopg2
import servers
from proxy_postgres import ANSWERED, SENT, TORN, UNCOMMITTED, UNREADY, UNSENT, Proxy
from scenario import CLAIMS, Numbers
from support import BIN, TIMEOUT, PgCase, wait_until

UNAVAILABLE, AGAIN, CONFIG, DATA = 69, 75, 78, 65
LEASE = "250ms"
SOON = 20  # seconds: on a busy machine; far below the sweep, which would find everything in the end
SWEEP = ("--sweep", "10m")


class Faults(PgCase):
    """A PgCase whose consumer mail writes to the file out, and whose events are numbers, five keys in turn."""

    KEYS = 5

    def setUp(self):
        super().setUp()
        self.out = self.path("out")
        self.count = 0

    def mail(self, *more, **kw):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}", "--lease", LEASE, *SWEEP, *more, **kw)

    def emit_numbers(self, n):
        first, self.count = self.count, self.count + n
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(i % self.KEYS), "payload": i}
                        for i in range(first, first + n)])

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def first(self):
        return list(dict.fromkeys(self.got()))

    def wait_for_all(self, *relays, timeout=TIMEOUT):
        def seen():
            missing = set(range(self.count)) - set(self.got())
            return f"missing {sorted(missing)[:20]}\n" + "".join(r.output() for r in relays)
        wait_until(lambda: set(self.got()) >= set(range(self.count)), timeout, seen)

    def check_order(self):
        self.assertEqual(set(self.got()), set(range(self.count)))
        for key in range(self.KEYS):
            mine = [n for n in self.first() if n % self.KEYS == key]
            self.assertEqual(mine, sorted(mine), f"order of key {key}")

    def check_settled(self):
        """Nothing is left to do, and every event was counted once."""
        wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim UNION ALL SELECT 1 FROM outbox.parked"),
                   what=lambda: self.sql("SELECT * FROM outbox.claim"))
        self.assertEqual(self.sql("SELECT delivered FROM outbox.consumer_status"), [(self.count,)])

    def backends(self):
        return [pid for pid, in self.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND "
                                         "application_name = 'outbox'")]

    def sleepers(self):
        """sleepers counts the sessions that hold the wake-up lock or wait for it."""
        return self.sql("SELECT count(*) FROM pg_locks l, pg_database d WHERE d.oid = l.database AND l.locktype = "
                        "'advisory' AND d.datname = current_database() AND l.objsubid = 1 AND l.granted")[0][0]

    def wait_asleep(self, n, *relays):
        wait_until(lambda: self.sleepers() == n, what=lambda: (self.sleepers(), [r.output() for r in relays]))

    def set_for_all(self, **settings):
        """set_for_all is ALTER DATABASE SET: it applies to new connections."""
        for name, value in settings.items():
            self.sql(f'ALTER DATABASE "{self.dbname}" SET {name} = %s', value)

    @contextlib.contextmanager
    def transaction(self, **settings):
        """transaction is one without any time limit."""
        options = " ".join([servers.UNLIMITED, *(f"-c {name}={value}" for name, value in settings.items())])
        db = psycopg2.connect(self.store, options=options)
        try:
            yield db.cursor()
        finally:
            db.close()


def settled_by(request):
    """settled_by returns the epoch that each turn of a request settles; 0: none. See _request in sql/postgres/0001_outbox.sql."""
    if not re.search(r"_turns?\(", request.text) or not request.params: return []
    return re.findall(rb'"\(\d+,\\"[^"]*\\",\\"[^"]*\\",(\d+),', request.params[0] or b"")


def claiming(request):
    return b"0" in settled_by(request)


def settling(request):
    epochs = settled_by(request)
    return epochs and b"0" not in epochs


def fetching(request):
    return "pg_visible_in_snapshot" in request.text and request.params


class Cut(Numbers, PgCase):
    """A connection breaks in the middle: the relay must find out what the server did."""

    PREFIX = "outbox."

    def cut_and_recover(self, make):
        """make returns the rule of a proxy that breaks a connection."""
        self.init()
        with Proxy(self.store) as proxy:
            with self.relay("--store", proxy.url, "--consumer", "out", "--sink", f"file:{self.out}", "--lease", LEASE,
                            "--batch", 4) as relay:
                self.send(8)
                self.wait_all(relay)
                cut = make(proxy)
                self.send(20)
                wait_until(cut.done)
                self.fault("connection cut")
                self.heal(relay, timeout=20)
                self.send(4)
                self.wait_all(relay)
                checker = self.reckon(bound=CLAIMS * 4)
                self.assertEqual(self.sql("SELECT sum(delivered) FROM outbox.lane"), [(self.sent,)])
        self.assertIn("trying again", relay.output())
        return checker.counts["duplicates"]

    def cut(self, match, *moments):
        """cut cuts a connection at each of these moments, and returns the number of repeated events."""
        twice = 0
        for when in moments:
            with self.subTest(when): twice += self.cut_and_recover(lambda proxy: proxy.cut(match, when))
            self.anew()
        return twice

    def test_claim_cut_off_at_any_point_loses_nothing(self):
        """A claim whose connection breaks at any point: nothing is lost, and nothing is repeated, since no worker got it."""
        self.assertEqual(self.cut(claiming, UNSENT, SENT, ANSWERED, TORN, UNREADY, UNCOMMITTED), 0)

    def test_settlement_cut_off_at_any_point_loses_nothing(self):
        """A settlement whose connection breaks at any point: nothing is lost, at most the claims of one relay are repeated."""
        self.cut(settling, UNSENT, SENT, ANSWERED, TORN, UNREADY, UNCOMMITTED)

    def test_claim_whose_answer_is_cut_off_loses_nothing(self):
        """A claim whose answer is lost: no event is lost."""
        self.cut(fetching, UNSENT, TORN, UNREADY)

    def test_backend_terminated_in_claim_or_settle_loses_nothing(self):
        """A backend that is terminated while it claims or settles: nothing is lost, at most the claims of one relay are
        repeated."""
        for name, match in (("claim", claiming), ("settle", settling)):
            with self.subTest(name): self.cut_and_recover(lambda proxy: proxy.add(match, self.ended_at_work))
            self.anew()

    def ended_at_work(self, link, sent):
        """ended_at_work makes the statement wait for a lock, then terminates its backend."""
        with contextlib.closing(psycopg2.connect(self.store)) as db, db.cursor() as cursor:
            cursor.execute("LOCK TABLE outbox.claim IN ACCESS EXCLUSIVE MODE")
            link.server.sendall(sent)
            wait_until(lambda: self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                                        "current_database() AND wait_event_type = 'Lock'"))
        return link.pass_answer()


class Asleep(Faults):
    """A sleeping relay sends no queries, and the next event wakes it, whatever happens to its connection meanwhile."""

    def setUp(self):
        super().setUp()
        self.init()

    def emit_and_time(self, *relays):
        self.emit_numbers(1)
        start = time.monotonic()
        self.wait_for_all(*relays, timeout=SOON)
        return time.monotonic() - start

    def test_sleeping_relay_with_terminated_backends_still_wakes(self):
        with self.mail() as relay:
            for _ in range(3):
                self.emit_and_time(relay)
                self.wait_asleep(1, relay)
                for pid in self.backends(): self.sql("SELECT pg_terminate_backend(%s)", pid)
                self.emit_and_time(relay)
        self.check_order()
        self.check_settled()

    def test_sleeping_relays_wake_without_the_lock_holder(self):
        """Separate consumers in separate relays, so that each must wake. Producers notify because this backend holds the
        lock."""
        names = ("a", "b", "c")
        relays = [self.relay("--consumer", name, "--sink", f"file:{self.path(name)}", *SWEEP) for name in names]
        count = 0
        for _ in range(3):
            self.wait_asleep(len(names), *relays)
            holder = self.holder()
            for relay in relays: relay.signal(signal.SIGSTOP)
            self.sql("SELECT pg_terminate_backend(%s)", holder)
            wait_until(lambda: holder not in self.backends())
            self.emit("a")  # no session holds the lock, so it does not notify
            for relay in relays: relay.signal(signal.SIGCONT)
            count += 1
            for name in names:
                wait_until(lambda: len(self.ndjson(self.path(name))) == count, SOON, lambda: (name, self.sleepers()))
        for relay in relays: relay.stop()

    def holder(self):
        return self.sql("SELECT l.pid FROM pg_locks l, pg_database d WHERE d.oid = l.database AND l.locktype = "
                        "'advisory' AND d.datname = current_database() AND l.mode = 'ExclusiveLock'")[0][0]

    def test_event_committed_just_before_sleep_wakes_the_relay(self):
        """An event is committed as soon as the relay holds the lock; the answer and the notification arrive in one piece. A
        relay that only waited for the socket would miss it."""
        with Proxy(self.store) as proxy:
            rule = proxy.hold(lambda request: "wakeup_sleep" in request.text and request.params, lambda: self.emit_numbers(1))
            with self.mail("--store", proxy.url) as relay:
                wait_until(rule.done)
                self.wait_for_all(relay, timeout=SOON)

    def test_event_committed_during_the_last_poll_wakes_the_relay(self):
        """The same after the last poll, which the relay makes for all its consumers before it sleeps."""
        with Proxy(self.store) as proxy:
            slept = []

            def last_look(request):
                if "wakeup_sleep" in request.text: slept.append(request)
                return slept and "pg_current_snapshot()::text" in request.text and request.params
            rule = proxy.hold(last_look, lambda: self.emit_numbers(1))
            others = [arg for n in range(4) for arg in ("--consumer", f"c{n}", "--sink", "file:/dev/null")]
            with self.mail("--store", proxy.url, *others) as relay:
                wait_until(rule.done)
                self.wait_for_all(relay, timeout=SOON)

    def test_retry_due_while_a_relay_sleeps_is_on_time(self):
        """The relay sleeps while its last event is in flight; that event then fails."""
        hold = self.path("hold")
        hold.touch()
        sink = (f"exec:while [ -e {hold} ]; do sleep 0.02; done; [ $OUTBOX_ATTEMPT -gt 1 ] || exit 75; "
                f"exec 9>>{self.out}; flock 9; cat >&9")
        with self.relay("--consumer", "mail", "--sink", sink, "--retry", "base=50ms,cap=50ms,outage=0s", *SWEEP) as relay:
            self.emit_numbers(1)
            wait_until(lambda: self.sql("SELECT 1 FROM outbox.claim"))
            self.wait_asleep(1, relay)
            hold.unlink()
            self.wait_for_all(relay, timeout=SOON)

    def test_idle_relay_polls_at_most_every_five_seconds(self):
        window = 6
        with Proxy(self.store) as proxy, self.mail("--store", proxy.url) as relay:
            self.wait_asleep(1, relay)
            self.emit_numbers(1)
            self.wait_for_all(relay)
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"))  # its last statement before it sleeps
            before = proxy.asked
            time.sleep(window)  # the time without any query
            self.assertLessEqual(proxy.asked - before, window // 5)
            # A machine that is busy may be late, but not each time.
            self.assertTrue(any(self.emit_and_time(relay) < 1 for _ in range(5)))


class Impatient(Faults):
    """Time limits and isolation levels set for the whole database."""

    def setUp(self):
        super().setUp()
        self.init()

    def test_database_timeouts_lose_nothing(self):
        self.set_for_all(statement_timeout="150ms", lock_timeout="100ms", idle_in_transaction_session_timeout="150ms",
                         idle_session_timeout="300ms")
        with self.mail() as relay:
            self.emit_numbers(10)
            self.wait_for_all(relay)
            with self.transaction() as t:
                t.execute("LOCK TABLE outbox.claim IN ACCESS EXCLUSIVE MODE")
                self.emit_numbers(10)
                self.wait_for_a_waiter()
                time.sleep(0.5)  # longer than every limit of the database
            self.wait_for_all(relay)
            self.assertNotIn("timeout", relay.output())
            self.emit_numbers(10)
            self.wait_for_all(relay, timeout=SOON)
        self.sql(f'ALTER DATABASE "{self.dbname}" RESET ALL')
        self.check_order()
        self.check_settled()

    def wait_for_a_waiter(self):
        wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"))

    def test_emit_waits_for_a_lock_despite_database_limits(self):
        self.set_for_all(lock_timeout="100ms")
        with self.transaction() as t:
            t.execute("LOCK TABLE outbox.event IN ACCESS EXCLUSIVE MODE")
            emit = self.spawn(BIN, "emit", "a")
            self.wait_for_a_waiter()
            time.sleep(0.3)  # longer than the limit
        emit.wait()
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(1,)])

    def test_serializable_isolation_by_default_changes_nothing(self):
        self.set_for_all(default_transaction_isolation="serializable", default_transaction_deferrable="on")
        with self.mail() as relay:
            self.emit_numbers(20)
            self.emit("a", "k/0", self.count, "--idempotency-key", "once")
            self.count += 1
            self.wait_for_all(relay)
        self.check_order()
        self.check_settled()
        with self.assertRaisesRegex(psycopg2.Error, "requires READ COMMITTED, not SERIALIZABLE"):
            self.sql("SELECT * FROM outbox.claim('mail', 'me')")

    def test_serialization_failure_emits_nothing(self):
        """PostgreSQL's own message reaches the producer; its event is rolled back with its transaction."""
        self.sql("CREATE TABLE stock (n int)")
        self.sql("INSERT INTO stock VALUES (1)")
        with self.transaction() as one, self.transaction() as two:
            for t in (one, two):
                t.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                t.execute("SELECT sum(n) FROM stock")
                t.execute("SELECT outbox.emit('counted', 'k', '0', '0')")
                t.execute("INSERT INTO stock VALUES (1)")
            one.connection.commit()
            with self.assertRaises(psycopg2.errors.SerializationFailure): two.connection.commit()
        self.count = 1
        self.drain("--consumer", "mail", "--sink", f"file:{self.out}")
        self.assertEqual(self.got(), [0])

    def wait_until_it_waits(self, condition, *params):
        """wait_until_it_waits: the sessions that match this condition wait for a lock."""
        wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
                                    f"AND {condition}", *params), what=lambda: self.sql("SELECT * FROM pg_stat_activity"))

    # PostgreSQL looks for a deadlock once, when a wait has lasted for deadlock_timeout. So that the victim finds it however
    # slow all sessions are, the others close the cycle while the victim waits for a third one, u, which then releases its lock.

    @contextlib.contextmanager
    def asking(self, t, statement, *params):
        """asking makes t request a held lock, and continues once t waits; at the end t holds the lock."""
        asker = threading.Thread(target=t.execute, args=(statement, params))
        asker.start()
        self.wait_until_it_waits("pid = %s", t.connection.get_backend_pid())
        yield
        asker.join()

    def test_relay_chosen_as_deadlock_victim_retries(self):
        """A settlement locks the consumer, then its claim, then its lane."""
        self.set_for_all(deadlock_timeout="20ms")
        hold = self.path("hold")
        hold.touch()
        sink = f"exec:while [ -e {hold} ]; do sleep 0.02; done; exec 9>>{self.out}; flock 9; cat >&9"
        with self.relay("--consumer", "mail", "--sink", sink) as relay:
            self.emit_numbers(1)
            wait_until(lambda: self.sql("SELECT 1 FROM outbox.claim"))
            with self.transaction() as u, self.transaction(deadlock_timeout="60s") as t:
                u.execute("SELECT FROM outbox.claim FOR UPDATE")
                t.execute("SELECT FROM outbox.lane FOR UPDATE")
                hold.unlink()
                self.wait_until_it_waits("application_name = 'outbox'")
                with self.asking(t, "SELECT FROM outbox.consumer FOR NO KEY UPDATE"):  # granted once the relay released the lock
                    u.connection.rollback()
                    wait_until(lambda: "deadlock detected" in relay.output(), what=relay.output)
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"), what=relay.output)
        self.assertEqual(self.got(), [0])
        self.check_settled()

    def test_emit_reports_being_the_deadlock_victim(self):
        self.set_for_all(deadlock_timeout="20ms")
        lines = self.path("lines")
        lines.write_text("".join(json.dumps({"type": "a", "idempotency_key": key}) + "\n" for key in "xzy"))
        once = "SELECT outbox.emit('a', NULL, NULL, 'null', idempotency_key => %s)"
        with self.transaction() as u, self.transaction(deadlock_timeout="60s") as t, open(lines) as source:
            u.execute(once, ("z",))
            t.execute(once, ("y",))
            emitter = self.spawn(BIN, "emit", "--ndjson", "-", stdin=source)
            self.wait_until_it_waits("application_name = 'outbox'")
            with self.asking(t, once, "x"):
                u.connection.rollback()
                emitter.wait(expect=AGAIN)
            self.assertIn("deadlock detected", emitter.output())
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(0,)])


SECRET = "s3cr3t-Wört"


class Refused(Faults):
    """Addresses, passwords and rights that are wrong: a clear word, the right exit status, and no secrets."""

    def role(self, *grants):
        """role creates a role that may only log in, and returns its URL of the store."""
        name = f"r_{self.dbname}"
        self.sql(f"CREATE ROLE {name} LOGIN")
        self.addCleanup(servers.execute, self.store.replace(self.dbname, "postgres"), f"DROP ROLE {name}")
        self.addCleanup(self.sql, f"DROP OWNED BY {name}")
        for grant in grants: self.sql(f"GRANT {grant} TO {name}")
        return self.store.replace(f"user={servers.USER}", f"user={name}")

    def refused(self, status, *args, **kw):
        """refused runs a command that must fail with this status and one line, which it returns."""
        done = self.outbox(*args, status=status, **kw)
        said = [line for line in done.stderr.splitlines() if " info " not in line]
        self.assertEqual((done.stdout, len(said)), ("", 1), done.stderr)
        self.assertNotIn("the file and its folder", said[0])
        return said[0]

    def test_error_names_the_unreachable_server(self):
        for url, where in ((f"postgres:///shop?host={self.dir}&user=me", str(self.dir)),
                           (f"postgres://me@127.0.0.1:{servers.free_port()}/shop", "127.0.0.1"),
                           ("postgres://me@no-such-host.invalid/shop", "no-such-host.invalid")):
            for args in (["init"], ["emit", "a"], ["status"],
                         ["relay", "--drain", "--consumer", "m", "--sink", "stdout:"]):
                with self.subTest(where, args=args):
                    said = self.refused(UNAVAILABLE, *args, "--store", url)
                    self.assertIn(where, said)

    def test_error_names_the_missing_database(self):
        said = self.refused(UNAVAILABLE, "status", "--store", self.store.replace(self.dbname, "nowhere"))
        self.assertIn('database "nowhere" does not exist', said)

    def test_missing_outbox_is_distinguished_from_foreign_tables(self):
        self.assertIn("`outbox init`", self.refused(DATA, "emit", "a"))
        self.sql("CREATE SCHEMA outbox")
        self.sql("CREATE TABLE outbox.event (mine int)")
        for args in (["init"], ["emit", "a"], ["status"]):
            said = self.refused(DATA, *args)
            self.assertIn("a table event that does not belong to an outbox", said)
            self.assertIn("?schema=NAME", said)
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.event"), [(0,)])
        self.outbox("init", "--store", self.store + "&schema=other")

    def test_outbox_newer_than_the_program_is_refused(self):
        self.init()
        self.sql("UPDATE outbox.meta SET value = '999' WHERE name = 'schema_version'")
        for args in (["init"], ["emit", "a"], ["status"],
                         ["relay", "--drain", "--consumer", "m", "--sink", "stdout:"]):
            said = self.refused(DATA, *args)
            self.assertIn("version 999", said)
            self.assertIn("use a newer outbox", said)

    def test_relay_stops_when_its_outbox_is_upgraded(self):
        self.init()
        relay = self.mail()
        self.wait_asleep(1, relay)
        self.sql("UPDATE outbox.meta SET value = '999' WHERE name = 'schema_version'")
        for pid in self.backends(): self.sql("SELECT pg_terminate_backend(%s)", pid)
        relay.wait(expect=DATA)
        # The relay notices at a reconnect, or from an earlier turn.
        self.assertRegex(relay.output(), "use a newer outbox|this program knows [0-9]+: update it")

    def test_odd_schema_names_work_and_are_never_run_as_sql(self):
        self.sql("CREATE TABLE bystander (n int)")
        for name in ('we"ird', "o'brien", 'x"; DROP TABLE bystander; --', "a b.c", "Straße", "$1 %s %I @schema@", "\\",
                     "x" * 63):
            with self.subTest(name):
                url = f"{self.store}&schema={urllib.parse.quote(name)}"
                out = self.path("odd")
                out.unlink(missing_ok=True)
                self.outbox("init", "--store", url)
                self.outbox("emit", "a", "--key", "k/1", "--idempotency-key", "1", "--store", url)
                with self.relay("--store", url, "--consumer", "m", "--sink", f"file:{out}", *SWEEP) as relay:
                    wait_until(lambda: len(self.ndjson(out)) == 1, what=relay.output)
                    self.wait_asleep(1, relay)
                    self.outbox("emit", "a", "--store", url)
                    wait_until(lambda: len(self.ndjson(out)) == 2, SOON, relay.output)
                self.outbox("status", "--store", url)
                self.outbox("trim", "--store", url)
        self.assertEqual(self.sql("SELECT count(*) FROM bystander"), [(0,)])

    def test_invalid_schema_names_are_refused(self):
        for name in ("x" * 64, "pg_mine", "a%0A;b", "a%01b", "a%00b", "a%zz", "a$outbox$b", ""):
            with self.subTest(name):
                self.assertIn("schema", self.refused(CONFIG, "init", "--store", f"{self.store}&schema={name}"))

    def test_errors_name_the_missing_rights(self):
        self.init()
        url = self.role()
        for args in (["emit", "a"], ["status"],
                         ["relay", "--drain", "--consumer", "m", "--sink", "stdout:"]):
            with self.subTest(args):
                said = self.refused(UNAVAILABLE, *args, "--store", url)
                self.assertIn("permission denied for schema outbox", said)
        said = self.refused(UNAVAILABLE, "init", "--store", url + "&schema=new")
        self.assertIn("permission denied for database", said)

    def test_default_read_only_does_not_affect_our_sessions(self):
        self.init()
        self.emit_numbers(1)
        self.set_for_all(default_transaction_read_only="on")
        self.outbox("init", "--store", self.store + "&schema=new")
        self.outbox("emit", "a")
        self.assertEqual(len(self.drain("--consumer", "m", "--sink", "stdout:").stdout.splitlines()), 2)
        with self.assertRaisesRegex(psycopg2.Error, "read-only transaction"):
            self.sql("INSERT INTO outbox.event (type) VALUES ('a')")


class Secrets(Faults):
    """A password is never printed, whatever is wrong with it, and however it was given."""

    @classmethod
    def setUpClass(cls):
        cls.server = servers.Postgres(password=SECRET).start()
        cls.addClassCleanup(cls.server.close)
        cls.server.create_database("shop")

    def setUp(self):
        super().setUp()
        self.said = []

    def listen(self, *args, status=None, **kw):
        done = self.outbox(*args, status=status, **kw)
        self.said += [done.stdout, done.stderr]
        return done

    def refuse_pieces(self, *secrets):
        for text in self.said:
            for secret in secrets:
                for form in (secret, urllib.parse.quote(secret, safe="")): self.assertNotIn(form, text)

    def ask(self, statement, *params):
        return servers.execute(self.server.url("shop"), statement, *params)

    def everything(self, url, **env):
        """everything runs each command that names its store, with a working server, and a relay with a failing one."""
        env = {"OUTBOX_STORE": url, **env}
        self.listen("init", env=env, status=0)
        self.listen("init", "--json", env=env, status=0)
        self.listen("emit", "a", env=env, status=0)
        for args in (["status"], ["status", "--json"], ["config", "show"], ["config", "show", "--json"],
                     ["events", "list"], ["consumers", "list"], ["trim"], ["doctor"], ["migrate", "status"],
                     ["migrate", "validate"]):
            self.listen(*args, env=env)
        relay = self.relay("--consumer", "m", "--sink", f"file:{self.out}", "--log-level", "debug", env=env)
        wait_until(lambda: self.ask("SELECT 1 FROM outbox.consumer_status WHERE delivered = 1"), what=relay.output)
        self.said.append(pathlib.Path(f"/proc/{relay.pid}/cmdline").read_text())
        self.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox'")
        self.ask("SELECT outbox.emit('a', NULL, NULL, '1')")
        wait_until(lambda: self.ask("SELECT 1 FROM outbox.consumer_status WHERE delivered = 2"), what=relay.output)
        relay.stop()
        self.said.append(relay.output())
        self.ask("DROP SCHEMA outbox CASCADE")

    def test_correct_password_is_never_printed(self):
        passfile = self.path("pass")
        passfile.write_text(f"*:*:*:*:{SECRET}\n")
        passfile.chmod(0o600)
        bare = self.server.tcp_url("shop").replace(f":{urllib.parse.quote(SECRET, safe='')}@", "@")
        self.everything(self.server.tcp_url("shop"))
        self.everything(f"{bare}?password={urllib.parse.quote(SECRET, safe='')}")
        self.everything(bare, PGPASSWORD=SECRET)
        self.everything(f"{bare}?passfile={passfile}")
        self.refuse_pieces(SECRET)
        self.assertNotIn(SECRET, self.server.log())

    def test_wrong_password_is_reported_but_not_printed(self):
        url = self.server.tcp_url("shop", "not-this-one")
        for args in (["init"], ["emit", "a"], ["status"],
                         ["relay", "--drain", "--consumer", "m", "--sink", "stdout:"]):
            done = self.listen(*args, status=UNAVAILABLE, env={"OUTBOX_STORE": url})
            self.assertIn("password authentication failed", done.stderr)
        done = self.listen("status", status=UNAVAILABLE, env={"OUTBOX_STORE": url.replace(":not-this-one", "")})
        self.assertIn("password", done.stderr)
        self.refuse_pieces("not-this-one")

    def test_no_part_of_a_password_in_a_broken_url_is_printed(self):
        """Characters with a meaning in URLs, not percent-encoded, a common mistake."""
        port = self.server.tcp_port
        for mark in "@/?#%:[ &\\'\"=":
            url = f"postgres://me:hush{mark}hidden@127.0.0.1:{port}/shop"
            for args in (["init"], ["status"], ["config", "show"],
                         ["relay", "--drain", "--consumer", "m", "--sink", "stdout:"]):
                self.listen(*args, env={"OUTBOX_STORE": url})
        for url in (f"postgres://me:hush?schema=hidden@127.0.0.1:{port}/shop", f"postgres://me:hush@hidden@127.0.0.1/s",
                    f"postgres://127.0.0.1:{port}/shop?user=me&password=hush", "postgres:host=x password=hush",
                    "postgres://me:hush@[::1/shop", "postgres://me:hush@127.0.0.1:port/shop", "postgres://me:hush@/%zz",
                    "postgres://me:hush@127.0.0.1/shop?no_such_option=1", "postgres://me:hush@127.0.0.1/shop?schema=",
                    "postgers://me:hush@127.0.0.1/shop", "//me:hush@127.0.0.1/shop"):
            for args in (["init"], ["status"], ["config", "show"]): self.listen(*args, env={"OUTBOX_STORE": url})
        self.refuse_pieces("hush", "hidden")
