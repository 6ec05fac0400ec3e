"""The model of random histories detects bugs: each of these is planted into the functions of an outbox, or between an outbox
and its workers, and must be reported as the right violation."""
# build: plain
# quick: no
import re

import psycopg2

from histories import World

STEPS, SEEDS = 150, range(1, 9)  # if a short history does not trigger the bug, others are tried


class Planted(World):
    def plant(self, writers, readers):
        self.bug(writers, readers)

    def begin(self, schema):
        """begin uses the outbox that each case has, which is faster; for another history a new one."""
        if getattr(self, "schema", None): return super().begin(schema)
        self.start_model("outbox")

    def rewrite(self, function, old, new):
        """rewrite replaces something in the functions of a name."""
        found = self.boss.do("SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
                             " WHERE n.nspname = %s AND p.proname = %s", self.schema, function)
        changed = [text.replace(old, new) for text, in found if old in text]
        self.assertTrue(changed, f"{function} does not contain {old}")
        for text in changed: self.boss.do(text)

    def seen(self, bug, complaint):
        """seen demands that a bug is reported so, by one of a few histories."""
        self.bug, said = bug, []
        for seed in SEEDS:
            try:
                self.play(seed, STEPS, trouble=True)
            except AssertionError as e:
                if re.search(complaint, str(e)): return
                said.append(str(e)[:500])
            except psycopg2.DatabaseError as e:  # the bug led to a call that the outbox refuses, and the history ends there
                said.append(str(e)[:500])
        self.fail(f"not detected: {said}")

    def rewritten(self, function, old, new, complaint):
        self.seen(lambda *_: self.rewrite(function, old, new), complaint)

    def test_nothing_is_reported_without_a_bug(self):
        self.bug = lambda *_: None
        self.play(SEEDS[0], STEPS, trouble=True)

    def test_missing_retry_is_reported_as_a_loss(self):
        self.rewritten("_outcome_acts", "(o.kind = 'skip'::text)", "(o.kind IN ('skip', 'retry'))", ": lost: ")

    def test_skipped_late_commit_is_detected(self):
        def bug(*_):
            for function in ("_window_step", "_window_events"):
                self.rewrite(function, "pg_snapshot_xip(seen)", "pg_snapshot_xip('1:1:')")
        self.seen(bug, ": lost: ")

    def test_event_trimmed_too_early_is_reported_as_a_loss(self):
        self.rewritten("trim", "AND NOT (xid8ge(e.xid, sure) AND", "AND NOT (false AND", ": lost: ")

    def test_skipped_released_event_is_reported_as_a_loss(self):
        self.rewritten("_release", "release_from - 1", "release_from", ": lost: ")

    def test_releasing_a_delivered_event_is_reported_as_a_repeat(self):
        self.rewritten("_release", "release_from - 1", "release_from - 2", "handed out twice though nothing crashed")

    def test_stealing_a_live_claim_is_detected(self):
        self.rewritten("_claim_fresh", "q.lease_ms *", "1 *", "a live claim was lost")

    def test_handing_a_claim_to_two_workers_is_detected(self):
        """The next worker receives each claim as well, as if the lock were missing."""
        def bug(writers, readers):
            for reader in readers: reader.session.claim = self.repeat(reader.session.claim)
        self.seen(bug, "handed out twice though nothing crashed")

    def repeat(self, claim):
        given = []

        def claim_again(*args):
            epoch, events = claim(*args)
            if epoch is not None: given.extend(e for e in events if e not in given)
            return epoch, events + [e for e in given[-1:] if epoch is not None and e not in events]
        return claim_again

    def test_handing_out_an_uncommitted_event_is_detected(self):
        def bug(writers, readers):
            def claim_early(claim):
                def early(*args):
                    epoch, events = claim(*args)
                    pending = [(seq, kind, key, False) for w in writers if w.open for seq, key, kind, _ in w.pending]
                    return epoch, events + pending[:1] if epoch is not None else []
                return early
            for reader in readers: reader.session.claim = claim_early(reader.session.claim)
        self.seen(bug, "handed out before it was committed")

    def test_overtaking_a_failed_event_is_detected(self):
        self.rewritten("_turn_claim", "r.lane >= 0 AND parked AND c.ordering = 'key'", "false", "overtook it")

    def test_reordered_events_are_detected(self):
        self.rewritten("_claim_some", "ORDER BY e.seq", "ORDER BY e.seq DESC", "overtook it")

    def test_missing_dead_letter_is_detected(self):
        self.rewritten("_bury", "JOIN", "JOIN pg_class ON false JOIN", "buried, and no dead letter")
