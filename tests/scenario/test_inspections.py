"""The five inspections by name, in the CLI and in SQL, on each store. Each of them has results."""
# build: plain
# quick: no
import signal
import sqlite3
import unittest

from support import Case, MariaCase, PgCase, wait_until

NAMES = ("unprocessed", "processing", "failed", "abandoned", "published")
# The sink accepts "good" and "slow" (once the file `hold` is removed), never "bad", and fails "later" and "again".
SINK = 'case "$OUTBOX_TYPE" in bad) exit 65;; later|again) exit 1;; slow) while [ -e {hold} ]; do sleep 0.02; done;; esac'


class Inspections:
    ASKS = False  # SQL evaluates the predicates

    def setUp(self):
        super().setUp()
        self.init()
        self.hold = self.path("hold")
        self.hold.touch()

    def emit(self, *types):
        self.emit_many([{"type": type} for type in types])

    def options(self):
        return ("--consumer", "mail", "--sink", "exec:" + SINK.format(hold=self.hold), "--order", "none", "--lease", "1h", "--timeout",
                "1h", "--retry", "base=1h,cap=1h,attempts=5,jitter=none,outage=0s", "--batch", "1")

    def types(self, name):
        return [type for _, _, type in self.found(name)]

    def check(self, *names, **want):
        """check: SQL lists these types for each inspection, and the CLI the same for those named."""
        for name in NAMES: self.assertEqual(self.types(name), want.get(name, []), name)
        for name in names: self.assertEqual([e["type"] for e in self.json("events", name)], want.get(name, []), name)

    def test_each_inspection_lists_exactly_its_state(self):
        self.emit("good", "bad", "later", "again")
        with self.relay(*self.options()) as relay:
            wait_until(lambda: self.types("failed") == ["later", "again"])
            self.emit("slow")
            wait_until(lambda: self.types("processing") == ["slow"])
            relay.freeze(self.db if isinstance(self, Sqlite) else None)
            self.emit("new")
            self.check(*NAMES, published=["good"], abandoned=["bad"], failed=["later", "again"], processing=["slow"],
                       unprocessed=["new"])
            self.due_now("again")  # an event is then both unprocessed and failed
            self.check("unprocessed", "failed", published=["good"], abandoned=["bad"], failed=["later", "again"],
                       processing=["slow"], unprocessed=["again", "new"])
            self.expire()
            self.check("unprocessed", "processing", published=["good"], abandoned=["bad"], failed=["later", "again"],
                       unprocessed=["again", "slow", "new"])
            self.assertEqual([e["type"] for e in self.json("events", "list", "--state", "unprocessed")], ["again", "slow", "new"])
            self.expire(back=True)
            self.hold.unlink()
            relay.signal(signal.SIGCONT)
            wait_until(lambda: self.types("published") == ["good", "slow", "new"])

    def test_claim_after_a_start_position_has_only_later_events(self):
        self.emit(*["old"] * 600)
        with self.relay(*self.options(), "--from", "end") as relay:
            wait_until(lambda: "started" in relay.output(), what=relay.output)
            self.emit("slow")
            wait_until(lambda: self.types("processing") == ["slow"])
            for name in "processing", "unprocessed", "published": self.assertNotIn("old", self.types(name))
            states = [d["state"] for e in self.json("events", "list", "--limit", "1000") for d in e["deliveries"]]
            self.assertEqual(states, ["before-start"] * 600 + ["in-flight"])
            self.hold.unlink()

    def test_with_a_predicate_published_depends_on_receipts(self):
        """Where SQL cannot evaluate a predicate, only a receipt distinguishes delivered from skipped events."""
        self.emit_many([{"type": type, "payload": {"by": by}} for type, by in (("a", "user"), ("b", "bot"), ("c", "user"))])
        where = ("--where", 'by = "user"', "--sink", "exec:[ $OUTBOX_TYPE != c ] || exit 65")
        self.drain("--consumer", "kept", "--receipts", *where, "--consumer", "not", *where)
        published = [("kept", 1, "a")] + [("not", 1, "a")] * self.ASKS
        self.assertEqual(self.found("published"), published)
        self.assertEqual(self.found("abandoned"), [("kept", 3, "c"), ("not", 3, "c")])
        for name in "kept", "not":
            self.assertEqual([e["type"] for e in self.json("events", "published", "--consumer", name)], ["a"])

    def test_unknown_state_error_lists_the_known_ones(self):
        said = self.outbox("events", "list", "--state", "unprocesed", status=64).stderr
        for name in (*NAMES, "pending", "in-flight", "before-start"): self.assertIn(f" {name}", said)
        self.assertIn("did you mean unprocessed?", said)

    def test_inspections_accept_listing_filters(self):
        for name in "mail", "other": self.drain("--consumer", name, "--sink", "stdout:")
        self.emit("good", "good")
        self.assertEqual([e["seq"] for e in self.json("events", "unprocessed", "--limit", "1")], [1])
        self.assertEqual([e["seq"] for e in self.json("events", "unprocessed", "--newest")], [2, 1])
        self.assertEqual([d["consumer"] for d in self.json("events", "unprocessed", "--after", "1", "--consumer", "mail")[0]["deliveries"]],
                         ["mail"])
        self.assertEqual(self.json("events", "unprocessed", "--type", "b*"), [])
        self.assertEqual(self.outbox("events", "unprocessed").stdout.count("pending"), 2)
        self.assertEqual(self.found("unprocessed"), [(c, n, "good") for n in (1, 2) for c in ("mail", "other")])


class Asked:
    """Stores whose SQL evaluates predicates."""
    ASKS = True

    def compare(self):
        for name in NAMES:
            self.assertEqual([e["seq"] for e in self.json("events", name)], [seq for _, seq, _ in self.found(name)], name)
        states = {(e["seq"], d["state"]) for e in self.json("events", "list") for d in e["deliveries"]}
        self.assertEqual(set(self.sql(f"SELECT seq, state FROM {self.VIEW}")), states)

    def test_with_a_predicate_sql_and_cli_agree(self):
        self.emit_many([{"type": type, "payload": {"by": by}} for type, by in (("good", "user"), ("good", "bot"), ("slow", "user"))])
        with self.relay(*self.options(), "--where", 'by = "user"') as relay:
            wait_until(lambda: self.types("processing") == ["slow"], what=relay.output)
            self.compare()
            self.hold.unlink()
            wait_until(lambda: self.types("published") == ["good", "slow"], what=relay.output)
        self.emit_many([{"type": "new", "payload": {"by": by}} for by in ("bot", "user")])
        self.compare()
        self.assertEqual([self.types(name) for name in ("published", "unprocessed")], [["good", "slow"], ["new"]])


class Sqlite(Inspections, Case):
    def found(self, name):
        return self.sql(f"SELECT consumer, seq, type FROM outbox_find_{name} ORDER BY seq, consumer")

    def due_now(self, type):
        self.sql("UPDATE outbox_parked SET due_at = 1 WHERE seq = (SELECT seq FROM outbox_event WHERE type = ?)", type)

    def expire(self, back=False):
        self.sql(f"UPDATE outbox_claim SET locked_until = {'lease' if back else '1'}, lease = locked_until")


class Postgres(Asked, Inspections, PgCase):
    VIEW = "outbox.delivery"

    def found(self, name):
        return self.sql(f"SELECT consumer, seq, type FROM outbox.find_{name}()")

    def due_now(self, type):
        self.sql("UPDATE outbox.parked SET due_at = clock_timestamp() - interval '1 s' WHERE seq = "
                 "(SELECT seq FROM outbox.event WHERE type = %s)", type)

    def expire(self, back=False):
        self.sql(f"UPDATE outbox.claim SET locked_until = locked_until {'+' if back else '-'} interval '2 hours'")


class Maria(Asked, MariaCase):
    VIEW = "outbox_delivery"
    options, types, found = Inspections.options, Inspections.types, Sqlite.found

    def setUp(self):
        super().setUp()
        self.init()
        self.hold = self.path("hold")
        self.hold.touch()


class Ranges:
    """Where inspections are views, the reader gives the range to search: the cost of a range of seq depends on its content."""

    def test_cost_of_a_view_range_does_not_grow_with_the_table(self):
        self.init()
        costs = []
        for _ in range(2):
            self.emit_many([{"type": "a"}] * 2000)
            self.drain("--consumer", "mail", "--sink", "file:/dev/null")
            costs.append([self.cost(name, "WHERE seq > 1000 AND seq <= 1100") for name in NAMES])
        for few, many in zip(*costs): self.assertLess(many, few * 1.1 + 50, costs)
        self.assertGreater(self.cost("published", ""), 10 * self.cost("published", "WHERE seq > 1000 AND seq <= 1100"), "the search would have found it")


class SqliteRanges(Ranges, Case):
    def cost(self, name, where):
        """cost counts instructions of SQLite's machine."""
        db, n = sqlite3.connect(self.db), []
        db.set_progress_handler(lambda: n.append(1), 1)
        db.execute(f"SELECT consumer, seq, payload FROM outbox_find_{name} {where}").fetchall()
        db.close()
        return len(n)


class MariaRanges(Ranges, MariaCase):
    def cost(self, name, where):
        """cost counts rows that the server has read."""
        cursor = self.connect().cursor()
        cursor.execute("FLUSH STATUS")
        cursor.execute(f"SELECT consumer, seq, payload FROM outbox_find_{name} {where}")
        cursor.fetchall()
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(n) for _, n in cursor.fetchall())


if __name__ == "__main__":
    unittest.main()
