"""producer.py URL DIARY NAME SEED: an application on PostgreSQL, or on MariaDB, that tests kill repeatedly, like its server.

Until it is ended it writes transactions: each raises the version of one to three accounts and emits an event for each with that
account as its key, so that an account's events have versions 1, 2, 3, ... in the order in which they happened, whichever
producer wrote them. Some are rolled back, some roll back a savepoint. Each confirmed commit is recorded in DIARY, a line "KEY
VERSION". While the server is unreachable the producer waits."""
import json
import random
import sys
import time
import urllib.parse

import psycopg2
import pymysql

KEYS = 12
TABLE = "CREATE TABLE account (key int PRIMARY KEY, version int NOT NULL DEFAULT 0)"
FILL = f"INSERT INTO account SELECT generate_series(0, {KEYS - 1})"
INSERT = ("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) "
          "VALUES ('account.changed', 'account', %s, %s)")
EMIT = "SELECT outbox.emit('account.changed', 'account', %s, %s)"
MARIA_TABLE = "CREATE TABLE account (`key` int PRIMARY KEY, version int NOT NULL DEFAULT 0) ENGINE = InnoDB"
MARIA_FILL = f"INSERT INTO account (`key`) SELECT seq FROM seq_0_to_{KEYS - 1}"
MARIA_INSERT = INSERT.replace("outbox.event", "outbox_event")
MARIA_EMIT = "CALL outbox_emit('account.changed', 'account', %s, %s)"


class Postgres:
    insert, emit, lost = INSERT, EMIT, psycopg2.Error

    @staticmethod
    def connect(url):
        return psycopg2.connect(url)

    @staticmethod
    def raise_version(cursor, key):
        cursor.execute("UPDATE account SET version = version + 1 WHERE key = %s RETURNING version", (key,))
        return cursor.fetchone()[0]


class MariaDB:
    insert, emit, lost = MARIA_INSERT, MARIA_EMIT, (pymysql.err.Error, OSError)

    @staticmethod
    def connect(url):
        url = urllib.parse.urlsplit(url)
        query = dict(urllib.parse.parse_qsl(url.query))
        where = {"unix_socket": query["socket"]} if "socket" in query else {"host": url.hostname, "port": url.port}
        return pymysql.connect(user=url.username, database=url.path[1:], charset="utf8mb4", connect_timeout=5, read_timeout=30, **where)

    @staticmethod
    def raise_version(cursor, key):
        cursor.execute("UPDATE account SET version = version + 1 WHERE `key` = %s", (key,))
        cursor.execute("SELECT version FROM account WHERE `key` = %s", (key,))
        return cursor.fetchone()[0]


def change(store, cursor, name, rng, key):
    version = store.raise_version(cursor, key)
    payload = json.dumps({"key": key, "version": version, "producer": name})
    if rng.random() < 0.2:
        cursor.execute("SAVEPOINT s")
        cursor.execute(store.emit, (str(key), '"never"'))
        cursor.execute("ROLLBACK TO s")
    cursor.execute(rng.choice((store.insert, store.emit)), (str(key), payload))
    return key, version


def transaction(store, db, name, rng, diary):
    with db.cursor() as cursor:
        done = [change(store, cursor, name, rng, key) for key in sorted(rng.sample(range(KEYS), rng.randint(1, 3)))]
    if rng.random() < 0.15:
        db.rollback()
        return
    db.commit()
    diary.write("".join(f"{key} {version}\n" for key, version in done))
    diary.flush()


def main(url, path, name, seed):
    rng = random.Random(int(seed))
    store = MariaDB if url.startswith("mariadb:") else Postgres
    with open(path, "a") as diary:
        while True:
            try:
                db = store.connect(url)
                while True:
                    transaction(store, db, name, rng, diary)
                    time.sleep(rng.uniform(0, 0.02))
            except store.lost:
                time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
