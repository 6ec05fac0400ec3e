"""The relay end to end on each store: order, retries, dead letters, pauses, filters, stopping, waking, sharing."""
import collections
import datetime
import json
import signal
import sqlite3
import subprocess
import time

from support import Case, on_each_store, wait_until

APPEND = "exec 9>>{out}; flock 9; cat >&9"
QUICK = "base=20ms,cap=50ms,attempts=1000,outage=0s"
DATA = 65
AT_ONCE = 30  # seconds, on the busiest of machines; the sweep runs only after ten minutes


class RelayCase:
    def setUp(self):
        super().setUp()
        self.init()
        self.out = self.path("out")
        self.broken = self.path("broken")  # files that the test's own sinks check

    def relay(self, *args, **kw):
        """relay also waits until its consumers are registered, so that the test may query them."""
        relay = super().relay(*args, **kw)
        names = {value for flag, value in zip(args, args[1:]) if flag == "--consumer"}
        wait_until(lambda: names <= {name for name, in self.ask("SELECT name FROM @consumer")}, what=relay.output)
        return relay

    def number(self, *numbers, key="1", type="a"):
        """number emits events whose payloads are these numbers."""
        self.emit_many([{"type": type, "aggregate_type": "k", "aggregate_id": key, "payload": n} for n in numbers])

    def got(self, path=None):
        return [ev["payload"] for ev in self.ndjson(path or self.out)]

    def wait_got(self, expected, path=None, relay=None):
        """wait_got waits for that many events, which must then be these."""
        wait_until(lambda: len(self.got(path)) >= len(expected),
                   what=lambda: (self.got(path), relay.output() if relay else ""))
        self.assertEqual(self.got(path), expected)

    def file_sink(self, name="mail", *more, out=None):
        return ["--consumer", name, "--sink", f"file:{out or self.out}", *more]

    def exec_sink(self, script, *more, name="mail", out=None):
        """exec_sink runs the script, and appends the event unless the script has exited."""
        return ["--consumer", name, "--sink", f"exec:{script}{APPEND.format(out=out or self.out)}", *more]

    def failing(self, test, *more, **kw):
        """failing is a sink that fails while the file `broken` exists and the shell's `test` is true."""
        return self.exec_sink(f"if [ -e {self.broken} ] && {test}; then echo broken >&2; exit 1; fi; ", *more, **kw)

    def state(self, seq, consumer="mail"):
        """state returns an event's (state, attempts) for a consumer."""
        for delivery in self.json("events", "show", seq)["deliveries"]:
            if delivery["consumer"] == consumer: return delivery["state"], delivery["attempts"]

    def consumer(self, name="mail"):
        return self.json("consumers", "show", name)

    def make_due(self):
        """make_due makes events waiting for a retry due."""
        self.ask(f"UPDATE @parked SET due_at = {self.time_of(1)} WHERE due_at IS NOT NULL")

    def assert_settled(self, delivered, consumer="mail"):
        self.assertEqual(self.consumer(consumer)["delivered"], delivered)
        for table in ("@claim", "@parked"): self.assertEqual(self.ask(f"SELECT * FROM {table}"), [])


@on_each_store
class Order(RelayCase):
    def test_failing_key_holds_back_only_itself(self):
        self.broken.touch()
        for n in range(5):
            self.number(100 + n, key="bad")
            self.number(200 + n, key="good")
        with self.relay(*self.failing("[ $OUTBOX_AGGREGATE_ID = bad ]", "--retry", QUICK)) as relay:
            self.wait_got([200, 201, 202, 203, 204], relay=relay)
            wait_until(lambda: self.state(1)[1] >= 3)
            self.assertEqual(self.state(3)[1], 0)
            self.number(205, key="good")
            self.number(105, key="bad")
            self.wait_got([200, 201, 202, 203, 204, 205], relay=relay)
            self.broken.unlink()
            self.wait_got([200, 201, 202, 203, 204, 205, 100, 101, 102, 103, 104, 105], relay=relay)
        self.assert_settled(12)

    def test_without_order_a_failing_event_does_not_block_others(self):
        self.broken.touch()
        self.number(*range(1, 7))
        with self.relay(*self.failing("[ $OUTBOX_SEQ = 2 ]", "--retry", QUICK, "--order", "none")) as relay:
            wait_until(lambda: sorted(self.got()) == [1, 3, 4, 5, 6], what=relay.output)
            self.broken.unlink()
            wait_until(lambda: self.got()[5:] == [2], what=relay.output)
        self.assert_settled(6)

    def test_in_global_order_a_failing_event_holds_back_all_others(self):
        self.broken.touch()
        for n in range(1, 9): self.number(n, key=str(n))
        with self.relay(*self.failing("[ $OUTBOX_SEQ = 3 ]", "--retry", QUICK, "--order", "global")) as relay:
            wait_until(lambda: self.state(3)[1] >= 3, what=relay.output)
            self.number(9, key="9")
            wait_until(lambda: self.state(3)[1] >= 6, what=relay.output)
            self.assertEqual(self.got(), [1, 2])
            self.broken.unlink()
            self.wait_got([*range(1, 10)], relay=relay)
        self.assert_settled(9)

    def test_many_keys_at_once_keep_each_key_in_order(self):
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 7), "payload": n}
                        for n in range(150)])
        self.drain(*self.exec_sink("", "--concurrency", 8))
        self.assert_key_order(range(150))
        self.assert_settled(150)

    def assert_key_order(self, numbers):
        keys = collections.defaultdict(list)
        for ev in self.ndjson(self.out): keys[ev["aggregate_id"]].append(ev["payload"])
        self.assertEqual(sorted(n for key in keys.values() for n in key), [*numbers])
        for key, seen in keys.items(): self.assertEqual(seen, sorted(seen), f"key {key}")

    def test_two_relays_share_lanes_and_keep_each_key_in_order(self):
        who = self.path("who")
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 16), "payload": n}
                        for n in range(200)])
        script = f"echo $PPID >>{who}; "
        args = self.exec_sink(script, "--lanes", 4, "--batch", 5, "--concurrency", 2)
        with self.relay(*args) as a, self.relay(*args) as b:
            wait_until(lambda: len(self.got()) >= 200, what=lambda: a.output() + b.output())
            total = 200
            while len(set(who.read_text().split())) == 1 and total < 2000:  # the other may have started too late to receive any event
                self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 16), "payload": n}
                                for n in range(total, total + 100)])
                total += 100
                wait_until(lambda: len(self.got()) >= total, what=lambda: a.output() + b.output())
        self.assert_key_order(range(total))
        self.assertEqual(set(who.read_text().split()), {str(a.pid), str(b.pid)}, "one relay did all the work")
        self.assert_settled(total)

    def test_several_relays_on_one_consumer_deliver_each_event_once(self):
        with self.relay(*self.file_sink()), self.relay(*self.file_sink()), self.relay(*self.file_sink()):
            for n in range(20): self.number(*range(n * 10, n * 10 + 10), key=str(n % 3))
            wait_until(lambda: len(self.got()) >= 200)
        self.assert_key_order(range(200))
        self.assert_settled(200)


@on_each_store
class Failing(RelayCase):
    def test_retries_follow_the_policy_and_end_in_a_dead_letter(self):
        times = self.path("times")
        self.number(1)
        fail = f"date +%s%N >>{times}; echo no stock >&2; exit 1; "
        self.drain(*self.exec_sink(fail, "--retry", "base=100ms,cap=200ms,attempts=5,jitter=none,outage=0s"))
        at = [int(line) / 1e6 for line in times.read_text().split()]
        self.assertEqual(len(at), 5)
        for gap, least in zip((b - a for a, b in zip(at, at[1:])), (100, 200, 200, 200)):
            self.assertGreaterEqual(gap, least - 1)
            self.assertLess(gap, least + 30000)
        letter, = self.json("dead", "list")
        self.assertEqual((letter["seq"], letter["attempts"], letter["error"]), (1, 5, "exit status 1: no stock"))
        self.assertEqual(self.state(1), ("expired", 5))
        self.assertEqual(self.got(), [])
        self.assert_settled(0)

    def test_latest_error_is_stored_and_every_error_is_logged(self):
        """C2.6, and C4.4: the fields of a dead letter."""
        event = self.emit("a", "k/1", 1)
        begun = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=5)
        sink = self.exec_sink("echo reason $OUTBOX_ATTEMPT >&2; exit 1; ", "--retry", "base=1h,cap=1h,attempts=3,outage=0s")
        for attempt in (1, 2):
            self.make_due()
            with self.relay(*sink, "--sweep", "50ms") as relay:
                wait_until(lambda: self.state(1) == ("failed", attempt), what=relay.output)
            self.assertEqual(self.ask("SELECT error FROM @parked"), [(f"exit status 1: reason {attempt}",)])
            self.assertIn(f"attempt {attempt} of 3: exit status 1: reason {attempt}", relay.output())
        self.make_due()
        self.assertIn("3 attempts: exit status 1: reason 3", self.drain(*sink).stderr)
        letter, = self.json("dead", "list")
        self.assertEqual((letter["consumer"], letter["id"], letter["payload"], letter["error"]),
                         ("mail", event, 1, "exit status 1: reason 3"))
        self.assertGreater(datetime.datetime.fromisoformat(letter["dead_at"].replace("Z", "+00:00")), begun)
        self.assertNotIn("reason 1", json.dumps(self.json("events", "show", 1)))

    def test_dead_letter_frees_its_key_and_can_be_retried(self):
        self.broken.touch()
        self.number(1, 2, 3)
        sink = self.failing("[ $OUTBOX_SEQ = 2 ]", "--retry", "base=10ms,attempts=2,outage=0s")
        with self.relay(*sink) as relay:
            self.wait_got([1, 3], relay=relay)
            wait_until(lambda: self.state(2) == ("expired", 2), what=relay.output)
            self.broken.unlink()
            self.outbox("dead", "retry", "2")
            self.wait_got([1, 3, 2], relay=relay)
            wait_until(lambda: self.json("dead", "list") == [], what=relay.output)
        self.assertEqual(self.state(2)[0], "delivered")
        self.assert_settled(3)

    def test_retried_dead_letter_that_fails_is_a_dead_letter_again(self):
        self.number(1)
        sink = self.exec_sink("exit 1; ", "--retry", "base=1ms,attempts=2,outage=0s")
        self.drain(*sink)
        self.outbox("dead", "retry", "--all")
        self.assertEqual(self.state(1), ("pending", 0))
        self.drain(*sink)
        self.assertEqual([letter["attempts"] for letter in self.json("dead", "list")], [2])
        self.assert_settled(0)

    def test_exit_65_rejects_the_event_at_once_and_75_retries(self):
        self.number(1, key="1")
        self.number(2, key="2")
        script = "[ $OUTBOX_SEQ != 1 ] || exit 65; [ $OUTBOX_ATTEMPT -ge 3 ] || exit 75; "
        self.drain(*self.exec_sink(script, "--retry", QUICK))
        self.assertEqual(self.state(1), ("expired", 1))
        self.assertEqual([(ev["payload"], ev["attempt"]) for ev in self.ndjson(self.out)], [(2, 3)])

    def test_missing_command_does_not_use_up_attempts(self):
        self.number(1, 2)
        command = self.path("later.sh")
        with self.relay("--consumer", "mail", "--sink", f"exec:{command}", "--retry", "base=1ms,attempts=1,outage=0s") as relay:
            wait_until(lambda: "sink is down" in (self.consumer()["last_error"] or ""), what=relay.output)
            self.write_script(command, f"#!/bin/sh\n{APPEND.format(out=self.out)}\n")
            self.wait_got([1, 2], relay=relay)
            wait_until(lambda: self.consumer()["last_error"] is None)
        self.assertEqual([ev["attempt"] for ev in self.ndjson(self.out)], [1, 1])
        self.assertEqual(self.json("dead", "list"), [])

    def write_script(self, path, text):
        draft = path.with_suffix(".draft")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.rename(path)

    def test_down_sink_gets_events_in_order_without_using_attempts(self):
        folder = self.path("not-yet")
        sink = self.file_sink(out=folder / "out")
        self.number(*range(30))
        with self.relay(*sink, "--retry", "base=1ms,attempts=1,outage=0s") as relay:
            wait_until(lambda: "sink is down" in (self.consumer()["last_error"] or ""), what=relay.output)
            self.assertIn(str(folder), self.consumer()["last_error"])
            self.number(*range(30, 60))
            folder.mkdir()
            self.wait_got([*range(60)], folder / "out", relay)
            wait_until(lambda: self.consumer()["last_error"] is None)
        self.assertEqual({ev["attempt"] for ev in self.ndjson(folder / "out")}, {1})
        self.assert_settled(60)

    def test_consumer_that_always_fails_does_not_delay_others(self):
        """G7: the failing consumer retries for an hour."""
        bad = self.exec_sink("exit 1; ", "--retry", "base=1h,cap=1h,outage=0s", name="bad")
        with self.relay(*bad, *self.file_sink("good")) as relay:
            for n in range(5):
                self.number(n)
                self.wait_got([*range(n + 1)], relay=relay)
            wait_until(lambda: self.state(1, "bad") == ("failed", 1), what=relay.output)
            wait_until(lambda: self.state(5, "good")[0] == "delivered")
        self.assertEqual(self.state(5, "bad"), ("pending", 0))

    def test_consumer_whose_sink_hangs_does_not_delay_others(self):
        self.broken.touch()
        hangs = self.exec_sink(f"while [ -e {self.broken} ]; do sleep 0.02; done; ", name="slow", out=self.path("slow"))
        with self.relay(*hangs, *self.file_sink("good")) as relay:
            self.number(1, 2, 3)
            self.wait_got([1, 2, 3], relay=relay)
            self.assertEqual(self.got(self.path("slow")), [])
            self.broken.unlink()
            self.wait_got([1, 2, 3], self.path("slow"), relay)


@on_each_store
class Choosing(RelayCase):
    def test_relay_filters_by_type_and_by_payload(self):
        for type, who in (("post.added", "user"), ("post.added", "bot"), ("post.gone", "user"), ("mail.sent", "user")):
            self.emit(type, payload={"authorType": who, "author": {"type": who}})
        self.drain(*self.file_sink("types", "--events", "post.*", out=self.path("types")),
                   *self.file_sink("where", "--where", 'authorType = "user"', out=self.path("where")),
                   *self.file_sink("both", "--events", "post.*,x", "--where", 'author.type != "bot"',
                                   out=self.path("both")))
        seqs = {name: [ev["seq"] for ev in self.ndjson(self.path(name))] for name in ("types", "where", "both")}
        self.assertEqual(seqs, {"types": [1, 2, 3], "where": [1, 3, 4], "both": [1, 3]})

    def test_new_consumer_starts_at_its_configured_position(self):
        self.number(1, 2, 3, 4)
        starts = {"all": "beginning", "new": "end", "some": "3"}
        sinks = [arg for name, start in starts.items()
                 for arg in self.file_sink(name, "--from", start, out=self.path(name))]
        self.drain(*sinks)
        self.number(5)
        self.drain(*sinks)
        self.assertEqual({name: self.got(self.path(name)) for name in starts},
                         {"all": [1, 2, 3, 4, 5], "new": [5], "some": [3, 4, 5]})

    def test_existing_consumer_ignores_the_from_setting(self):
        self.number(1, 2)
        self.drain(*self.file_sink())
        self.number(3)
        self.drain(*self.file_sink("mail", "--from", "end"))
        self.drain(*self.file_sink("mail", "--from", "beginning"))
        self.assertEqual(self.got(), [1, 2, 3])

    def test_same_idempotency_key_is_delivered_once(self):
        first = self.emit("a", "k/1", 1, "--idempotency-key", "order-1")
        self.assertEqual(self.emit("a", "k/1", 1, "--idempotency-key", "order-1"), first)
        self.outbox("emit", "a", "--key", "k/1", "--payload", "2", "--idempotency-key", "order-1", status=DATA)
        self.drain(*self.file_sink())
        self.assertEqual([(ev["id"], ev["payload"]) for ev in self.ndjson(self.out)], [(first, 1)])


@on_each_store
class Delay(RelayCase):
    def arrivals(self):
        """arrivals returns {seq: when it arrived last}, in milliseconds."""
        lines = self.path("times").read_text().splitlines()
        return {int(seq): int(at) / 1e6 for seq, at in map(str.split, lines)}

    def not_before(self, seq):
        return self.ask(f"SELECT {self.millis('not_before')} FROM @event WHERE seq = ?", seq)[0][0]

    def stamping(self, script="", *more):
        return self.exec_sink(f"{script}echo $OUTBOX_SEQ $(date +%s%N) >>{self.path('times')}; ", *more)

    def test_delayed_event_is_on_time_and_holds_back_only_its_key(self):
        events = [{"type": "a", "aggregate_type": "k", "aggregate_id": key, "payload": n} for n, key in enumerate("112", 1)]
        events[0]["delay"] = "2s"
        with self.relay(*self.stamping()) as relay:
            self.emit_many(events)
            self.wait_got([3, 1, 2], relay=relay)
        self.assertGreaterEqual(self.arrivals()[1], self.not_before(1))
        self.assert_settled(3)

    def test_drain_does_not_wait_for_a_delayed_event(self):
        self.emit("a", "k/1", 1, "--delay", "1h")
        self.number(2, key="2")
        self.drain(*self.file_sink())
        self.assertEqual(self.got(), [2])
        self.assertEqual(self.state(1), ("pending", 0))

    def test_delayed_event_behind_a_failing_one_keeps_its_time(self):
        self.number(1)
        self.emit("a", "k/1", 2, "--delay", "1500ms")
        fails = "[ $OUTBOX_SEQ != 1 ] || [ $OUTBOX_ATTEMPT -gt 1 ] || exit 1; "
        with self.relay(*self.stamping(fails, "--retry", "base=20ms,jitter=none,outage=0s")) as relay:
            self.wait_got([1, 2], relay=relay)
        self.assertGreaterEqual(self.arrivals()[2], self.not_before(2))

    def test_delayed_event_behind_a_dead_letter_keeps_its_time(self):
        self.number(1)
        self.emit("a", "k/1", 2, "--delay", "1h")
        self.drain(*self.exec_sink("[ $OUTBOX_SEQ != 1 ] || exit 65; "))
        self.assertEqual(self.got(), [])
        self.assertEqual(self.state(2), ("pending", 0))


@on_each_store
class Operating(RelayCase):
    def test_pause_and_resume_reach_a_running_relay_at_once(self):
        with self.relay(*self.file_sink(), "--sweep", "10m") as relay:
            self.number(1)
            self.wait_got([1], relay=relay)
            self.outbox("consumers", "pause", "mail")
            self.assertEqual(self.consumer()["state"], "paused")
            self.number(2)
            self.number(3)
            self.drain(*self.file_sink("other", out=self.path("other")))  # another session works meanwhile
            self.assertEqual(self.got(), [1])
            self.outbox("consumers", "resume", "mail")
            wait_until(lambda: self.got() == [1, 2, 3], timeout=AT_ONCE, what=relay.output)

    def test_sleeping_relay_wakes_at_a_commit_without_sweeps(self):
        with self.relay(*self.file_sink(), "--sweep", "10m") as relay:
            for n in range(3):
                wait_until(lambda: self.consumer()["behind"] == 0)
                self.number(n)
                wait_until(lambda: self.got() == [*range(n + 1)], timeout=AT_ONCE, what=relay.output)

    def test_plain_insert_wakes_a_sleeping_relay(self):
        with self.relay(*self.file_sink(), "--sweep", "10m") as relay:
            wait_until(lambda: self.consumer()["behind"] == 0)
            self.ask("INSERT INTO @event (type, aggregate_type, aggregate_id, payload) VALUES ('a', 'k', '1', '7')")
            wait_until(lambda: self.got() == [7], timeout=AT_ONCE, what=relay.output)

    def test_only_the_consumer_removed_from_a_running_relay_stops(self):
        relay = self.relay(*self.file_sink("gone", out=self.path("gone")), *self.file_sink("stays"))
        self.number(1)
        self.wait_got([1], self.path("gone"), relay)
        wait_until(lambda: not self.ask("SELECT 1 FROM @claim"))
        self.outbox("consumers", "remove", "gone", "--yes")
        self.number(2)
        wait_until(lambda: "consumer=gone stopping: " in relay.output(), what=relay.output)
        self.assertIn('consumer "gone" is not registered', relay.output())
        self.wait_got([1, 2], relay=relay)
        self.assertEqual(self.got(self.path("gone")), [1])
        self.assertNotEqual(relay.stop(expect=None), 0, "one of its consumers could not continue")

    def test_lanes_change_only_once_the_consumer_has_caught_up(self):
        self.broken.touch()
        self.number(1, 2)
        fails = self.failing("true", "--retry", "base=1h,cap=1h,outage=0s")
        with self.relay(*fails): wait_until(lambda: self.state(1) == ("failed", 1))
        done = self.outbox("relay", *self.file_sink("mail", "--lanes", 4), "--drain", status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("lanes can change only when it has none", done.stderr)
        self.assertEqual(self.consumer()["lanes"], 1)
        self.broken.unlink()
        self.make_due()
        self.drain(*fails)
        self.drain(*self.file_sink("mail", "--lanes", 4))
        self.number(3)
        self.drain(*self.file_sink("mail", "--lanes", 4))
        self.assertEqual(self.got(), [1, 2, 3])

    def test_events_list_shows_each_state_of_an_event(self):
        """C2.2."""
        hold = self.path("hold")
        hold.touch()
        self.broken.touch()
        script = f"while [ -e {hold} ]; do sleep 0.02; done; [ ! -e {self.broken} ] || exit 1; "
        sink = self.exec_sink(script, "--retry", "base=1h,cap=1h,attempts=2,outage=0s", "--sweep", "50ms")

        def listed(state):
            return [ev["seq"] for ev in self.json("events", "list", "--state", state)]
        with self.relay(*sink) as relay:
            self.outbox("consumers", "pause", "mail")
            self.number(1)
            self.assertEqual((self.state(1), listed("pending")), (("pending", 0), [1]))
            self.outbox("consumers", "resume", "mail")
            wait_until(lambda: self.state(1)[0] == "in-flight", what=relay.output)
            self.assertEqual(listed("in-flight"), [1])
            hold.unlink()
            wait_until(lambda: self.state(1) == ("failed", 1), what=relay.output)
            self.assertEqual(listed("failed"), [1])
            self.make_due()
            wait_until(lambda: self.state(1) == ("expired", 2), what=relay.output)
            self.assertEqual(listed("expired"), [1])
            self.broken.unlink()
            self.outbox("dead", "retry", "--all")
            wait_until(lambda: self.state(1)[0] == "delivered", what=relay.output)
            self.assertEqual(listed("delivered"), [1])
            self.assertEqual(listed("pending") + listed("failed") + listed("expired") + listed("in-flight"), [])


class OfSqlite(RelayCase, Case):
    def test_locked_database_loses_and_repeats_nothing(self):
        with self.relay(*self.file_sink(), "--sweep", "50ms", "--busy-timeout", "200ms") as relay:
            self.number(*range(50))
            self.wait_got([*range(50)], relay=relay)
            db = sqlite3.connect(self.db, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES "
                       "('a', 'k', '1', '50')")
            wait_until(lambda: "trying again" in relay.output(), what=relay.output)
            db.execute("COMMIT")
            db.close()
            self.number(*range(51, 100))
            self.wait_got([*range(100)], relay=relay)
            wait_until(lambda: "store is back" in relay.output(), what=relay.output)
        self.assert_settled(100)


@on_each_store
class Early:
    def test_relay_started_before_init_names_the_init_command(self):
        done = self.outbox("relay", "--consumer", "mail", "--sink", "stdout:", status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("outbox init", done.stderr)
        self.assertFalse(self.db.exists())


@on_each_store
class Retention(RelayCase):
    def seqs(self):
        return [seq for seq, in self.ask("SELECT seq FROM @event ORDER BY seq")]

    def age(self, seq):
        """age makes the events up to seq two hours older and dates every consumer's position two hours back."""
        self.assertEqual(self.json("trim", "--older-than", "1h", "--yes")["events"], 0)
        older = lambda column: self.time_of(f"({self.millis(column)} - 7200000)")
        self.ask(f"UPDATE @event SET created_at = {older('created_at')} WHERE seq <= ?", seq)
        self.ask(f"UPDATE @passed SET at = {older('at')}")

    def test_relay_trims_old_events_received_by_every_consumer(self):
        self.number(*range(10))
        self.drain(*self.file_sink())
        self.age(7)
        with self.relay(*self.file_sink(), "--retention", "1h") as relay:
            wait_until(lambda: self.seqs() == [8, 9, 10], what=relay.output)

    def test_trim_names_the_paused_consumer_that_holds_events(self):
        self.number(*range(4))
        late = self.file_sink("late", out=self.path("late"))
        self.drain(*self.file_sink(), *late)
        self.outbox("consumers", "pause", "late")
        self.number(*range(4, 8))
        self.drain(*self.file_sink())
        self.age(8)
        said = self.json("trim", "--older-than", "1h", "--dry-run")
        self.assertEqual((said["events"], said["kept_for_pin"]), (4, 4))
        self.assertIn('"late"', said["pin"])
        with self.relay(*self.file_sink(), "--retention", "1h") as relay:
            wait_until(lambda: self.seqs() == [5, 6, 7, 8], what=relay.output)
            wait_until(lambda: 'kept because of consumer "late"' in relay.output(), what=relay.output)
        self.outbox("consumers", "resume", "late")
        self.drain(*late)
        self.assertEqual(self.got(self.path("late")), [*range(8)])
        self.age(8)
        self.assertEqual(self.json("trim", "--older-than", "1h", "--yes")["events"], 4)
        self.assertEqual(self.seqs(), [])

    def test_dead_letter_outlives_its_event_and_can_be_retried(self):
        self.broken.touch()
        self.number(1, 2)
        sink = self.failing("[ $OUTBOX_SEQ = 1 ]", "--retry", "base=1ms,attempts=1,outage=0s")
        self.drain(*sink)
        self.age(2)
        self.assertEqual(self.json("trim", "--older-than", "1h", "--yes")["events"], 2)
        self.broken.unlink()
        self.outbox("dead", "retry", "--all")
        self.drain(*sink)
        self.assertEqual(self.got(), [2, 1])
        self.assertEqual(self.json("dead", "list"), [])

    def test_event_awaiting_retry_is_not_trimmed(self):
        self.broken.touch()
        self.number(1, 2, 3)
        with self.relay(*self.failing("[ $OUTBOX_SEQ = 2 ]", "--order", "none", "--retry", "base=1h,cap=1h,outage=0s")):
            wait_until(lambda: sorted(self.got()) == [1, 3] and self.state(2)[0] == "failed")
        self.age(3)
        self.assertEqual(self.json("trim", "--older-than", "1h", "--yes")["events"], 1)
        self.assertEqual(self.seqs(), [2, 3])


@on_each_store
class Stopping(RelayCase):
    def slow(self, started, *more):
        """slow is a sink that records its start and runs as long as the file `broken` exists."""
        return self.exec_sink(f"echo >>{started}; while [ -e {self.broken} ]; do sleep 0.02; done; ", *more)

    def begun(self, started):
        return len(started.read_text()) if started.exists() else 0

    def test_sigterm_lets_a_slow_delivery_finish_without_repeats(self):
        self.broken.touch()
        started = self.path("started")
        self.number(*range(6))
        relay = self.relay(*self.slow(started))
        wait_until(lambda: self.begun(started) == 1, what=relay.output)
        relay.signal(signal.SIGTERM)
        with self.assertRaises(subprocess.TimeoutExpired): relay.popen.wait(0.3)
        self.broken.unlink()
        relay.wait()
        self.assertEqual(self.got(), [0])
        self.assertEqual(self.ask("SELECT * FROM @claim"), [])
        self.drain(*self.slow(started))
        self.assertEqual(self.got(), [*range(6)])
        self.assert_settled(6)

    def test_sigterm_abandons_a_hanging_delivery_at_the_deadline(self):
        self.broken.touch()
        started = self.path("started")
        self.number(*range(6))
        relay = self.relay(*self.slow(started, "--retry", "base=1ms,attempts=1,outage=0s"), "--drain-deadline", "500ms")
        wait_until(lambda: self.begun(started) == 1, what=relay.output)
        since = time.monotonic()
        relay.stop(timeout=20)
        self.assertGreaterEqual(time.monotonic() - since, 0.5)
        self.assertEqual(self.got(), [])
        self.broken.unlink()
        self.drain(*self.slow(started))
        self.assertEqual([(ev["payload"], ev["attempt"]) for ev in self.ndjson(self.out)], [(n, 1) for n in range(6)])
        self.assert_settled(6)

    def test_sigterm_with_claims_in_flight_loses_nothing(self):
        self.broken.touch()
        started = self.path("started")
        self.emit_many([{"type": "a", "aggregate_type": "k", "aggregate_id": str(n % 3), "payload": n}
                        for n in range(60)])
        sink = self.slow(started, "--batch", 5)
        relay = self.relay(*sink)
        wait_until(lambda: self.begun(started) == 3, what=relay.output)
        wait_until(lambda: self.ask("SELECT count(*) FROM @claim") >= [(2,)])
        relay.signal(signal.SIGTERM)
        self.broken.unlink()
        relay.wait()
        self.assertEqual(self.ask("SELECT * FROM @claim"), [])
        self.drain(*sink)
        self.assertEqual(sorted(self.got()), [*range(60)])
        for key in range(3):
            mine = [n for n in self.got() if n % 3 == key]
            self.assertEqual(mine, sorted(mine))
        self.assert_settled(60)

    def test_idle_relay_stops_at_once(self):
        relay = self.relay(*self.file_sink())
        since = time.monotonic()
        relay.stop()
        self.assertLess(time.monotonic() - since, 5)
        self.assertIn("stopped by SIGTERM", relay.output())

    def test_drain_ends_once_every_consumer_has_caught_up(self):
        self.number(*range(500))
        self.drain(*self.file_sink("a", out=self.path("a")), *self.file_sink("b", out=self.path("b")))
        self.assertEqual(self.got(self.path("a")), [*range(500)])
        self.assertEqual(self.got(self.path("b")), [*range(500)])
