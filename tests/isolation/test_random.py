"""G1 to G6, G9 and G10 on PostgreSQL under random activity, against a model: writers begin, emit, set savepoints, roll back to
them, prepare, commit and roll back in any order, while workers claim, fail, bury, crash and release, and old events are
trimmed. A failure names its seed. OUTBOX_SOAK=1 runs many seeds; OUTBOX_SEED=N that one alone."""
# build: plain
# quick: no
import os
import time

import servers
from histories import World
from support import SOAK

SEED = os.environ.get("OUTBOX_SEED")
SECONDS = 600  # of a soak


class Histories(World):
    two_phase = True

    @classmethod
    def setUpClass(cls):
        cls.postgres = servers.Postgres({"max_prepared_transactions": 50, "autovacuum_naptime": "1s"})
        cls.addClassCleanup(cls.postgres.close)
        cls.postgres.start()

    def setUp(self):
        super().setUp()
        self.store = self.postgres.create_database(self.dbname)
        self.addCleanup(servers.drop_database, self.postgres.url(""), self.dbname)

    def seeds(self, n):
        if SEED: return [int(SEED)]
        return range(1, n + 1)

    def test_without_crashes_every_event_is_handed_out_once(self):
        for seed in self.seeds(1):
            with self.subTest(seed=seed): self.play(seed, 400, trouble=False)

    def test_workers_that_fail_crash_or_release_lose_nothing(self):
        for seed in self.seeds(2):
            with self.subTest(seed=seed): self.play(seed, 400, trouble=True)

    def test_random_workers_lose_nothing_in_a_long_run(self):
        if not SOAK: self.skipTest("runs only with OUTBOX_SOAK=1")
        end, seed = time.monotonic() + SECONDS, 1000
        while time.monotonic() < end:
            seed += 1
            with self.subTest(seed=seed): self.play(seed, 2000, trouble=seed % 2 == 1)
        print(f"{seed - 1000} seeds")
