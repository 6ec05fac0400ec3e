"""The checker of this folder reports each kind of violation, once for each, and nothing else."""
# build: plain
import unittest

from checker import COMMITTED, ROLLED_BACK, UNKNOWN, Checker, Fact

TOLD = {1: COMMITTED, 2: COMMITTED, 3: COMMITTED, 4: ROLLED_BACK, 5: UNKNOWN, 6: UNKNOWN, 7: COMMITTED}
FACTS = {n: Fact(n % 2, n, f"body {n}") for n in (1, 2, 3, 5, 7)}  # 5 was committed, as it turns out, 6 was not
KEYLESS = Fact(None, 0, "body 8")


class Complaints(unittest.TestCase):
    def look(self, order=(1, 2, 3, 5, 7), dead=(), bound=0, told=None, stored=None, got=None, left=()):
        c = Checker({**TOLD, **(told or {})}, stored or list(FACTS.items()))
        c.consumer("mail", got or [(n, f"body {n}") for n in order], dead, bound)
        c.left("claims", left)
        return c

    def seen(self, kind, **what):
        """seen demands a complaint of this kind alone."""
        c = self.look(**what)
        with self.assertRaises(AssertionError): c.verdict()
        self.assertEqual(len(c.complaints), 1, c.complaints)
        if kind: self.assertEqual(c.counts[kind], 1, c.counts)
        return c.complaints[0]

    def test_correct_history_reports_nothing(self):
        for what in ({}, {"order": (2, 1, 3, 5, 7)}, {"order": (1, 2, 1, 3, 5, 7), "bound": 1},
                     {"order": (1, 2, 5, 7), "dead": (3,)}, {"order": (1, 2, 3, 5, 7), "dead": (3,)}):
            c = self.look(**what)
            c.verdict()
            self.assertEqual(c.complaints, [])

    def test_undelivered_event_is_detected(self):
        self.assertIn("mail: lost (1): 3", self.seen("lost", order=(1, 2, 5, 7)))

    def test_lost_unconfirmed_event_is_detected(self):
        self.assertIn("mail: lost (1): 5", self.seen("lost", order=(1, 2, 3, 7)))

    def test_lost_committed_event_is_detected(self):
        without = [(n, fact) for n, fact in FACTS.items() if n != 3]
        self.assertIn("committed, and not stored (1): 3", self.seen("lost", order=(1, 2, 5, 7), stored=without))

    def test_event_never_emitted_is_detected(self):
        more = [*FACTS.items(), (9, Fact(1, 9, "body 9"))]
        self.assertIn("nobody emitted it (1): 9", self.seen("phantoms", order=(1, 2, 3, 5, 7, 9), stored=more))

    def test_rolled_back_event_is_detected(self):
        more = [*FACTS.items(), (4, Fact(1, 4, "body 4"))]
        self.assertIn("though rolled back (1): 4", self.seen("phantoms", order=(1, 2, 3, 4, 5, 7), stored=more))

    def test_unknown_event_is_detected(self):
        self.assertIn("got what is not stored (1): 6", self.seen("phantoms", order=(1, 2, 3, 5, 6, 7)))
        self.assertIn("buried what is not stored (1): 6", self.seen("phantoms", dead=(6,)))

    def test_event_stored_twice_is_detected(self):
        self.assertIn("stored twice (1): 1", self.seen("phantoms", stored=[*FACTS.items(), (1, Fact(1, 9, "body 1"))]))

    def test_changed_event_is_detected_even_when_repeated(self):
        got = [(n, f"body {n}") for n in FACTS]
        self.assertIn("changed (1)", self.seen("changed", got=[*got[:-1], (7, "body")]))
        self.assertIn("changed (1)", self.seen("changed", got=[*got, (1, "body")], bound=1))

    def test_reordering_is_judged_by_first_deliveries_per_key(self):
        self.assertIn("out of order (1)", self.seen("misordered", order=(1, 2, 5, 3, 7)))
        self.look(order=(1, 2, 3, 1, 5, 3, 7), bound=2).verdict()
        keyless = {8: COMMITTED, 9: COMMITTED}
        stored = [*FACTS.items(), (8, KEYLESS), (9, Fact(None, 9, "body 9"))]
        self.look(order=(9, 1, 2, 3, 8, 5, 7), told=keyless, stored=stored).verdict()

    def test_too_many_repeats_are_detected(self):
        self.assertIn("2 repeats, more than 1", self.seen(None, order=(1, 2, 1, 3, 2, 5, 7), bound=1))

    def test_leftover_work_is_detected(self):
        self.assertIn("left in claims (1)", self.seen("left", left=[("mail", 7)]))

    def test_all_violations_are_reported_together_with_a_total(self):
        c = self.look(order=(1, 5, 3, 6), left=["x"])
        c.consumer("other", [(n, "?") for n in (1, 2, 3, 5, 7)])
        self.assertEqual(c.counts | {"bound": 0}, {"lost": 2, "phantoms": 1, "changed": 5, "misordered": 1, "duplicates": 0,
                                                   "bound": 0, "dead": 0, "left": 1})
        with self.assertRaisesRegex(AssertionError, "(?s)mail: lost.*not stored.*out of order.*left in.*other: changed"):
            c.verdict()
