"""What is shown is true: a seeded mess on each store, and every state and number of it against a count of our own.

The model below knows nothing of positions, claims or tables: only what was emitted, who was told to deliver what, and what was
done to it since."""
import random
import unittest

from support import Case, PgCase, wait_until

YEAR = 365 * 86400


class Event:
    def __init__(self, n, rng):
        self.n = n
        self.type = rng.choice(["a.x", "a.y", "b.x", "c.x"])
        self.key = rng.choice([None, "k1", "k2", "k3", "k4", "k5"])
        self.v = rng.choice([1, 2])
        self.delayed = rng.random() < 0.08

    def line(self):
        key = {"aggregate_type": "t", "aggregate_id": self.key} if self.key else {}
        delay = {"delay": "24h"} if self.delayed else {}
        return {"type": self.type, "payload": {"n": self.n, "v": self.v}, **key, **delay}


class Consumer:
    """What a consumer has done, by number of event."""

    def __init__(self, wants, rejects=lambda e: False):
        self.wants, self.rejects = wants, rejects
        self.state, self.waiting_keys, self.parked = {}, set(), set()

    def deliver(self, events):
        """deliver hands out, in order, what was not handed out yet; an event that waits for its time holds its key."""
        for e in events:
            if e.n in self.state: continue
            if not self.wants(e):
                self.state[e.n] = "skipped"
            elif e.delayed or (e.key and e.key in self.waiting_keys):
                self.state[e.n] = "pending"
                self.parked.add(e.n)
                if e.key: self.waiting_keys.add(e.key)
            else:
                self.state[e.n] = "expired" if self.rejects(e) else "delivered"

    def of(self, e):
        if e.n in self.state: return self.state[e.n]
        return "pending" if self.wants(e) else "skipped"

    def count(self, events, *states):
        return sum(self.of(e) in states for e in events)


class Shown:
    """A mess is made, then looked at in every way there is."""

    def setUp(self):
        super().setUp()
        self.init()
        self.events = []

    def emit_some(self, rng, n):
        some = [Event(len(self.events) + i + 1, rng) for i in range(n)]
        self.emit_many([e.line() for e in some])
        self.events += some

    def run_all(self):
        self.drain("--consumer", "all", "--lanes", "4", "--sink", 'exec:case "$OUTBOX_TYPE" in c.*) exit 65;; esac')
        self.model["all"].deliver(self.events)

    def run_file(self, name, *more):
        self.drain("--consumer", name, "--sink", f"file:{self.path(name)}", *more)
        self.model[name].deliver(self.events)

    def read(self):
        """read gives {(consumer, number): state} of `events list`, and notes which seq is which number."""
        rows = self.json("events", "list", "--limit", "10000")
        self.numbers = {row["seq"]: row["payload"]["n"] for row in rows}
        return {(d["consumer"], row["payload"]["n"]): d["state"] for row in rows for d in row["deliveries"]}

    def mess(self, seed):
        rng = random.Random(seed)
        self.model = {"all": Consumer(lambda e: True, lambda e: e.type == "c.x"),
                      "some": Consumer(lambda e: e.type[0] == "a" and e.v == 1)}
        self.emit_some(rng, rng.randint(8, 15))
        self.run_all()
        self.run_file("some", "--events", "a.*", "--where", "v = 1")
        for name, start in ("late", "end"), ("from", str(self.seq_of(5))):
            self.model[name] = Consumer(lambda e: e.type != "b.x")
            for e in self.events:
                if (name == "late" or e.n < 5) and self.model[name].wants(e): self.model[name].state[e.n] = "before-start"
            self.run_file(name, "--events", "a.*, c.*", "--from", start)
        self.emit_some(rng, rng.randint(8, 15))
        self.gap()
        self.run_all()
        self.run_file("late", "--events", "a.*, c.*")
        # The rest of what its old filter leaves is never looked at: the new one comes first.
        self.model["some"].wants = lambda e: e.type[0] == "b"
        self.run_file("some", "--events", "b.*")
        self.emit_some(rng, rng.randint(4, 9))
        self.outbox("consumers", "pause", "from")
        self.drop(rng)
        self.vanish("gone", "1s")
        self.model["gone"] = Consumer(lambda e: True)
        self.vanish("held", "1h")
        self.model["held"] = Consumer(lambda e: True)
        self.model["held"].state = {e.n: "in-flight" for e in self.events}
        wait_until(lambda: self.consumer("gone")["claims"] == 0, what=lambda: self.consumer("gone"))

    def drop(self, rng):
        """drop: some dead letters are dropped, one is sent back."""
        dead = [e for e in self.events if self.model["all"].of(e) == "expired"]
        rng.shuffle(dead)
        self.read()
        for i, e in enumerate(dead[:3]):
            done, what = ("retry", "pending") if i == 0 else ("drop", "dropped")
            more = ["--yes"] if done == "drop" else []
            self.outbox("dead", done, str(self.seq_of(e.n)), "--consumer", "all", *more)
            self.model["all"].state[e.n] = what
            if i == 0: self.model["all"].parked.add(e.n)

    def vanish(self, name, lease):
        """vanish: a relay dies with everything in its hands."""
        relay = self.relay("--consumer", name, "--sink", "exec:sleep 3600", "--lease", lease, "--concurrency", "100")
        wait_until(lambda: self.consumer(name)["in_flight"] == len(self.events), what=lambda: self.consumer(name))
        relay.kill()

    def consumer(self, name):
        return next((c for c in self.json("status")["consumers"] if c["name"] == name), {"in_flight": 0, "claims": -1})

    def seq_of(self, n):
        self.read()
        return next(seq for seq, number in self.numbers.items() if number == n)

    def check(self):
        self.check_states()
        self.check_view()
        self.check_status()
        self.check_doctor()

    def check_states(self):
        shown = self.read()
        for name, c in self.model.items():
            self.assertEqual({e.n: shown[name, e.n] for e in self.events}, {e.n: c.of(e) for e in self.events}, name)
        for state in "pending", "in-flight", "delivered", "expired", "skipped", "dropped", "before-start":
            rows = self.json("events", "list", "--state", state, "--limit", "10000")
            self.assertEqual({row["payload"]["n"] for row in rows},
                             {e.n for e in self.events if any(c.of(e) == state for c in self.model.values())}, state)

    def check_view(self):
        rows = self.sql(f"SELECT consumer, seq, state FROM {self.VIEW}")
        seen = {(consumer, self.numbers[seq]): state for consumer, seq, state in rows}
        for name, c in self.model.items():
            for e in self.events:
                state = seen.get((name, e.n), "skipped")
                unsure = name == "some" or (name == "all" and self.LANES_UNKNOWN)
                if state == "unknown": self.assertTrue(unsure, (name, e.n))
                else: self.assertEqual(state, c.of(e), (name, e.n))

    def check_status(self):
        status = self.json("status")
        self.assertEqual((status["store"]["events"], status["store"]["events_exact"]), (len(self.events), True))
        for shown in status["consumers"]:
            c = self.model[shown["name"]]
            want = {
                "behind": sum(c.of(e) == "pending" and e.n not in c.parked for e in self.events),
                "in_flight": c.count(self.events, "in-flight"),
                "parked": len(c.parked),
                "dead": c.count(self.events, "expired"),
                "delivered": c.count(self.events, "delivered"),
                "behind_exact": True,
            }
            self.assertEqual({k: shown[k] for k in want}, want, shown["name"])
            self.assertEqual(self.json("consumers", "show", shown["name"])["behind"], want["behind"])
        states = {c["name"]: c["state"] for c in status["consumers"]}
        self.assertEqual((states["from"], states["held"], states["gone"]), ("paused", "in-flight", "behind"))

    def check_doctor(self):
        said = self.outbox("doctor", status=None).stdout
        c = self.model["from"]
        n = sum(c.of(e) == "pending" for e in self.events)
        self.assertIn(f'consumer "from" is paused; {n} ' + ("event waits" if n == 1 else "events wait"), said)
        n = self.model["all"].count(self.events, "expired")
        if n: self.assertIn(f'consumer "all" has {n} dead letter{"" if n == 1 else "s"}', said)

    def test_every_state_and_number_of_a_mess_is_what_was_done(self):
        self.mess(1)
        self.check()

    def test_and_of_another(self):
        self.mess(2)
        self.check()

    def test_and_of_a_third(self):
        self.mess(3)
        self.check()

    def test_an_event_from_the_future_holds_up_nobody_and_trim_says_what_it_did(self):
        self.model = {"all": Consumer(lambda e: True)}
        for n in range(6): self.emit("a.x", None, n, "--idempotency-key", str(n))
        self.drain("--consumer", "all", "--sink", f"file:{self.path('all')}", "--receipts")
        self.from_the_future(2)
        would = self.json("trim", "--older-than", "0s", "--dry-run")
        did = self.json("trim", "--older-than", "0s", "--yes")
        for said in would, did:
            self.assertEqual({k: said[k] for k in ("events", "keys", "inbox_rows", "receipts", "kept_for_pin", "pin")},
                             {"events": 6, "keys": 6, "inbox_rows": 0, "receipts": 6, "kept_for_pin": 0, "pin": None})
        self.assertEqual(self.json("status")["store"]["events"], 0)

    def test_a_sink_that_is_down_shows_as_down_and_since_when(self):
        self.emit("a.x")
        with self.relay("--consumer", "mail", "--sink", f"file:{self.path('no')}/such/folder/out"):
            wait_until(lambda: self.consumer("mail").get("state") == "down", what=lambda: self.consumer("mail"))
            shown = self.consumer("mail")
            self.assertTrue(shown["down_since"])
            self.assertIn("sink is down", shown["last_error"])
            self.assertIn('consumer "mail" is down since', self.outbox("doctor", status=1).stdout)


class Sqlite(Shown, Case):
    VIEW, LANES_UNKNOWN = "outbox_delivery", True

    def gap(self):
        """gap: SQLite gives a number again that was rolled back."""

    def from_the_future(self, seq):
        self.sql("UPDATE outbox_event SET created_at = created_at + ? WHERE seq = ?", 10 * YEAR * 1000, seq)


class Postgres(Shown, PgCase):
    VIEW, LANES_UNKNOWN = "outbox.delivery", False

    def gap(self):
        self.sql("SELECT nextval('outbox.event_seq_seq') FROM generate_series(1, 7)")

    def from_the_future(self, seq):
        self.sql("UPDATE outbox.event SET created_at = created_at + interval '20 hours' WHERE seq = %s", seq)


if __name__ == "__main__":
    unittest.main()
