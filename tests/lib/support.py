"""Shared by the Python tests: a folder per test, the CLI, relays that always end, waiting for conditions instead of sleeping.

    from support import Case, wait_until

    class Emitting(Case):
        def test_emitted_event_is_delivered(self):
            self.init()
            out = self.path("out.ndjson")
            self.outbox("emit", "order.paid", "--key", "order/42", "--payload", '{"total":99}')
            with self.relay("--consumer", "mail", "--sink", f"file:{out}"):
                wait_until(lambda: len(self.ndjson(out)) == 1)

The binary under test is $OUTBOX_BIN, build/outbox by default. PgCase is the same on PostgreSQL, MariaCase on MariaDB: on the
server of the run ($OUTBOX_TEST_PG, $OUTBOX_TEST_MARIADB), or on a private one where a file is run by hand.

A test for every store is written once, in a class without a base, and queries the database in a dialect that all stores share:

    @on_each_store
    class Emitting:
        def test_event_is_a_row(self):
            self.init()
            self.emit("a")
            self.assertEqual(self.ask("SELECT type FROM @event WHERE seq = ?", 1), [("a",)])
"""
import atexit
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import mariadb_server
import servers

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = str(pathlib.Path(os.environ.get("OUTBOX_BIN", ROOT / "build" / "outbox")).resolve())
SOAK = os.environ.get("OUTBOX_SOAK") == "1"
QUICK = os.environ.get("OUTBOX_QUICK") == "1" and not SOAK
SANITIZED = pathlib.Path(BIN).exists() and b"__asan_init" in pathlib.Path(BIN).read_bytes()
TIMEOUT = 60  # seconds; for operations that should take less than one, on a busy machine under a sanitizer

STARTED = "started"  # a relay logs this once it is at work
# Set by the exec sink for its children, who may call outbox themselves.
RESERVED = {"ID", "SEQ", "TYPE", "AGGREGATE_TYPE", "AGGREGATE_ID", "VERSION", "CREATED_AT", "CONSUMER", "ATTEMPT",
            "TENANT"}
SCHEMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
SANITIZER = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:")


def is_locked(path):
    """is_locked tells whether a process is writing to an SQLite database."""
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
            return False
        except sqlite3.OperationalError:
            return True


def wait_until(predicate, timeout=TIMEOUT, what=None):
    """wait_until returns the predicate's first true value, and fails if none arrives in time.

    what, a string or a function that returns one, describes in the failure the state seen instead."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            seen = what() if callable(what) else what
            raise AssertionError(f"still not so after {timeout} s" + (f": {seen}" if seen else ""))
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def read_ndjson(path):
    """read_ndjson returns the complete lines of a file as objects; [] if the file does not exist. It omits a line without its
    end."""
    try:
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def clean_env(extra=None):
    """clean_env is our environment without any OUTBOX_* setting, plus extra."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOX_")}
    env.update(LC_ALL="C.UTF-8", TZ="UTC")
    env.update(extra or {})
    return env


def thorough(why):
    """thorough marks a test, or a class of them, that ./test --quick leaves out: it is slow, and faster tests cover the same
    ground."""
    return unittest.skipIf(QUICK, f"--quick: {why}")


def changed_of_late(*paths):
    """changed_of_late tells whether one of these files is uncommitted, or was changed by one of the last 30 commits. True
    without a git history."""
    git = lambda *args: subprocess.run(["git", *args, "--", *map(str, paths)], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    try:
        return bool(git("status", "--porcelain") or git("log", "-30", "--format=", "--name-only"))
    except (OSError, subprocess.CalledProcessError):
        return True


class Process:
    """A child process with its output in a file. It ends with the test in any case."""

    def __init__(self, argv, log, cwd, env, stdin=subprocess.DEVNULL):
        self.log = pathlib.Path(log)
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=out, cwd=cwd, env=env)
        self.pid = self.popen.pid

    def output(self):
        return self.log.read_text(errors="backslashreplace")

    def running(self):
        return self.popen.poll() is None

    def signal(self, number):
        if self.running():
            self.popen.send_signal(number)

    def freeze(self, db=None):
        """freeze sends SIGSTOP, and waits until each thread has stopped: on a busy machine some run on for a while. Given the
        path of an SQLite database, it freezes only while the process has that unlocked; otherwise no other process could
        continue."""
        while True:
            self.signal(signal.SIGSTOP)
            states = lambda: [task.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                              for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir()]
            wait_until(lambda: set(states()) == {"T"}, what=states)
            if not db or not is_locked(db): return
            self.signal(signal.SIGCONT)

    def wait(self, expect=0, timeout=TIMEOUT):
        """wait returns the exit status (negative: the signal) and fails if it is not `expect`; None accepts any."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} is still running after {timeout} s\n{self.output()}") from None
        if expect is not None and status != expect:
            raise AssertionError(f"exit status {status}, not {expect}\n{self.output()}")
        return status

    def stop(self, expect=0, timeout=TIMEOUT):
        """stop sends SIGTERM and waits; a relay drains and exits 0."""
        self.signal(signal.SIGTERM)
        return self.wait(expect, timeout)

    def kill(self):
        """kill is kill -9, and waits for the end."""
        self.signal(signal.SIGKILL)
        return self.wait(expect=None)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.stop()
        else:
            self.kill()


_made = []


def make(store):
    subprocess.run([BIN, "init"], env=clean_env({"OUTBOX_STORE": store}), check=True, capture_output=True)


def made_sqlite():
    """made_sqlite is the path of an unused SQLite outbox, to be copied."""
    if not _made:
        folder = tempfile.mkdtemp(prefix="ob")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        make(f"sqlite:{folder}/made.db")
        _made.append(f"{folder}/made.db")
    return _made[0]


CHANGES = ("UPDATE @event", "DELETE FROM @event")  # statements that every outbox refuses


class Case(unittest.TestCase):
    """A test with its own folder (self.dir), a store in it (self.store), and children that end with it."""

    maxDiff = None
    postgres = False  # whether it is about PostgreSQL, and so runs on each version of it

    def setUp(self):
        self.stores = set()  # that were used, by the names of tests/conformance.md
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ob"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.db = self.dir / "shop.db"
        self.store = f"sqlite:{self.db}"
        self.children = []
        self.addCleanup(self._end_children)

    def _end_children(self):
        for child in self.children:
            child.kill()
        for child in self.children:
            self._refuse_sanitizer(child.output())

    def _refuse_sanitizer(self, text):
        if any(mark in text for mark in SANITIZER):
            raise AssertionError("a sanitizer complained\n" + text)

    def uses(self, args, env):
        """uses notes the store that a command line leads to."""
        args = [str(arg) for arg in args]
        url = args[args.index("--store") + 1] if "--store" in args[:-1] else (env or {}).get("OUTBOX_STORE", self.store)
        self.stores.add(SCHEMES.get(str(url).partition(":")[0], "none"))

    def path(self, name):
        return self.dir / name

    def env(self, extra=None):
        return clean_env({"OUTBOX_STORE": self.store, **(extra or {})})

    def outbox(self, *args, status=0, input=None, env=None, timeout=TIMEOUT, argv0=None):
        """outbox runs the CLI on self.store and returns its CompletedProcess, whose stdout and stderr are text. It fails
        if the exit status is not `status`; None accepts any. input is str or bytes."""
        if isinstance(input, str):
            input = input.encode()
        argv = [argv0 or BIN, *(a if isinstance(a, bytes) else str(a) for a in args)]
        self.uses(args, env)
        done = subprocess.run(argv, input=b"" if input is None else input, capture_output=True, cwd=self.dir,
                              env=self.env(env), timeout=timeout)
        done.stdout = done.stdout.decode(errors="surrogateescape")
        done.stderr = done.stderr.decode(errors="surrogateescape")
        self._refuse_sanitizer(done.stderr)
        if status is not None and done.returncode != status:
            self.fail(f"{argv[1:]}: exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
        return done

    def json(self, *args, **kw):
        """json runs the CLI with --json and returns the output: the object of its only line, else a list."""
        text = self.outbox(*args, "--json", **kw).stdout
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return [json.loads(line) for line in text.splitlines()]

    def init(self):
        """init is `outbox init` for tests of something else: a missing store becomes a copy of a template made once."""
        ours = self.store == f"sqlite:{self.dir / 'shop.db'}" and not self.db.exists()
        if ours: shutil.copyfile(made_sqlite(), self.db)
        else: self.outbox("init")

    def emit(self, type, key=None, payload=None, *more, **kw):
        """emit returns the new event's id; payload is any object."""
        args = ["emit", type]
        if key is not None:
            args += ["--key", key]
        if payload is not None:
            args += ["--payload", json.dumps(payload)]
        return self.outbox(*args, *more, **kw).stdout.strip()

    def emit_many(self, events):
        """emit_many emits objects in the format of `emit --ndjson`."""
        lines = "".join(json.dumps(ev) + "\n" for ev in events)
        return self.outbox("emit", "--ndjson", "-", input=lines)

    def spawn(self, *argv, log=None, env=None, **kw):
        """spawn starts any program as a child that ends with the test."""
        log = self.path(log or f"child-{len(self.children)}.log")
        self.uses(argv, env)
        child = Process([str(a) for a in argv], log, self.dir, self.env(env), **kw)
        self.children.append(child)
        return child

    def relay(self, *args, env=None, wait=True):
        """relay starts `outbox relay` and returns once it is at work (wait=False: at once). Leaving its `with` block
        stops it and expects exit status 0."""
        child = self.spawn(BIN, "relay", *args, log=f"relay-{len(self.children)}.log", env=env)
        if wait:
            wait_until(lambda: STARTED in child.output() or not child.running(), what=child.output)
            if not child.running():
                self.fail(f"the relay exited at once: status {child.popen.returncode}\n{child.output()}")
        return child

    def drain(self, *args, **kw):
        """drain runs `outbox relay --drain` to its end."""
        return self.outbox("relay", *args, "--drain", **kw)

    def ndjson(self, path):
        return read_ndjson(path)

    def sql(self, statement, *params):
        """sql runs one statement on the database in its own transaction, and returns its rows."""
        self.stores.add(SCHEMES["sqlite"])
        db = sqlite3.connect(self.db, timeout=TIMEOUT)
        try:
            with db:
                return db.execute(statement, params).fetchall()
        finally:
            db.close()

    def alter_events(self, *statements, params=()):
        """alter_events runs statements that change or delete events, which are insert-only, in one transaction."""
        db = sqlite3.connect(self.db, timeout=TIMEOUT)
        try:
            with db:
                db.execute("INSERT INTO outbox_meta (name, value) VALUES ('change_events', '')")
                for statement in statements: db.execute(statement, params)
                db.execute("DELETE FROM outbox_meta WHERE name = 'change_events'")
        finally:
            db.close()

    def ask(self, statement, *params):
        """ask is sql in a dialect common to all stores: @event is a table of the outbox, ? a parameter. It may change
        events."""
        named = re.sub(r"@(\w+)", r"outbox_\1", statement)
        if statement.startswith(CHANGES): return self.alter_events(named, params=params)
        return self.sql(named, *params)

    def millis(self, column):
        """millis is the expression for a time in milliseconds since 1970."""
        return column

    def time_of(self, millis):
        """time_of returns the SQL expression for a time as a column stores it."""
        return str(millis)

    def assert_sound(self):
        """assert_sound has the database check its own integrity."""
        self.assertEqual(self.sql("PRAGMA integrity_check"), [("ok",)])


def postgres_server():
    """postgres_server returns the address of the run's PostgreSQL; without one, it starts a server that ends with us."""
    if "OUTBOX_TEST_PG" not in os.environ:
        os.environ["OUTBOX_TEST_PG"] = servers.Postgres().start().url("")
    return os.environ["OUTBOX_TEST_PG"]


class PgCase(Case):
    """A Case whose store is a separate PostgreSQL database, created on first use: empty, or, by init(), as a copy of one with
    an outbox."""

    postgres = True

    def setUp(self):
        super().setUp()
        self.server_url = postgres_server()
        self.dbname = f"t_{uuid.uuid4().hex}"
        self.store = None

    def init(self):
        if self._store is not None: return self.outbox("init")
        program = os.stat(BIN)
        self._create(servers.made_database(self.server_url, f"{BIN} {program.st_mtime_ns}", make))

    def _create(self, template="template1"):
        servers.create_database(self.server_url, self.dbname, template)
        self.addCleanup(servers.drop_database, self.server_url, self.dbname)
        # The children end before the database is dropped: clean-ups run in reverse order, and ending a child twice is harmless.
        self.addCleanup(self._end_children)
        self._store = self.server_url.replace("postgres:///?", f"postgres:///{self.dbname}?")

    @property
    def store(self):
        if self._store is None: self._create()
        self.stores.add(SCHEMES["postgres"])
        return self._store

    @store.setter
    def store(self, url):
        self._store = url

    def sql(self, statement, *params):
        """sql runs one statement on the database in its own transaction, and returns its rows. Parameters are %s. Time limits
        that a test sets for its database do not apply to the test itself."""
        return servers.execute(servers.patient(self.store), statement, *params)

    def alter_events(self, *statements, params=()):
        self.sql("SET outbox.change_events = 'on'")
        try:
            for statement in statements: self.sql(statement, *params)
        finally:
            self.sql("RESET outbox.change_events")

    def ask(self, statement, *params):
        named = re.sub(r"@(\w+)", r"outbox.\1", statement).replace("?", "%s")
        if statement.startswith(CHANGES): return self.alter_events(named, params=params)
        return self.sql(named, *params)

    def millis(self, column):
        return f"(extract(epoch FROM {column}) * 1000)::float8"

    def time_of(self, millis):
        return f"to_timestamp({millis} / 1000.0)"

    def assert_sound(self):
        pass  # a server removes its own

    def role(self, *parts):
        """role creates a role with these parts in the outbox, dropped with the test, and returns its URL of the store."""
        name = f"r_{uuid.uuid4().hex}"
        self.sql(f"CREATE ROLE {name} LOGIN")
        self.addCleanup(self.sql, f"DROP OWNED BY {name}; DROP ROLE {name}")
        for part in parts: self.outbox("grant", part, name)
        return re.sub(r"(?<=[?&]user=)[^&]*", name, self.store)


def mariadb_address():
    """mariadb_address returns the address of the run's MariaDB; without one, it starts a server that ends with us."""
    if "OUTBOX_TEST_MARIADB" not in os.environ:
        os.environ["OUTBOX_TEST_MARIADB"] = mariadb_server.MariaDB().start().url("")
    return os.environ["OUTBOX_TEST_MARIADB"]


class MariaCase(Case):
    """A Case whose store is a separate MariaDB database, empty until init()."""

    def setUp(self):
        super().setUp()
        self.server_url = mariadb_address()
        self.dbname = f"t_{uuid.uuid4().hex}"
        self.store = None

    def init(self):
        self.outbox("init")

    @property
    def store(self):
        if self._store is None:
            mariadb_server.execute(self.server_url, f"CREATE DATABASE {self.dbname}")
            self.addCleanup(mariadb_server.execute, self.server_url, f"DROP DATABASE IF EXISTS {self.dbname}")
            self.addCleanup(mariadb_server.forget_connections)
            self.addCleanup(self._end_children)
            self._store = self.server_url.replace("@/?", f"@/{self.dbname}?")
        self.stores.add(SCHEMES["mariadb"])
        return self._store

    @store.setter
    def store(self, url):
        self._store = url

    def sql(self, statement, *params):
        """sql runs one statement on the database in its own transaction, and returns its rows. Parameters are %s."""
        return mariadb_server.execute(self.store, statement, *params)

    def alter_events(self, *statements, params=()):
        self.sql("SET @outbox_change_events = 'on', foreign_key_checks = 0")
        try:
            for statement in statements: self.sql(statement, *params)
        finally:
            self.sql("SET @outbox_change_events = NULL, foreign_key_checks = 1")

    def connect(self, **more):
        """connect returns a connection that is closed at the end of the test."""
        db = mariadb_server.connect(self.store, **more)
        self.addCleanup(lambda: db.open and db.close())
        return db

    def ask(self, statement, *params):
        """ask reads and changes events through a view that has their seq; unnumbered events have their insertion number."""
        names = {}
        if "@event" in statement and "INTO @event" not in statement:
            self.sql("CREATE OR REPLACE VIEW asked_event AS SELECT coalesce(o.seq, e.nr) AS seq, e.id, e.type, e.aggregate_type,"
                     " e.aggregate_id, e.version, e.payload, e.headers, e.tenant, e.not_before, e.created_at, e.idempotency_key"
                     " FROM outbox_event e LEFT JOIN outbox_order o ON o.nr = e.nr")
            names = {"event": "asked_event"}
        if statement.startswith("DELETE FROM @event"): statement = statement.replace("WHERE seq", "WHERE nr")
        named = re.sub(r"@(\w+)", lambda found: names.get(found[1], f"outbox_{found[1]}"), statement)
        named = re.sub(r"(?i)\bAS text\)", "AS CHAR)", named)
        if params: named = named.replace("%", "%%").replace("?", "%s")
        if statement.startswith(CHANGES): return self.alter_events(named, params=params)
        return self.sql(named, *params)

    def assert_sound(self):
        pass  # a server removes its own


# The base class of each store. Under a sanitizer, and with --quick, the files and suites about servers cover them.
STORE_CASES = {"OnSqlite": Case} if SANITIZED or QUICK else {"OnSqlite": Case, "OnPostgres": PgCase, "OnMariadb": MariaCase}


def on_each_store(mixin=None, but=()):
    """on_each_store turns a class without a base into one test class per store, NameOnSqlite, NameOnPostgres and NameOnMariadb;
    `but` names the stores to leave out."""
    if mixin is None: return lambda given: on_each_store(given, but)
    module = sys.modules[mixin.__module__]
    for suffix, base in STORE_CASES.items():
        if suffix in but: continue
        name = mixin.__name__ + suffix
        setattr(module, name, type(name, (mixin, base), {"__module__": mixin.__module__, "__doc__": mixin.__doc__}))
    return mixin
