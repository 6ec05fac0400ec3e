"""An operator retries events waiting for their next attempt, and dead letters; the CLI names those that cannot be
retried."""
import unittest

from support import PgCase, on_each_store, wait_until

DATA = 65


@on_each_store
class Retry:
    def setUp(self):
        super().setUp()
        self.init()
        self.out, self.broken = self.path("out"), self.path("broken")
        self.broken.touch()

    def sink(self, name="mail"):
        """A sink that fails while `broken` exists, and rejects events of the type "bad"."""
        script = f'[ ! -e {self.broken} ] || [ "$OUTBOX_TYPE" != bad ] || exit 65; [ ! -e {self.broken} ] || exit 1; ' \
                 f'echo {name} $OUTBOX_SEQ $OUTBOX_ATTEMPT >>{self.out}'
        return "--consumer", name, "--sink", "exec:" + script, "--retry", "base=1h,cap=1h,jitter=none,outage=0s"

    def delivered(self):
        return sorted(self.out.read_text().splitlines()) if self.out.exists() else []

    def states(self, name="mail"):
        return [d["state"] for e in self.json("events", "list", "--consumer", name) for d in e["deliveries"]]

    def failed(self, *more, says=("failed",), names=("mail",)):
        """failed runs a relay until, for each of these consumers, the first events are in these states; failed events wait for
        an hour, and the sink works again."""
        relay = self.relay(*self.sink(), *more)
        wait_until(lambda: all(self.states(name)[:len(says)] == list(says) for name in names), what=relay.output)
        self.broken.unlink()
        return relay

    def test_waiting_event_is_retried_at_once(self):
        ids = [self.emit("later"), self.emit("later")]
        with self.failed("--order", "none", says=["failed", "failed"]) as relay:
            self.assertIn(f"{ids[0]}: retrying now for 1 consumer", self.outbox("events", "retry", ids[0]).stdout)
            wait_until(lambda: self.states()[0] == "delivered", what=relay.output)  # settled a moment after it was delivered
            self.assertEqual((self.delivered(), self.states()), (["mail 1 2"], ["delivered", "failed"]), "the other event keeps waiting")
            self.assertEqual(self.json("events", "retry", "2"), [{"event": "2", "waited": 1, "dead": 0}])
            wait_until(lambda: self.delivered() == ["mail 1 2", "mail 2 2"], what=relay.output)

    def test_several_events_and_dead_letters_can_be_retried(self):
        later, bad = self.emit("later"), self.emit("bad")
        with self.failed("--order", "none", says=["failed", "expired"]) as relay:
            self.assertEqual(self.json("events", "retry", later, bad),
                             [{"event": later, "waited": 1, "dead": 0}, {"event": bad, "waited": 0, "dead": 1}])
            wait_until(lambda: self.delivered() == ["mail 1 2", "mail 2 1"], what=relay.output)

    def test_retry_can_be_limited_to_one_consumer(self):
        id = self.emit("later")
        with self.failed(*self.sink("other"), names=("mail", "other")) as relay:
            self.outbox("events", "retry", id, "--consumer", "other")
            wait_until(lambda: self.delivered() == ["other 1 2"], what=relay.output)
            self.assertEqual(self.states(), ["failed"])

    def test_unretryable_events_are_reported_and_the_rest_retried(self):
        first, behind = self.emit("later", key="k/1"), self.emit("later", key="k/1")
        with self.failed() as relay:
            told = self.outbox("events", "retry", behind, status=DATA).stderr
            self.assertIn("neither waits for a retry nor is a dead letter; `outbox events show", told)
            done = self.outbox("events", "retry", "nonsense", behind, first, status=DATA)
            self.assertIn('there is no event "nonsense"', done.stderr)
            self.assertIn(f"{first}: retrying now", done.stdout)
            wait_until(lambda: self.delivered() == ["mail 1 2", "mail 2 1"], what=relay.output)
            self.assertIn("neither waits for a retry", self.outbox("events", "retry", first, status=DATA).stderr)

    def test_retried_dead_letter_of_a_trimmed_event_is_found_again(self):
        id = self.emit("bad")
        self.drain("--consumer", "mail", "--sink", "exec:exit 65")
        self.outbox("trim", "--older-than", "0s", "--yes")
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(0,)])
        self.outbox("dead", "retry", id)
        hours = ("--retry", "base=1h,cap=1h,attempts=5,jitter=none")
        with self.relay("--consumer", "mail", "--sink", "exec:test -e healed && touch again || exit 75", *hours) as relay:
            wait_until(lambda: self.ask("SELECT count(*) FROM @parked WHERE failed_at IS NOT NULL") == [(1,)], what=relay.output)
            self.path("healed").touch()
            self.assertIn(f"{id}: retrying now for 1 consumer", self.outbox("events", "retry", id).stdout)
            wait_until(self.path("again").exists, what=relay.output)


class Many(PgCase):
    """Letters are retried as a set: each is examined a fixed number of times, however many there are."""

    LETTERS = 300

    def setUp(self):
        super().setUp()
        self.init()
        for name in ("mail", "search"): self.sql(f"SELECT outbox.register('{name}')")
        self.sql(f"INSERT INTO outbox.event (type) SELECT 'a.' || i % 2 FROM generate_series(1, {self.LETTERS}) i")
        self.sql("INSERT INTO outbox.dead (consumer, seq, created_at, id, type, payload, attempts, dead_at) "
                 "SELECT c.name, e.seq, e.created_at, e.id, e.type, e.payload, 5, now() FROM outbox.event e, outbox.consumer c")

    def looked_at(self):
        return self.sql("SELECT seq_tup_read + coalesce(idx_tup_fetch, 0), n_tup_upd FROM pg_stat_user_tables "
                        "WHERE schemaname = 'outbox' AND relname = 'dead'")[0]

    def retry(self, *more):
        """retry retries letters and returns the answer, and how many rows of dead that read."""
        before, written = self.looked_at()
        answer = self.json("dead", "retry", "--all", *more)
        wait_until(lambda: self.looked_at()[1] - written == answer["retried"], what="the statistics")
        return answer, self.looked_at()[0] - before

    def test_all_dead_letters_are_retried_in_linear_time(self):
        answer, rows = self.retry()
        self.assertEqual(answer["consumers"], {"mail": self.LETTERS, "search": self.LETTERS})
        self.assertLess(rows, 20 * 2 * self.LETTERS)
        self.assertEqual(self.sql("SELECT consumer, count(*) FROM outbox.parked GROUP BY 1 ORDER BY 1"),
                         [("mail", self.LETTERS), ("search", self.LETTERS)])

    def test_dead_letters_of_a_type_are_retried_in_linear_time(self):
        would = self.json("dead", "retry", "--all", "--consumer", "mail", "--type", "a.1", "--dry-run")
        answer, rows = self.retry("--consumer", "mail", "--type", "a.1")
        self.assertEqual((would["consumers"], answer["consumers"]), 2 * ({"mail": self.LETTERS // 2},))
        self.assertLess(rows, 20 * 2 * self.LETTERS)
        self.assertEqual(self.sql("SELECT DISTINCT d.consumer, d.type FROM outbox.dead d WHERE d.retrying"), [("mail", "a.1")])
        self.assertEqual(self.retry()[0]["consumers"], {"mail": self.LETTERS // 2, "search": self.LETTERS})


if __name__ == "__main__":
    unittest.main()
