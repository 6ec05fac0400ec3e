"""Listings where many events are kept: they search up to their limit, and report the end of the search."""
# quick: no
# sanitizers: soak
import signal
import unittest

from support import MariaCase, on_each_store, wait_until

RETRY = "base=1h,cap=1h,attempts=5,jitter=none,outage=0s"
OPTIONS = ("--order", "none", "--lease", "1h", "--timeout", "1h", "--retry", RETRY, "--batch", "1")


@on_each_store
class Listings:
    def setUp(self):
        super().setUp()
        self.init()

    def emit_types(self, *types):
        self.emit_many([{"type": type} for type in types])

    def listed(self, *args):
        """listed returns the numbers of the events that are listed, and how far was looked; None: at everything."""
        rows = self.json("events", "list", *args)
        told = rows.pop() if rows and "partial" in rows[-1] else None
        return [row["seq"] for row in rows], told and (told["partial"], told["looked_from"], told["looked_to"], told["after"])

    def listed_in_steps(self, *args):
        """listed_in_steps continues until everything was searched."""
        seqs, steps, after = [], 0, []
        while True:
            some, told = self.listed(*args, *after)
            seqs, steps = seqs + some, steps + 1
            if not told: return seqs, steps
            after = ["--after", told[3]]

    def test_empty_lookup_ends_and_reports_where_to_continue(self):
        self.emit_types(*["a"] * 24, "rare", *["a"] * 15)  # rare is the 25th of 40
        rare = ("--type", "rare", "--look", "10")
        self.assertEqual(self.listed(*rare), ([], (True, 1, 10, 10)))
        self.assertEqual(self.listed(*rare, "--after", "10"), ([], (True, 11, 20, 20)))
        self.assertEqual(self.listed(*rare, "--after", "20"), ([25], (True, 21, 31, 31)))
        self.assertEqual(self.listed(*rare, "--after", "31"), ([], None))
        self.assertEqual(self.listed(*rare, "--newest"), ([], (True, 31, 40, 31)))
        self.assertEqual(self.listed(*rare, "--newest", "--after", "31"), ([25], (True, 20, 30, 20)))
        self.assertEqual(self.listed(*rare, "--all"), ([25], None))
        self.assertEqual(self.listed("--type", "rare"), ([25], None), "a search of 40 events is not limited")

        said = self.outbox("events", "list", *rare)
        self.assertEqual(said.stdout, "")
        self.assertIn("searched only sequence numbers 1 to 10, not all events: use --after 10 to continue", said.stderr)
        self.assertNotIn("no events match", said.stderr)
        self.assertIn("searched only", self.outbox("events", "list", *rare, "--json").stderr)
        self.assertIn("no events match", self.outbox("events", "list", "--type", "none", "--all").stderr)

    def test_lookup_by_key_works_like_lookup_by_type(self):
        self.emit_many([{"type": "a", "aggregate_type": "o", "aggregate_id": str(n)} for n in range(1, 31)])
        self.assertEqual(self.listed("--key", "o/3", "--look", "10"), ([3], (True, 1, 11, 11)))
        self.assertEqual(self.listed("--key", "o/3", "--look", "10", "--newest"), ([], (True, 21, 30, 21)))
        self.assertEqual(self.listed_in_steps("--key", "o/3", "--look", "10", "--newest"), ([3], 3))

    def test_matches_are_listed_up_to_the_limit_despite_short_scans(self):
        self.emit_types(*["a"] * 20)
        self.assertEqual(self.listed("--type", "a", "--look", "1"), (list(range(1, 21)), None))
        limited = self.outbox("events", "list", "--type", "a", "--look", "1", "--limit", "5")
        self.assertIn("more events match: use --after 5", limited.stderr)
        self.assertNotIn("searched only", limited.stderr)
        self.assertEqual(self.listed("--look", "1", "--limit", "3", "--newest"), ([20, 19, 18], None))

    def test_states_of_individual_events_do_not_need_a_scan(self):
        hold = self.path("hold")
        hold.touch()
        sink = f'case "$OUTBOX_TYPE" in bad|gone) exit 65;; later) exit 1;; slow) while [ -e {hold} ]; do sleep 0.02; done;; esac'
        self.emit_types(*["good"] * 15, "bad", "gone", "later", *["good"] * 15)  # 16, 17, 18 of 33
        with self.relay("--consumer", "mail", "--sink", "exec:" + sink, *OPTIONS) as relay:
            wait_until(lambda: self.json("status")["consumers"][0]["delivered"] == 30, what=relay.output)
            self.outbox("dead", "drop", "17", "--yes")
            self.emit_types("slow")
            wait_until(lambda: self.json("status")["consumers"][0]["in_flight"] == 1, what=relay.output)
            relay.freeze(self.db if self.store.startswith("sqlite") else None)
            self.emit_types("new")
            for order in ((), ("--newest",)):
                for state, seq in ("expired", 16), ("dropped", 17), ("failed", 18), ("in-flight", 34):
                    self.assertEqual(self.listed("--state", state, "--look", "1", *order), ([seq], None), state)
                    self.assertEqual(self.listed("--state", state, "--look", "1", "--type", "none", *order), ([], None), state)
                self.assertEqual(self.listed("--state", "pending", "--look", "1", *order), ([35], None), "every event up to its position was claimed")
                self.assertEqual(self.listed("--state", "before-start", "--look", "1", *order), ([], None), "the consumer started at the first event")
                self.assertEqual(self.listed("--state", "skipped", "--look", "10", *order)[0], [])
                self.assertIsNotNone(self.listed("--state", "skipped", "--look", "10", *order)[1])
            self.assertEqual(self.listed("--state", "delivered", "--look", "1", "--limit", "14"), (list(range(1, 15)), None))
            relay.signal(signal.SIGCONT)
            hold.unlink()

    def truth(self, *consumer):
        """truth returns each event's states, from a complete listing; unprocessed is pending here."""
        rows = self.json("events", "list", "--limit", "1000", *consumer)
        states = {row["seq"]: {d["state"] for d in row["deliveries"]} for row in rows}
        return lambda state: [seq for seq in states if {"unprocessed": "pending"}.get(state, state) in states[seq]]

    def test_lookup_in_steps_of_any_size_finds_every_match(self):
        """Two consumers, one behind the other, with events that failed and that wait between their positions."""
        self.emit_types(*["a", "b"] * 6)
        self.drain("--consumer", "b", "--events", "b", "--from", "4", "--sink", "stdout:")
        keyed = {15: "1", 17: "1"}  # 17 waits behind 15, which fails
        self.emit_many([{"type": "b" if n % 2 == 0 else "a", **({"aggregate_type": "k", "aggregate_id": keyed[n]} if n in keyed else {})}
                        for n in range(13, 21)])
        with self.relay("--consumer", "all", "--sink", 'exec:[ "$OUTBOX_SEQ" != 15 ]', "--retry", RETRY) as relay:
            wait_until(lambda: self.json("consumers", "show", "all")["delivered"] == 18, what=relay.output)
        self.emit_types(*["a", "b", "c"] * 3)
        self.assertEqual(self.truth("--consumer", "all")("pending"), [17, *range(21, 30)])
        for consumer in ((), ("--consumer", "all"), ("--consumer", "b")):
            truth = self.truth(*consumer)
            for state in "pending", "failed", "delivered", "skipped", "before-start", "unprocessed":
                self.assertEqual(self.listed("--state", state, *consumer), (truth(state), None), (state, *consumer))
                self.assertEqual(self.listed_in_steps("--state", state, "--look", "9", *consumer)[0], truth(state), (state, *consumer))
                self.assertEqual(self.listed_in_steps("--state", state, "--look", "7", "--newest", *consumer)[0], truth(state)[::-1],
                                 (state, *consumer))

    def test_event_is_found_by_id_at_any_position(self):
        self.emit_types(*["a"] * 50)
        strange = "00000000-0000-7000-8000-000000000001"  # not one of our ids: it does not contain a time
        self.ask("INSERT INTO @event (id, type, payload) VALUES (?, 'strange', '{}')", strange)
        self.emit_types(*["a"] * 50)
        rows = self.json("events", "list", "--limit", "1000")
        for row in (rows[0], rows[37], rows[50], rows[99], rows[100]):
            self.assertEqual(self.json("events", "show", row["id"])["seq"], row["seq"])
        self.assertEqual(rows[50]["id"], strange)
        self.outbox("events", "show", "00000000-0000-7000-8000-000000000002", status=65)

    def test_dry_run_counts_100000_then_estimates(self):
        self.emit_types("a")
        self.drain("--consumer", "mail", "--sink", "file:/dev/null", "--retention", "0s")
        self.fill(100_100)
        self.drain("--consumer", "mail", "--sink", "file:/dev/null", "--retention", "0s")
        text = self.outbox("trim", "--dry-run", "--older-than", "0s").stdout
        self.assertIn("would delete about 100101 events older than 0s", text)
        would = self.json("trim", "--dry-run", "--older-than", "0s")
        self.assertEqual((would["events"], would["events_exact"], would["keys_exact"]), (100101, False, True))
        asked = self.outbox("trim", "--older-than", "0s", input="", status=None).stderr
        self.assertIn("delete about 100101 events", asked)

    def fill(self, n):
        if isinstance(self, MariaCase): return self.sql(f"INSERT INTO outbox_event (type) SELECT 'a' FROM seq_1_to_{n}")
        self.ask(f"INSERT INTO @event (type) WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < {n}) "
                 "SELECT 'a' FROM i")


if __name__ == "__main__":
    unittest.main()
