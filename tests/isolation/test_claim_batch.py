"""claim_batch in SQL: for one consumer, for all of them, within the limit, and as durable as the calling transaction."""
# build: plain
import collections
import threading
import time

import psycopg2

from sessions_postgres import Exact


class ClaimBatch(Exact):
    def setUp(self):
        super().setUp()
        self.writer = self.session()

    def batch(self, session=None, worker="w", limit=100, target=None):
        """batch returns {consumer: [seq, ...]} and {consumer: epoch}."""
        rows = (session or self.reader).do("SELECT consumer, epoch, seq FROM @.claim_batch(%s, %s, %s)", worker, limit, target)
        seqs, epochs = collections.defaultdict(list), {}
        for consumer, epoch, seq in rows:
            seqs[consumer].append(seq)
            self.assertEqual(epochs.setdefault(consumer, epoch), epoch)
        for found in seqs.values(): self.assertEqual(found, sorted(found))
        return dict(seqs), epochs

    def settle(self, epochs, worker="w"):
        for consumer, epoch in epochs.items(): self.assertTrue(self.reader.settle(consumer, epoch, worker))

    def test_target_limits_the_batch_and_no_target_means_all(self):
        self.register("mail", "order.*")
        self.register("audit")
        paid, new = self.writer.emit("o/1", "order.paid"), self.writer.emit("u/1", "user.new")
        seqs, epochs = self.batch(target="mail")
        self.assertEqual(seqs, {"mail": [paid]})
        self.settle(epochs)
        shipped = self.writer.emit("o/1", "order.shipped")
        seqs, epochs = self.batch()
        self.assertEqual(seqs, {"mail": [shipped], "audit": [paid, new, shipped]})
        self.assertEqual(self.batch(worker="another"), ({}, {}))  # no other worker can claim them
        self.settle(epochs)
        self.assertEqual(self.batch(), ({}, {}))
        with self.assertRaisesRegex(psycopg2.Error, "not registered"): self.batch(target="nobody")

    def test_limit_spans_all_consumers_and_none_starves(self):
        for name in "abc": self.register(name, ordering="none")
        events = [self.writer.emit() for _ in range(4)]
        seen = collections.defaultdict(list)
        while True:
            seqs, epochs = self.batch(limit=5)
            if not seqs: break
            self.assertLessEqual(sum(map(len, seqs.values())), 5)
            for consumer, found in seqs.items(): seen[consumer] += found
            self.settle(epochs)
        self.assertEqual({name: sorted(found) for name, found in seen.items()}, {name: events for name in "abc"})

    def test_busy_and_paused_consumers_are_skipped(self):
        for name in "abc": self.register(name)
        event = self.writer.emit()
        other = self.session()
        other.do("BEGIN")
        other.do("SELECT 1 FROM @.consumer WHERE name = 'a' FOR UPDATE")
        self.reader.do("SELECT @.pause('c')")
        self.reader.do("SET lock_timeout = '10s'")
        self.assertEqual(self.batch()[0], {"b": [event]})
        other.do("COMMIT")
        self.assertEqual(self.batch()[0], {"a": [event]})

    def test_claims_do_not_wait_for_an_uncommitted_claim(self):
        for name in "abc": self.register(name)
        event = self.writer.emit()
        role = self.role()
        self.sql(f"SELECT outbox.allow('consumer', '{role.split('user=')[1].split('&')[0]}', '*')")
        for function in "claim_batch('first', 100, 'a')", "claim('a', 'first')":
            self.reader.do("BEGIN")
            self.assertEqual([seq for seq, in self.reader.do(f"SELECT seq FROM @.{function}")], [event])
            for session in self.session(), self.session(role):
                for beside in "claim_batch('w', 100, 'a')", "claim('a', 'w')":
                    began = time.monotonic()
                    self.assertEqual(session.do(f"SELECT * FROM @.{beside}"), [])
                    self.assertLess(time.monotonic() - began, 2, beside)
                began = time.monotonic()
                session.do("BEGIN")
                self.assertEqual(self.batch(session)[0], {"b": [event], "c": [event]})
                self.assertLess(time.monotonic() - began, 2)
                session.do("ROLLBACK")
            self.reader.do("ROLLBACK")
        self.assertEqual(set(self.batch()[0]), set("abc"))

    def test_claim_waits_for_a_turn_about_to_end(self):
        self.register("a")
        event = self.writer.emit()
        other = self.session()
        for _ in range(3):
            self.reader.do("BEGIN")
            self.reader.do("SELECT 1 FROM @.consumer WHERE name = 'a' FOR UPDATE")
            end = threading.Timer(0.01, self.reader.do, ("COMMIT",))
            end.start()
            epoch, events = other.claim("a")
            end.join()
            if epoch is not None: break  # a machine that is slow may have kept the COMMIT for longer than a claim waits
        self.assertEqual([seq for seq, *_ in events], [event])

    def test_events_of_a_vanished_worker_return_one_by_one(self):
        for name in "abcd": self.register(name)
        event = self.writer.emit()
        self.batch(worker="dead")
        self.reader.do("UPDATE @.claim SET locked_until = '-infinity'")
        left = set("abcd")
        while left:
            seqs, epochs = self.batch()
            self.assertEqual([found for found in seqs.values()], [[event]])
            left -= set(seqs)
            self.settle(epochs)

    def test_batch_claim_takes_effect_at_the_commit(self):
        for name in "ab": self.register(name)
        event = self.writer.emit()
        everything = {"a": [event], "b": [event]}
        self.reader.do("BEGIN")
        self.assertEqual(self.batch()[0], everything)
        other = self.session()
        self.assertEqual(self.batch(other, "other")[0], {})  # not committed, and still reserved
        self.reader.do("ROLLBACK")
        other.do("BEGIN")
        self.assertEqual(self.batch(other, "other")[0], everything)
        other.do("COMMIT")
        self.assertEqual(self.batch()[0], {})

    def test_claim_takes_effect_at_the_commit(self):
        self.register("c")
        event = self.writer.emit()
        for end, left in (("ROLLBACK", [event]), ("COMMIT", [])):
            self.reader.do("BEGIN")
            self.assertEqual([e[0] for e in self.reader.claim("c", "first")[1]], [event])
            self.reader.do(end)
            if end == "COMMIT": self.assertEqual(self.reader.claim("c", "second"), (None, []))

    def test_claim_is_refused_once_the_transaction_has_written(self):
        self.register("c")
        for target in "c", None:
            self.reader.do("BEGIN")
            self.reader.emit("a/1")
            with self.assertRaisesRegex(psycopg2.Error, "this transaction has written(.|\n)*COMMIT first") as caught:
                self.batch(target=target)
            self.assertEqual(caught.exception.pgcode, "OB002")
            self.reader.do("ROLLBACK")

    def test_inbox_key_is_the_idempotency_key_or_the_id(self):
        self.register("c")
        emit = "SELECT @.emit('t.e', NULL, NULL::text, '{}', NULL, %s, tenant => %s)::text"
        (with_key,), (without,), (tenants,) = [self.writer.do(emit, *given)[0] for given in (("k", None), (None, None), ("k", "acme"))]
        for function in "@.claim('c', 'w')", "@.claim_batch('w')":
            rows = self.reader.do(f"SELECT epoch, inbox_key FROM {function} ORDER BY seq")
            # Two tenants may use the same key: in the platform's inbox their events go by their ids.
            self.assertEqual([key for _, key in rows], ["k", without, tenants])
            self.assertTrue(self.reader.settle("c", rows[0][0], release_from=1))
        self.assertNotEqual(with_key, without)

    def test_invalid_arguments_are_refused(self):
        for arguments in "'', 10", "'w', 0", "'w', 100001", "'w', 1, NULL, 0", "NULL":
            with self.assertRaisesRegex(psycopg2.Error, "claim_batch takes a worker"):
                self.reader.do(f"SELECT @.claim_batch({arguments})")

    def test_role_needs_a_grant_to_claim(self):
        for name in "mail", "audit": self.register(name)
        event = self.writer.emit()
        mine = self.role()
        self.sql(f"SELECT outbox.allow('consumer', '{mine.split('user=')[1].split('&')[0]}', 'mail')")
        session = self.session(mine)
        seqs, epochs = self.batch(session)
        self.assertEqual(seqs, {"mail": [event]})
        self.assertTrue(session.settle("mail", epochs["mail"]))
        operator = self.session(self.role("operator"))
        with self.assertRaisesRegex(psycopg2.Error, "may not work on any consumer"): self.batch(operator)


if __name__ == "__main__":
    import unittest
    unittest.main()
