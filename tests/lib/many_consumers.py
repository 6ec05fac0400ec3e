"""Many consumers in one relay: the requirements for every store. test_many.py and test_many_sqlite.py test each store's own
promises."""
import pathlib
import random
import re
import resource

from support import wait_until


class ManyConsumers:
    """A relay with consumers c0, c1, ..."""

    def setUp(self):
        super().setUp()
        self.init()

    def config(self, n, **settings):
        """config has consumers c0, c1, ...; a setting may be a function of the consumer's number."""
        lines = ["[outbox]"]
        for i in range(n):
            lines += [f"[consumer c{i}]", f"sink = file:{self.path(f'c{i}')}"]
            lines += [f"{name} = {value(i) if callable(value) else value}" for name, value in settings.items()]
        path = self.path("many.conf")
        path.write_text("\n".join(lines) + "\n")
        return path

    def many(self, n, *args, **settings):
        return self.relay("--config", self.config(n, **settings), "--sweep", "10m", *args)

    def got(self, i):
        return [event["type"] for event in self.ndjson(self.path(f"c{i}"))]

    def wait_for(self, n, types, relay):
        for i in range(n): wait_until(lambda: self.got(i) == types, what=lambda: (i, self.got(i), relay.output()[-2000:]))

    def settled(self):
        return not self.ask("SELECT 1 FROM @claim")

    def are_woken(self, trace):
        """A woken consumer leaves a trace in its lane. The others do not advance until the sweep, and miss no event."""
        with self.many(12, events=lambda i: f"k{i}.*") as relay:
            for i in range(12): self.emit(f"k{i}.first")
            for i in range(12): wait_until(lambda: self.got(i) == [f"k{i}.first"], what=relay.output)
            wait_until(self.settled)
            before = dict(self.ask(f"SELECT consumer, sum({trace}) FROM @lane GROUP BY 1"))
            for n in range(5):
                self.emit("k3.more")
                wait_until(lambda: len(self.got(3)) == n + 2, what=relay.output)
            wait_until(self.settled)
            after = dict(self.ask(f"SELECT consumer, sum({trace}) FROM @lane GROUP BY 1"))
            return {name for name in before if before[name] != after[name]}


class OneRelay(ManyConsumers):
    """Consumers that share resources without affecting each other."""

    def test_events_do_not_wake_the_supervising_thread(self):
        """Each event and consumer would wake it for nothing. The kernel counts the wake-ups."""
        with self.many(6) as relay:
            sent = ["first"]
            self.emit("first")
            self.wait_for(6, sent, relay)
            wait_until(self.settled)
            status = pathlib.Path(f"/proc/{relay.pid}/task/{relay.pid}/status")
            slept = lambda: int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)[1])
            before = slept()
            for n in range(20):
                sent.append(f"t{n}")
                self.emit(f"t{n}")
                self.wait_for(6, sent, relay)
            self.assertLess(slept() - before, 15)  # now and then it trims

    def test_backlog_is_delivered_to_every_consumer(self):
        self.ask("WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 3000) INSERT INTO @event (type) SELECT 't' || n FROM c")
        with self.many(6) as relay:
            self.wait_for(6, [f"t{n}" for n in range(1, 3001)], relay)
            self.emit("last")
            for i in range(6): wait_until(lambda: self.got(i)[-1] == "last", what=relay.output)
        self.assertEqual(self.ask("SELECT count(*) FROM @parked")[0][0], 0)

    def test_predicate_is_evaluated_before_a_worker_is_woken(self):
        with self.many(5, where=lambda i: f"n = {i}") as relay:
            for n in (0, 1, 2, 3, 4, 2): self.emit("a", None, {"n": n})
            for i in range(5): wait_until(lambda: len(self.got(i)) == (2 if i == 2 else 1), what=relay.output)

    def test_large_payload_is_inspected_by_every_consumer(self):
        with self.many(5, where=lambda i: f"n = {i}") as relay:
            self.emit("a", None, {"pad": random.randbytes(40000).hex(), "n": 4})
            wait_until(lambda: len(self.got(4)) == 1, what=relay.output)

    def test_failing_consumer_does_not_block_others_and_recovers(self):
        flag = self.path("fail")
        flag.touch()
        sink = f"exec:[ $OUTBOX_CONSUMER != c1 ] || [ ! -e {flag} ] && echo $OUTBOX_TYPE >>{self.path('$OUTBOX_CONSUMER')}.txt"
        lines = lambda i: self.path(f"c{i}.txt").read_text().split() if self.path(f"c{i}.txt").exists() else []
        args = [arg for i in range(5) for arg in ("--consumer", f"c{i}", "--sink", sink, "--retry", "base=50ms,cap=50ms,attempts=1000")]
        with self.relay(*args, "--sweep", "10m") as relay:
            for n in range(6): self.emit(f"t{n}", f"a/{n}")
            for i in (0, 2, 3, 4): wait_until(lambda: len(lines(i)) == 6, what=relay.output)
            self.assertEqual(lines(1), [])
            flag.unlink()
            wait_until(lambda: sorted(lines(1)) == [f"t{n}" for n in range(6)], what=relay.output)

    def test_resumed_consumer_is_served_without_new_events(self):
        with self.many(5) as relay:
            self.emit("a")
            self.wait_for(5, ["a"], relay)
            self.outbox("consumers", "pause", "c1")
            self.emit("b")
            for i in (0, 2, 3, 4): wait_until(lambda: self.got(i) == ["a", "b"], what=relay.output)
            self.assertEqual(self.got(1), ["a"])
            self.outbox("consumers", "resume", "c1")
            wait_until(lambda: self.got(1) == ["a", "b"], what=relay.output)

    def test_repeatedly_killed_relays_lose_nothing(self):
        """Two relays with the same consumers, one of which is killed while events are emitted."""
        config, sent = self.config(6, lease="1s"), []
        stays = self.relay("--config", config, "--sweep", "1s")
        for round_ in range(4):
            other = self.relay("--config", config, "--sweep", "1s")
            for n in range(10):
                sent.append(f"t{round_}-{n}")
                self.emit(sent[-1], f"a/{n % 3}")
            other.kill()
        for i in range(6): wait_until(lambda: set(self.got(i)) == set(sent), what=stays.output)
        for i in range(6):
            for key in range(3):
                first = [t for t in dict.fromkeys(self.got(i)) if int(t.split("-")[1]) % 3 == key]
                self.assertEqual(first, [t for t in sent if int(t.split("-")[1]) % 3 == key])
        stays.stop()

    def test_consumers_may_exceed_the_default_descriptor_limit(self):
        limit = (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        was = resource.getrlimit(resource.RLIMIT_NOFILE)
        config = self.config(120)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, was)
        with self.relay("--config", config, "--sweep", "10m") as relay:
            resource.setrlimit(resource.RLIMIT_NOFILE, was)
            self.emit("a")
            self.wait_for(120, ["a"], relay)
