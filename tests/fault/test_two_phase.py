"""Transactions that are prepared for two-phase commit and decided much later, in any order, and over crashes of the server,
while producers and relays work: late commits are delivered, and rolled-back events never existed."""
# build: plain
# quick: no
import contextlib
import random
import time

import psycopg2
from workload import STORM
from on_server import Load
from support import wait_until

KEYS_FROM = 1000  # accounts of prepared transactions, one for each: the others are those of producer.py
HEAL = 30


class Prepared(Load):
    settings = {"max_prepared_transactions": 60}
    lease = "1s"

    def prepare(self):
        """prepare leaves an undecided transaction with a new account and an event for each of its changes."""
        self.made += 1
        name, key, last = f"t{self.made}", KEYS_FROM + self.made, self.random.randint(1, 5)
        with contextlib.closing(psycopg2.connect(self.store)) as db, db.cursor() as cursor:
            cursor.execute("INSERT INTO account VALUES (%s, %s)", (key, last))
            for version in range(1, last + 1):
                cursor.execute("SELECT outbox.emit('account.changed', 'account', %s, jsonb_build_object('key', %s, 'version', %s))",
                               (str(key), key, version))
            cursor.execute(f"PREPARE TRANSACTION '{name}'")
        self.open[name] = time.monotonic()

    def decide(self, name):
        verdict = self.random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        self.waited = max(self.waited, time.monotonic() - self.open.pop(name))
        self.sql(f"{verdict} PREPARED '{name}'")
        self.fault("committed late" if verdict == "COMMIT" else "rolled back late")

    def crash(self, n):
        kind = ("server killed", "server stopped immediate", "server stopped fast")[n % 3]
        if n % 3 == 0: self.server.kill()
        else: self.server.stop(kind.split()[-1])
        self.server.start()
        self.fault(kind)
        self.vanished += 2
        self.assertEqual({name for name, in self.sql("SELECT gid FROM pg_prepared_xacts")}, set(self.open), "prepared, then lost")

    def play(self, seconds):
        self.begin(2)
        self.made, self.open, self.waited = 0, {}, 0
        crew = self.crew(2, 2)
        self.wait_books(10, crew)
        self.prepare()
        first = next(iter(self.open))  # is decided about last of all
        end = time.monotonic() + seconds
        for n in range(1 << 20):
            for _ in range(self.random.randint(1, 6)): self.prepare()
            self.crash(n)
            for name in self.random.sample(sorted(set(self.open) - {first}), len(self.open) // 2): self.decide(name)
            self.wait_books(10, crew)
            self.healed()
            self.assertLess(self.heals[-1], HEAL, "".join(p.output()[-2000:] for p in crew.values()))
            if time.monotonic() > end and n >= 2: break
        self.crash(0)
        for name in [*sorted(set(self.open) - {first}), first]: self.decide(name)
        self.wait_books(10, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_long_prepared_transactions_survive_crashes_and_load(self):
        """Prepared transactions that outlive crashes of the server and are decided much later: committed events are delivered,
        in order, and rolled-back ones are not, while everything else continues."""
        self.rounds(self.play, STORM, 60)


class Held(Load):
    """A transaction that is never decided blocks nothing else."""
    settings = {"max_prepared_transactions": 5}
    prepare = Prepared.prepare

    def test_abandoned_prepared_transaction_blocks_nothing(self):
        self.begin(1)
        self.made, self.open = 0, {}
        self.random = random.Random(1)
        self.sinks = {"books": f"file:{self.path('books')}"}
        with self.relay(*self.relay_args()) as relay:
            self.prepare()
            self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 50), "payload": n} for n in range(5000)])
            wait_until(lambda: self.books() == 5000, what=relay.output)
            late = "".join(self.outbox("doctor", "--patience", "0s", status=None).stdout.split())
            self.assertIn("t1", late)
            self.assertIn("preparedtransaction", late.replace("-", ""))
            self.server.restart("immediate")
            self.sql("COMMIT PREPARED 't1'")
            last, = self.sql("SELECT version FROM account WHERE key = %s", KEYS_FROM + 1)[0]
            wait_until(lambda: self.books() >= 5000 + last, what=relay.output)
        keys = [ev["payload"]["version"] for ev in self.ndjson(self.path("books")) if ev["aggregate_id"] == str(KEYS_FROM + 1)]
        self.assertEqual(list(dict.fromkeys(keys)), list(range(1, last + 1)))
