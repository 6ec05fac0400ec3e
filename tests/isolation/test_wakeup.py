"""Wake-ups with real relays: every sleeping relay is woken by every commit, even when another sleeping relay dies. No relay polls
within the time a test would wait, except after a holder died: then a listener does, after ten seconds."""
# quick: no
# sanitizers: soak
import random
import threading
import time

import servers
from sessions_postgres import ExactAlone, Session
from support import SOAK, wait_until

SOON = 20  # seconds, on a busy machine; a relay that missed the notification would poll after ten minutes
LISTENER = 10


class Wakeup(ExactAlone):
    """The run's own server may allow prepared transactions, and then producers do not notify."""

    def sleepers(self, names):
        return {name: self.relay("--consumer", name, "--sink", f"file:{self.path(name)}", "--sweep", "10m") for name in names}

    def all_have(self, names, n, seconds):
        """all_have waits until every relay has delivered n events, and returns how long that took."""
        start = time.monotonic()
        count = lambda name: self.path(name).read_bytes().count(b"\n") if self.path(name).exists() else 0
        wait_until(lambda: all(count(name) >= n for name in names), seconds,
                   lambda: f"{n} emitted; delivered {({name: count(name) for name in names})}")
        return time.monotonic() - start

    def holder(self):
        """holder returns the backend that holds the lock of a sleeper; None if there is none."""
        found = self.reader.do("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted "
                               "AND ((classid::bigint << 32) | objid::bigint) = @._wakeup_key()")
        return found[0][0] if found else None

    def listeners(self):
        return self.reader.do("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted "
                              "AND ((classid::bigint << 32) | objid::bigint) = @._wakeup_key() # 1")[0][0]

    def test_emit_only_role_can_notify_a_sleeper(self):
        """The trigger runs with the emitting role's rights, so everything it calls must be open to producers."""
        role = f"rings_{self.dbname}"[:60]
        servers.execute(self.store, f'CREATE ROLE "{role}" LOGIN')
        self.addCleanup(servers.execute, self.postgres.url("postgres"), f'DROP ROLE "{role}"')
        self.addCleanup(servers.execute, self.store, f'DROP OWNED BY "{role}"')
        self.outbox("grant", "producer", role)
        self.sleepers(["a"])
        wait_until(self.holder)
        writer = self.session()
        writer.do(f'SET ROLE "{role}"')
        writer.do("SELECT @.emit('a', 'k', '1', '1')")
        self.all_have(["a"], 1, SOON)

    def test_producer_checks_for_sleepers_once_a_second(self):
        """Finding the holder of a lock is expensive. A session that found a worker notifies for its next events without checking."""
        relays = self.sleepers(["a"])
        wait_until(self.holder)
        writer = self.session()
        writer.do("SET track_functions = 'all'")
        writer.do("BEGIN")
        began = time.monotonic()
        for _ in range(50): writer.emit("a/1")
        looked = writer.do("SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = '_wakeup_lock_is_foreign'")[0][0]
        self.assertLessEqual(looked, 2 + (time.monotonic() - began))
        writer.do("COMMIT")
        self.all_have(["a"], 50, SOON)
        for relay in relays.values(): relay.stop()

    def test_idle_relay_without_wakeups_reads_only_the_snapshot(self):
        """As soon as another session holds the lock, it looks for events."""
        servers.execute(self.store, f'ALTER DATABASE "{self.dbname}" SET outbox.wakeup = off')
        relays = self.sleepers(["a"])

        def asks_little():
            """The time of its last check."""
            return self.reader.do("SELECT query_start FROM pg_stat_activity WHERE datname = current_database() "
                                  "AND query LIKE '%SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text'")
        writer = self.session()
        writer.do("SET outbox.wakeup = off")
        for n in range(1, 6):
            before = wait_until(asks_little)
            wait_until(lambda: asks_little() not in ([], before))
            writer.do("BEGIN")
            writer.emit("a/1")
            before = asks_little()
            wait_until(lambda: asks_little() not in ([], before))  # the transaction is in the snapshot, and runs
            writer.do("COMMIT")
            self.all_have(["a"], n, SOON)
        for relay in relays.values(): relay.stop()

    def test_every_sleeper_notices_every_commit(self):
        names, dice, n = ["a", "b", "c"], random.Random(7), 0
        relays = self.sleepers(names)
        writers = [self.session() for _ in range(4)]
        end = time.monotonic() + (300 if SOAK else 3)
        while time.monotonic() < end:
            for writer in dice.sample(writers, dice.randrange(1, 4)):  # transactions that overlap
                writer.do("BEGIN")
                writer.emit("a/1")
                n += 1
                if dice.random() < 0.5: time.sleep(dice.random() * 0.004)
            for writer in writers: writer.do("COMMIT")
            self.all_have(names, n, SOON)
            time.sleep(dice.choice([0, 0.001, 0.002, 0.003, 0.005, 0.02]))  # until about the moment they fall asleep
        for relay in relays.values(): relay.stop()

    def test_every_commit_of_many_producers_wakes_the_relays(self):
        names, each = ["a", "b", "c"], 80
        relays = self.sleepers(names)

        def produce(seed):
            dice, session = random.Random(seed), Session(self.store)
            for _ in range(each):
                session.emit("a/1")
                time.sleep(dice.random() * 0.01)
            session.close()
        threads = [threading.Thread(target=produce, args=(i,)) for i in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        self.all_have(names, 6 * each, SOON)
        for relay in relays.values(): relay.stop()

    def test_killed_sleeper_delays_others_by_one_listener_timeout(self):
        if not SOAK: self.skipTest("waits for the timeout of a listener; runs only with OUTBOX_SOAK=1")
        first = self.sleepers(["a"])["a"]
        pid = wait_until(self.holder)
        left = ["b", "c"]
        relays = self.sleepers(left)
        wait_until(lambda: self.listeners() == 2)
        first.kill()
        wait_until(lambda: self.holder() != pid)
        self.reader.emit("a/1")
        self.all_have(left, 1, LISTENER + SOON)
        for n in range(2, 12):  # one of the sleepers is the new holder
            self.reader.emit("a/1")
            self.all_have(left, n, SOON)
        for relay in relays.values(): relay.stop()
