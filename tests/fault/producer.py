"""producer.py URL DIARY NAME SEED: an application on PostgreSQL that is killed again and again, as its server is.

Until it is ended it writes transactions: each raises the version of one to three accounts and tells of each in an event
with that account as its key, so that an account's events have versions 1, 2, 3, ... in the order in which they
happened, whichever producer wrote them. Some are rolled back, some roll back a savepoint. What has committed for
certain goes into DIARY: "KEY VERSION" a line. When the server goes away it waits until it is back."""
import json
import random
import sys
import time

import psycopg2

KEYS = 12
TABLE = "CREATE TABLE account (key int PRIMARY KEY, version int NOT NULL DEFAULT 0)"
FILL = f"INSERT INTO account SELECT generate_series(0, {KEYS - 1})"
INSERT = ("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload) "
          "VALUES ('account.changed', 'account', %s, %s)")
EMIT = "SELECT outbox.emit('account.changed', 'account', %s, %s)"


def change(cursor, name, rng, key):
    cursor.execute("UPDATE account SET version = version + 1 WHERE key = %s RETURNING version", (key,))
    version, = cursor.fetchone()
    payload = json.dumps({"key": key, "version": version, "producer": name})
    if rng.random() < 0.2:
        cursor.execute("SAVEPOINT s")
        cursor.execute(EMIT, (str(key), '"never"'))
        cursor.execute("ROLLBACK TO s")
    cursor.execute(rng.choice((INSERT, EMIT)), (str(key), payload))
    return key, version


def transaction(db, name, rng, diary):
    with db.cursor() as cursor:
        done = [change(cursor, name, rng, key) for key in sorted(rng.sample(range(KEYS), rng.randint(1, 3)))]
    if rng.random() < 0.15:
        db.rollback()
        return
    db.commit()
    diary.write("".join(f"{key} {version}\n" for key, version in done))
    diary.flush()


def main(url, path, name, seed):
    rng = random.Random(int(seed))
    with open(path, "a") as diary:
        while True:
            try:
                db = psycopg2.connect(url)
                while True:
                    transaction(db, name, rng, diary)
                    time.sleep(rng.uniform(0, 0.02))
            except psycopg2.Error:
                time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
