"""Private servers for tests: each in a separate folder with a short path, unprivileged, ended with the process that started it.

    with Postgres() as pg:
        pg.create_database("shop")
        with PgBouncer(pg) as pooler:
            psycopg2.connect(pooler.url("shop"))

If that process crashes, its servers end too (by a parent-death signal), though their folders stay. The signal comes
when the *thread* that started them ends: start servers from the main thread.
"""
import atexit
import contextlib
import fcntl
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

USER = "outbox_test"
NOBODY = 65534
TIMEOUT = 60  # seconds to start or stop, on a busy machine


def unprivileged(death):
    """unprivileged returns the prefix of a command that runs as nobody if we are root, otherwise as ourselves, and receives the
    signal `death` when we die."""
    prefix = ["setpriv", "--pdeathsig", death]
    if os.geteuid() == 0:
        prefix += [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return prefix


def clean_env():
    """clean_env is our environment without settings of libpq and of languages."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
    return {**env, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


PORTS = range(10000, 32000)  # below the ephemeral ports, so no client is assigned one by chance


def free_port():
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


PLENTY = 4 << 30  # bytes; the servers of a whole run need less than a quarter of it


def in_memory():
    """in_memory returns the path of an in-memory file system with plenty of room; None if there is none, or if $TMPDIR says
    where temporary files belong."""
    try:
        room = shutil.disk_usage("/dev/shm").free
        memory = re.search(r"^MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    enough = memory and min(room, int(memory[1]) << 10) >= PLENTY
    return "/dev/shm" if enough and "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK | os.X_OK) else None


def make_folder(prefix):
    """make_folder creates a folder for a server, in $OUTBOX_TEST_SERVERS if that is set.

    It is in memory where that is possible. A database is some 300 files, and a test makes and drops one or more: ext4 hands out
    no inode that was freed a moment ago, and looking for others took it 0.2 s of processor time per database, ten times as
    long as all the rest."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("OUTBOX_TEST_SERVERS") or in_memory()))
    if os.geteuid() == 0: os.chown(folder, NOBODY, NOBODY)
    return folder


@contextlib.contextmanager
def folder_for_all():
    """folder_for_all creates one folder for all servers started meanwhile, by us or by our children. It is removed at the end,
    with what killed servers left in it; if we are killed ourselves, the next run removes it. A lock shows that its owner is
    alive."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="obrun", dir=in_memory()))
    remove_abandoned(folder.parent)
    os.chmod(folder, 0o711)  # the servers, as nobody, need access
    with open(folder / "draft", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "draft").rename(folder / "lock")  # never there without being held
        os.environ["OUTBOX_TEST_SERVERS"] = str(folder)
        try:
            yield folder
        finally:
            del os.environ["OUTBOX_TEST_SERVERS"]
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent):
    """remove_abandoned removes the folders that folder_for_all created for runs that have ended."""
    for folder in parent.glob("obrun*"):
        try:
            with open(folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # owned by a live process, or not ours to touch


def children(parent):
    """children returns the live processes whose parent is `parent`."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit(): continue
        try:
            rest = pathlib.Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(rest[1]) == parent and rest[0] not in "ZX": found.append(int(entry))
    return found


class Started:
    """A server, or several, that a `with` block starts, and closes at its end."""

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()


class Server(Started):
    """A server process and its folder. start() after stop() or kill() finds the old data; close() removes it."""

    prefix, death = "ob", "TERM"

    def __init__(self):
        self.dir = None
        self.popen = None

    def start(self):
        if self.dir is None:
            atexit.register(self.close)
            self.dir = make_folder(self.prefix)
            self.prepare()
        with open(self.dir / "log", "ab") as log:
            self.popen = subprocess.Popen([*unprivileged(self.death), *self.command()], cwd="/", env=clean_env(),
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + TIMEOUT
        while not self.ready():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{type(self).__name__} did not start\n{self.log()}")
            time.sleep(0.01)
        return self

    def run(self, *argv):
        """run runs a tool to its end, as the server's user."""
        done = subprocess.run([*unprivileged("KILL"), *argv], cwd="/", env=clean_env(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode: raise RuntimeError(f"{argv[0]}: {done.stdout}{done.stderr}")

    def write(self, name, text):
        path = self.dir / name
        path.write_text(text)
        if os.geteuid() == 0: os.chown(path, NOBODY, NOBODY)
        return path

    def log(self):
        try:
            return (self.dir / "log").read_text(errors="replace")
        except OSError:
            return ""

    def running(self):
        return self.popen is not None and self.popen.poll() is None

    def end(self, number):
        """end sends a signal and waits for the end; SIGKILL follows if necessary."""
        if not self.running(): return
        self.popen.send_signal(number)
        try:
            self.popen.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        """kill is kill -9 of the server and of every process it had, like the end of its machine."""
        if not self.running(): return
        # A stopped server starts no process while we list its children, and can still be killed.
        self.popen.send_signal(signal.SIGSTOP)
        family = children(self.popen.pid)
        for pid in family: _signal(pid, signal.SIGKILL)
        self.popen.kill()
        self.popen.wait()
        while any(_alive(pid) for pid in family): time.sleep(0.005)

    def freeze(self):
        """freeze stops the server until thaw(): connections stay open and get no answers."""
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.popen.send_signal(signal.SIGCONT)

    def close(self):
        """close ends the server at once and removes its folder. It may be called twice."""
        atexit.unregister(self.close)
        try:
            self.stop()
        finally:
            if self.dir: shutil.rmtree(self.dir, ignore_errors=True)
            self.dir = None


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Postgres(Server):
    """A private PostgreSQL, reached through a unix socket in its folder without a password; its superuser is
    `outbox_test`. With password, also on a free loopback port (self.tcp_port), with that password (scram-sha-256).

    settings overrides postgresql.conf. Nothing is synced to disk unless {"fsync": "on"} is among them: a killed server loses
    nothing by that, only a crash of the machine would. Nothing is compiled to machine code unless {"jit": "on"} is: that took a
    tenth of the server's time, for statements that run once. The data is a copy of a cluster that was never started, since
    making one takes a second. All servers with the same `cluster` are copies of one original, and have its identifier."""

    prefix, death = "obpg", "INT"  # INT ends it despite connected clients
    MODES = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

    def __init__(self, settings=None, password=None, cluster="first", programs=None):
        super().__init__()
        self.password, self.cluster = password, cluster
        self.port, self.tcp_port = 5432, None
        self.settings = {"listen_addresses": "", "fsync": "off", "jit": "off", "max_connections": 100, "shared_buffers": "64MB",
                         "log_line_prefix": "%m [%p] ", **(settings or {})}
        self.bin = programs or postgres_programs()

    def prepare(self):
        more = []
        if self.password:
            self.port = self.tcp_port = free_port()
            self.settings["listen_addresses"] = "127.0.0.1"
            more = ["--auth-host=scram-sha-256", "--pwfile", str(self.write("password", self.password + "\n"))]
        if self.password: self.make_cluster(self.dir / "data", *more)
        else: self.run("cp", "-a", str(self.made_cluster()), str(self.dir / "data"))
        self.settings |= {"unix_socket_directories": str(self.dir), "port": self.port}

    def make_cluster(self, path, *more):
        self.run(str(self.bin / "initdb"), "-D", str(path), "-U", USER, "--auth-local=trust", *more, "-E", "UTF8", "--no-locale",
                 "--no-sync", "--no-instructions")

    def made_cluster(self):
        """made_cluster creates that cluster unless it exists. The folder belongs to the run, or disappears with us."""
        if "OUTBOX_TEST_PG_DATA" not in os.environ:
            os.environ["OUTBOX_TEST_PG_DATA"] = str(make_folder("obcl"))
            atexit.register(shutil.rmtree, os.environ["OUTBOX_TEST_PG_DATA"], ignore_errors=True)
        folder = pathlib.Path(os.environ["OUTBOX_TEST_PG_DATA"])
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = folder / f"{self.cluster}-{self.major()}"
            if not made.exists():
                self.make_cluster(folder / "draft")
                (folder / "draft").rename(made)
        return made

    def major(self):
        """major is the version of the programs, such as 15."""
        said = subprocess.run([str(self.bin / "postgres"), "--version"], check=True, capture_output=True, text=True).stdout
        return re.search(r"\d+", said)[0]

    def command(self):
        argv = [str(self.bin / "postgres"), "-D", str(self.dir / "data")]
        for name, value in self.settings.items(): argv += ["-c", f"{name}={value}"]
        return argv

    def ready(self):
        try:
            lines = (self.dir / "data" / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        # A file left by a killed server names another process.
        return len(lines) > 7 and lines[0] == str(self.popen.pid) and lines[7].strip() == "ready"

    def stop(self, mode="immediate"):
        """stop ends the server: `smart` waits for clients, `fast` disconnects them, `immediate` leaves recovery to the next
        start."""
        self.end(self.MODES[mode])

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def url(self, dbname):
        """url returns the address of one database; url("") returns the server's address, to which `&dbname=NAME` can be
        added."""
        return _url(dbname, self.dir, self.port)

    def tcp_url(self, dbname, password=None):
        """tcp_url returns an address with a password in it, the right one by default."""
        secret = urllib.parse.quote(self.password if password is None else password, safe="")
        return f"postgres://{USER}:{secret}@127.0.0.1:{self.tcp_port}/{urllib.parse.quote(dbname, safe='')}"

    def conninfo(self, dbname):
        return f"host='{self.dir}' port={self.port} user={USER} dbname='{dbname}'"

    def create_database(self, name):
        """create_database creates a database and returns its url."""
        create_database(self.url(""), name)
        return self.url(name)


class Copy(Postgres):
    """A server on a copy of another's files, taken while that one runs; with standby, it streams from that one under the name
    `standby`. This replaces pg_basebackup, which not every PostgreSQL of the tests includes."""

    def __init__(self, primary, settings=None, standby=None):
        super().__init__({**primary.settings, **(settings or {})}, programs=primary.bin)
        self.primary, self.standby = primary, standby

    def prepare(self):
        data = self.dir / "data"
        with contextlib.closing(_connect(self.primary.url("postgres"))) as db:
            _run(db, "SELECT pg_backup_start('copy', fast => true)", None)
            # A file that disappears during the copy is covered by the log.
            self.run("sh", "-c", 'cp -a "$0" "$1" 2>/dev/null; rm -f "$1"/postmaster.pid; test -e "$1"/PG_VERSION',
                     str(self.primary.dir / "data"), str(data))
            label, = _run(db, "SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)", None)[0]
            self.write("data/backup_label", label)
            self.run("sh", "-c", 'cp -a "$0"/pg_wal/0* "$1"/pg_wal/', str(self.primary.dir / "data"), str(data))
        if self.standby:
            self.write("data/standby.signal", "")
            source = f"host={self.primary.dir} port={self.primary.port} user={USER} application_name={self.standby}"
            with open(data / "postgresql.auto.conf", "a") as conf: conf.write(f"primary_conninfo = '{source}'\n")
        self.settings |= {"unix_socket_directories": str(self.dir), "port": self.port}


class PgBouncer(Server):
    """A pgbouncer in transaction mode in front of a Postgres, reached through a unix socket in its folder. settings overrides
    its section [pgbouncer]."""

    prefix, death = "obpb", "TERM"
    PROGRAM = "/usr/sbin/pgbouncer"

    def __init__(self, postgres, settings=None):
        super().__init__()
        self.postgres, self.port = postgres, 6432
        self.settings = {"pool_mode": "transaction", "max_client_conn": 200, "default_pool_size": 20,
                         "listen_addr": "", "auth_type": "trust", **(settings or {})}

    def prepare(self):
        users = self.write("users", f'"{USER}" ""\n')
        fixed = {"unix_socket_dir": self.dir, "listen_port": self.port, "auth_file": users, "admin_users": USER}
        lines = ["[databases]", f"* = host={self.postgres.dir} port={self.postgres.port} user={USER}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in {**self.settings, **fixed}.items()]
        self.write("pgbouncer.ini", "\n".join(lines) + "\n")

    def command(self):
        return [self.PROGRAM, str(self.dir / "pgbouncer.ini")]

    def ready(self):
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(str(self.dir / f".s.PGSQL.{self.port}")) == 0

    def stop(self):
        self.end(signal.SIGTERM)

    def url(self, dbname):
        return _url(dbname, self.dir, self.port)


def installed_postgres():
    """installed_postgres returns the folder of Debian's PostgreSQL programs, the newest version if there are several."""
    found = [p for p in pathlib.Path("/usr/lib/postgresql").glob("*/bin") if (p / "initdb").exists()]
    if not found: raise RuntimeError("no PostgreSQL in /usr/lib/postgresql: install the package postgresql-15")
    return max(found, key=lambda p: float(p.parent.name))


def postgres_programs():
    """postgres_programs returns the folder of the programs that the run tests: $OUTBOX_TEST_PG_BIN if that is another version
    than the installed one."""
    return pathlib.Path(os.environ.get("OUTBOX_TEST_PG_BIN") or installed_postgres())


def postgres_tool(name):
    """postgres_tool returns the path of one of PostgreSQL's other programs, and skips the test if the tested version lacks it.
    For psql it falls back to the installed one, which works with all versions."""
    import unittest
    path = postgres_programs() / name
    if not path.exists() and name == "psql": path = installed_postgres() / name
    if not path.exists(): raise unittest.SkipTest(f"this PostgreSQL does not include {name}")
    return str(path)


def _url(dbname, folder, port):
    where = urllib.parse.urlencode({"host": folder, "user": USER, **({"port": port} if port != 5432 else {})}, safe="/")
    return f"postgres:///{urllib.parse.quote(dbname, safe='')}?{where}"


UNLIMITED = " ".join(f"-c {name}=0" for name in ("statement_timeout", "lock_timeout", "idle_session_timeout",
                                                 "idle_in_transaction_session_timeout"))


def patient(url):
    """patient returns the address for a session without time limits, whatever the database's settings. A pooler would refuse
    it."""
    return url if "options=" in url else f"{url}&options={urllib.parse.quote(UNLIMITED)}"


_kept = threading.local()
KEPT = 8  # connections per thread


def _connect(url):
    import psycopg2  # imported here, so that run.py can start a server under a Python that lacks it
    db = psycopg2.connect(url)
    db.autocommit = True
    return db


def _run(db, statement, params):
    with db.cursor() as cursor:
        cursor.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else []


def execute(url, statement, *params):
    """execute runs one statement outside a transaction and returns its rows, [] if it has none. It keeps its
    connection for the next one, since polling tests query often, and reconnects if it broke."""
    if not hasattr(_kept, "all"): _kept.all = {}
    db = _kept.all.pop(url, None)
    if " DATABASE " in statement[:20]: forget_connections()  # the URL may name a template, which must have no sessions
    rows = None
    if db:
        try:
            rows = _run(db, statement, params)
        except Exception as err:
            code = getattr(err, "pgcode", None)
            if code and not code.startswith("57P") and not db.closed:  # the server's word on the statement
                _kept.all[url] = db
                raise
            db.close()
            db = None
    if not db:
        db = _connect(url)
        try:
            rows = _run(db, statement, params)
        except Exception:
            db.close()
            raise
    # A setting of a database or role applies to connections opened later.
    if statement.lstrip().upper().startswith(("ALTER DATABASE", "ALTER ROLE", "ALTER SYSTEM")): forget_connections()
    else: _kept.all[url] = db
    if len(_kept.all) > KEPT: _kept.all.pop(next(iter(_kept.all))).close()
    return rows


def forget_connections():
    """forget_connections closes those that this thread has kept."""
    for db in getattr(_kept, "all", {}).values(): db.close()
    _kept.all = {}


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def create_database(server, name, template="template1"):
    """create_database copies a template by its files, which takes half the processor time of a copy through the log."""
    execute(server + "&dbname=postgres", f"CREATE DATABASE {quoted(name)} TEMPLATE {quoted(template)} STRATEGY file_copy")


def made_database(server, key, make):
    """made_database returns the name of a template database that make(url) has filled, once for all callers with this key."""
    name = "made_" + hashlib.sha256(key.encode()).hexdigest()[:16]
    there = lambda: execute(server + "&dbname=postgres", "SELECT 1 FROM pg_database WHERE datname = %s", name)
    if there(): return name
    with contextlib.closing(_connect(server + "&dbname=postgres")) as db:
        _run(db, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", [name])  # ends with the connection
        if there(): return name
        draft = name + "_draft"
        drop_database(server, draft)
        create_database(server, draft)
        make(server.replace("postgres:///?", f"postgres:///{draft}?"))
        _run(db, f"ALTER DATABASE {quoted(draft)} RENAME TO {quoted(name)}", [])
    return name


def drop_database(server, name):
    """drop_database disconnects its clients."""
    execute(server + "&dbname=postgres", f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


class Redis(Server):
    """A private Redis, reached through a unix socket in its folder (self.url) and on a free loopback port
    (self.tcp_url), the latter with TLS if tls is set. It keeps an append-only file, so a killed one loses nothing."""

    prefix, death = "obrd", "KILL"
    PROGRAM = "/usr/bin/redis-server"

    def __init__(self, settings=None):
        super().__init__()
        self.settings = {"save": "", "appendonly": "yes", "appendfsync": "no", "enable-debug-command": "yes",
                         "bind": "127.0.0.1", **(settings or {})}

    def prepare(self):
        self.port = free_port()
        self.socket = self.dir / "s"
        self.settings |= {"port": self.port, "unixsocket": self.socket, "dir": self.dir}

    def command(self):
        argv = [self.PROGRAM]
        for name, value in self.settings.items(): argv += [f"--{name}", str(value)]
        return argv

    def ready(self):
        try:
            return self("PING") == "PONG"
        except (OSError, RuntimeError):
            return False

    def __call__(self, *args):
        """redis("XLEN", "s") sends a command on a new connection and returns the answer; an error raises RuntimeError."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(TIMEOUT)
            s.connect(str(self.socket))
            parts = [a if isinstance(a, bytes) else str(a).encode() for a in args]
            s.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            with s.makefile("rb") as f: return _redis_reply(f)

    def entries(self, stream):
        """entries returns [(id, envelope as an object)] of a stream, in its order."""
        import json
        return [(i, json.loads(fields[1])) for i, fields in self("XRANGE", stream, "-", "+") or []]

    def url(self, query):
        return f"unix:{self.socket}?{query}"

    def tcp_url(self, query):
        return f"redis://127.0.0.1:{self.port}?{query}"

    def stop(self):
        self.end(signal.SIGTERM)


def _redis_reply(f):
    line = f.readline()
    kind, text = line[:1], line[1:-2].decode(errors="replace")
    if not line: raise OSError("redis has closed the connection")
    if kind == b"-": raise RuntimeError(text)
    if kind == b"+": return text
    if kind == b":": return int(text)
    if kind == b"$": return None if text == "-1" else f.read(int(text) + 2)[:-2].decode(errors="surrogateescape")
    return None if text == "-1" else [_redis_reply(f) for _ in range(int(text))]
