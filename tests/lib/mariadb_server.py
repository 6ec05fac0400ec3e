"""A private MariaDB for tests, as servers.py has PostgreSQL and Redis.

    with MariaDB() as server:
        url = server.create_database("shop")
        execute(url, "SELECT 1")
"""
import contextlib
import re
import signal
import socket
import threading

import servers

ADDRESS = re.compile(r"mariadb://(\w*)@/([^?]*)\?socket=([^&]*)")


class MariaDB(servers.Server):
    """A private MariaDB, reached as root without a password through a unix socket in its folder, and with `port` also on a free
    loopback port (self.port). settings overrides its command line. Nothing is synced to disk: a killed server loses nothing by
    that, only a crash of the machine would."""

    prefix, death = "obmy", "KILL"
    PROGRAM = "/usr/sbin/mariadbd"

    def __init__(self, settings=None, port=False):
        super().__init__()
        self.port = servers.free_port() if port else None
        self.settings = {"innodb-buffer-pool-size": "32M", "innodb-log-file-size": "16M", "innodb-flush-log-at-trx-commit": 2,
                         "innodb-flush-method": "nosync", "innodb-use-native-aio": "OFF", "innodb-buffer-pool-dump-at-shutdown": "OFF",
                         "innodb-doublewrite": "OFF", "performance-schema": "OFF", "key-buffer-size": "1M", "aria-pagecache-buffer-size": "1M",
                         "max-connections": 200, "max-allowed-packet": "256M", "skip-name-resolve": "ON", **(settings or {})}

    def prepare(self):
        self.socket = self.dir / "s"
        self.run("/usr/bin/mariadb-install-db", "--no-defaults", f"--datadir={self.dir / 'data'}", "--auth-root-authentication-method=normal",
                 "--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=16M", f"--tmpdir={self.dir}")

    def command(self):
        network = [f"--port={self.port}", "--bind-address=127.0.0.1"] if self.port else ["--skip-networking"]
        # A starting server deletes the files of others in a shared temporary folder.
        return [self.PROGRAM, "--no-defaults", f"--datadir={self.dir / 'data'}", f"--socket={self.socket}", f"--tmpdir={self.dir}",
                f"--pid-file={self.dir / 'pid'}", *network, *(f"--{name}={value}" for name, value in self.settings.items())]

    def ready(self):
        with socket.socket(socket.AF_UNIX) as s, contextlib.suppress(OSError):
            s.settimeout(servers.TIMEOUT)
            s.connect(str(self.socket))
            return len(s.recv(8)) > 0
        return False

    def stop(self, number=signal.SIGKILL):
        """stop ends the server at once; committed data survives the next start."""
        self.end(number)

    def restart(self):
        self.stop()
        return self.start()

    def url(self, name):
        """url returns the address of one database; url("") returns the server's address."""
        return f"mariadb://root@/{name}?socket={self.socket}"

    def create_database(self, name):
        """create_database creates a database and returns its url."""
        execute(self.url(""), f"CREATE DATABASE `{name}`")
        return self.url(name)


def connect(url, **more):
    """connect opens a connection for a test to work on, in a transaction only if it begins one."""
    import pymysql
    user, name, path = ADDRESS.match(url).groups()
    return pymysql.connect(unix_socket=path, user=user, database=name or None, charset="utf8mb4", autocommit=True, **more)


_kept = threading.local()


def execute(url, statement, *params):
    """execute runs one statement in its own transaction and returns its rows. It keeps its connection for the next one."""
    import pymysql
    if not hasattr(_kept, "all"): _kept.all = {}
    for last in (False, True):
        db = _kept.all.pop(url, None) or connect(url)
        try:
            with db.cursor() as cursor:
                cursor.execute(statement, params or None)
                rows = list(cursor.fetchall())
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as why:
            gone = not why.args or why.args[0] in (0, 2006, 2013)
            with contextlib.suppress(Exception): db.close()
            if last or not gone: raise
            continue
        except Exception:
            db.close()
            raise
        _kept.all[url] = db
        return rows


def forget_connections():
    """forget_connections closes those that this thread has kept."""
    for db in getattr(_kept, "all", {}).values():
        with contextlib.suppress(Exception): db.close()
    _kept.all = {}


# ---- replication ----

LOGGED = {"log-bin": "b", "binlog-format": "ROW", "gtid-strict-mode": "ON", "log-slave-updates": "ON"}


class Primary(MariaDB):
    """A server whose commits wait until a replica has them, once it has a replica."""

    def __init__(self, settings=None):
        super().__init__({**LOGGED, "server-id": 1, "rpl-semi-sync-master-enabled": "ON", "rpl-semi-sync-master-timeout": 60000,
                          "rpl-semi-sync-master-wait-no-slave": "OFF", **(settings or {})}, port=True)


class Replica(MariaDB):
    """A replica of another server, by GTID, read-only until promote()."""

    def __init__(self, primary, settings=None):
        super().__init__({**LOGGED, "server-id": 2, "rpl-semi-sync-slave-enabled": "ON", "read-only": "ON", **(settings or {})})
        self.primary = primary

    def follow(self):
        """follow starts replication; the primary must still have its whole log."""
        execute(self.primary.url(""), "CREATE USER IF NOT EXISTS copy@'%' IDENTIFIED BY 'copy'")
        execute(self.primary.url(""), "GRANT REPLICATION SLAVE ON *.* TO copy@'%'")
        execute(self.url(""), "CHANGE MASTER TO master_host = '127.0.0.1', master_user = 'copy', master_password = 'copy', "
                              f"master_port = {self.primary.port}, master_use_gtid = slave_pos, master_connect_retry = 1")
        execute(self.url(""), "START SLAVE")
        return self

    def applied(self):
        """applied tells whether everything received is applied."""
        db = connect(self.url(""))
        with contextlib.closing(db), db.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            names, row = [column[0] for column in cursor.description], cursor.fetchone()
            cursor.execute("SELECT @@gtid_slave_pos")
            return row[names.index("Gtid_IO_Pos")] == cursor.fetchone()[0]

    def caught_up(self):
        """caught_up tells whether the replica has everything its primary has; the primary must be running."""
        there = execute(self.primary.url(""), "SELECT @@gtid_binlog_pos")
        return execute(self.url(""), "SELECT @@gtid_slave_pos") == there

    def promote(self):
        execute(self.url(""), "STOP SLAVE")
        execute(self.url(""), "RESET SLAVE ALL")
        execute(self.url(""), "SET GLOBAL read_only = 0")
