"""G10 on MariaDB: a consumer is added while a trim is held at any of its statements."""
# build: plain
# quick: no
from proxy_mariadb import STALLED, Proxied
from support import BIN, MariaCase, wait_until

EVENTS = 3
MOST = 40  # more than the statements of a trim


class Beside(Proxied, MariaCase):
    def deliver(self, consumer):
        """deliver returns the total number of events that the consumer has received."""
        self.drain("--consumer", consumer, "--sink", f"file:{self.path(consumer)}")
        return len(self.ndjson(self.path(consumer)))

    def there(self, consumer):
        """there returns how many events exist once the consumer exists."""
        return self.sql("SELECT count(*) FROM outbox_consumer c, outbox_event e WHERE c.name = %s", consumer)[0][0]

    def waits(self):
        """waits tells whether a session waits for a trim to end."""
        return self.sql("SELECT 1 FROM information_schema.processlist WHERE id <> connection_id() AND info LIKE %s",
                        f"%{self.dbname}%.outbox_meta%FOR UPDATE")

    def add(self, consumer, stop):
        """add adds a consumer without deliveries while a trim is held at `stop`, and returns the number of events at that
        moment. If it has to wait for the trim, it is added when that continues, and returns 0."""
        with self.relay("--consumer", consumer, "--sink", f"file:{self.path('missing/out')}", "--lease", "500ms", "--from", "beginning",
                        wait=False):
            wait_until(lambda: self.there(consumer) or self.waits())
            there = self.there(consumer)
            stop.let_go()
            wait_until(lambda: self.sql("SELECT 1 FROM outbox_consumer WHERE name = %s", consumer))
        return there

    def add_beside_trim(self, n):
        """add_beside_trim adds a consumer while a trim is held at its n-th statement, and returns that statement, None if it
        has fewer, and the number of events when the consumer was added."""
        stop = self.proxy.at(n, STALLED)
        trim = self.spawn(BIN, "trim", "--store", self.far, "--older-than", "0s", "--yes")
        wait_until(lambda: stop.done() or not trim.running())
        if not stop.done(): return None, 0
        there = self.add(f"late{n}", stop)
        trim.wait(expect=None)  # the server ends a transaction that stalls for long
        return stop.text, there

    def test_consumer_added_during_a_trim_gets_every_event(self):
        """A trim held at any of its statements: a consumer added from the beginning by then gets every event."""
        added = 0
        self.deliver("done")
        for n in range(1, MOST):
            for i in range(EVENTS): self.emit("t.e", payload=str(i))
            self.deliver("done")
            text, there = self.add_beside_trim(n)
            if text is None: break
            got = self.deliver(f"late{n}")
            self.assertGreaterEqual(got, there, f"added before the trim ran {text!r}")
            added += there > 0
            self.outbox("consumers", "remove", f"late{n}", "--force", "--yes")
        self.assertLess(n, MOST - 1, "the trim has more statements than the test tried")
        self.assertGreater(added, 0, "no consumer was added while the trim was held")
