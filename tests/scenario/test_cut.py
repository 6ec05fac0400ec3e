"""A settlement is cut off between any two of its statements: position, record of processed events, and burial are stored
together or none of them is."""
import unittest

from support import MariaCase, PgCase, on_each_store, wait_until


@on_each_store
class Cut:
    def setUp(self):
        super().setUp()
        self.init()
        # The second event is rejected: it ends as a dead letter, the others as delivered, with a receipt each.
        self.sink = ("--consumer", "mail", "--sink", 'exec:[ "$OUTBOX_SEQ" != 2 ] || exit 65', "--receipts", "--batch", "10")
        self.drain(*self.sink)  # registers the consumer
        for n in (1, 2, 3): self.emit("order.paid", f"order/{n}", n)

    def cut(self, verb, table):
        """cut makes every such statement fail and its transaction roll back, like a crash at this point."""
        if isinstance(self, PgCase):
            self.sql("CREATE FUNCTION public.cut() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'cut off here'; END$$")
            self.sql(f"CREATE TRIGGER cut BEFORE {verb} ON outbox.{table} FOR EACH ROW EXECUTE FUNCTION public.cut()")
        elif isinstance(self, MariaCase):
            self.sql(f"CREATE TRIGGER cut BEFORE {verb} ON outbox_{table} FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = "
                     "'cut off here'")
        else:
            self.sql(f"CREATE TRIGGER cut BEFORE {verb} ON outbox_{table} BEGIN SELECT RAISE(ABORT, 'cut off here'); END")

    def mend(self, table):
        self.sql(f"DROP TRIGGER cut ON outbox.{table}" if isinstance(self, PgCase) else "DROP TRIGGER cut")

    def rows(self, table):
        return self.ask(f"SELECT count(*) FROM @{table}")[0][0]

    def state(self):
        """state: (claims, dead letters, receipts)."""
        return self.rows("claim"), self.rows("dead"), self.rows("receipt")

    def position(self):
        return self.ask("SELECT * FROM @lane WHERE lane >= 0")

    def cut_and_mended(self, verb, table, meanwhile):
        """cut_and_mended checks that meanwhile() holds during the cut, and that the final state shows no trace of it."""
        self.cut(verb, table)
        with self.relay(*self.sink) as relay:
            wait_until(lambda: "cut off here" in relay.output(), what=relay.output)
            meanwhile()
            self.mend(table)
            wait_until(lambda: self.state() == (0, 1, 2), what=self.state)
        self.assertEqual([e["seq"] for e in self.json("dead", "list")], [2])

    def settled_nothing(self):
        self.assertEqual(self.state(), (1, 0, 0))

    def test_failure_is_not_settled_unless_its_burial_is_written(self):
        self.cut_and_mended("INSERT", "dead", self.settled_nothing)

    def test_settlement_that_cannot_end_its_claim_records_nothing(self):
        self.cut_and_mended("DELETE", "claim", self.settled_nothing)

    def test_event_is_not_settled_unless_its_receipt_is_written(self):
        self.cut_and_mended("INSERT", "receipt", self.settled_nothing)

    def test_position_does_not_move_unless_its_claim_is_written(self):
        before = self.position()
        self.cut_and_mended("INSERT", "claim", lambda: self.assertEqual((self.position(), self.state()), (before, (0, 0, 0))))

    def test_nothing_is_claimed_unless_the_position_moves(self):
        verb = "INSERT" if isinstance(self, PgCase) else "UPDATE"  # a lane's change is a new row in PostgreSQL
        self.cut_and_mended(verb, "lane", lambda: self.assertEqual(self.state(), (0, 0, 0)))


if __name__ == "__main__":
    unittest.main()
