"""Databases of earlier versions, as seed.py made them: init brings them up, and nothing of what was in them is lost."""
import json
import pathlib
import sqlite3
import subprocess

from support import Case, PgCase, read_ndjson

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = ["0.1.0"]


class Upgrade:
    def whole(self, version, store):
        """Brings a dump up, delivers all that is left, and compares with what was delivered before."""
        known = json.loads(HERE.joinpath(f"{version}.{store}.json").read_text())
        events = {e["id"]: e for e in known["events"]}
        self.outbox("init")
        # Its retries and delays are over, as they will be some day.
        self.sql(f"UPDATE {self.table('event')} SET not_before = NULL")
        self.sql(f"UPDATE {self.table('parked')} SET due_at = {self.past} WHERE due_at IS NOT NULL")
        self.outbox("consumers", "resume", "paused")
        settings = {"done": ["--receipts"], "lanes": ["--lanes", "4"], "global": ["--order", "global"],
                    "some": ["--events", "order.*", "--where", 'by = "card"'], "paused": [], "flaky": [], "killed": []}
        args = []
        for name, more in settings.items():
            args += ["--consumer", name, "--retry", "base=1ms,attempts=5", "--sink", f"file:{self.path(name)}.ndjson", *more]
        self.drain(*args)
        for name in settings:
            had = set(known["delivered"][name])
            came = [e["id"] for e in read_ndjson(self.path(f"{name}.ndjson"))]
            dead = set(known["dead"].get(name, [])) - {known["sent_back"]}
            wanted = set(events)
            if name == "some":
                wanted = {i for i, e in events.items() if e["type"].startswith("order.") and e["by"] == "card"}
            self.assertEqual((had | set(came) | dead) & wanted, wanted, f"{name}: lost")
            self.assertLessEqual(set(came), wanted, f"{name}: invented")
            if name != "killed": self.assertFalse(had & set(came), f"{name}: delivered again")
            self.assertEqual(len(came), len(set(came)), f"{name}: twice")
            states = {e["id"]: {d["consumer"]: d["state"] for d in e["deliveries"]} for e in self.json("events", "list", "--limit", "1000")}
            self.assertEqual({i for i in events if states[i].get(name) == "expired"}, dead, f"{name}: dead letters")
        self.assertIn("ledger", [row[0] for row in self.sql(f"SELECT handler FROM {self.table('handled')}")])
        again = self.json("emit", "order.paid", "--key", "order/1", "--payload", json.dumps({"n": 60}), "--idempotency-key", "once")
        self.assertTrue(again["duplicate"])
        fresh = self.emit("order.paid", "order/7", {"n": 100})
        self.drain(*args)
        for name in settings:
            if name != "some": self.assertIn(fresh, [e["id"] for e in read_ndjson(self.path(f"{name}.ndjson"))])


class FromSqlite(Upgrade, Case):
    past = "1"

    def table(self, name): return f"outbox_{name}"

    def test_an_older_file_is_brought_up_with_nothing_lost(self):
        for version in VERSIONS:
            with self.subTest(version):
                db = sqlite3.connect(self.db)
                db.executescript(HERE.joinpath(f"{version}.sqlite.sql").read_text())
                db.close()
                self.whole(version, "sqlite")

    def test_parked_events_that_a_worker_had_in_hand_are_delivered(self):
        """A claim lists them since version 6. The worker is gone, and its claim has expired."""
        db = sqlite3.connect(self.db)
        db.executescript(HERE.joinpath("0.1.0.sqlite.sql").read_text())
        held = [seq for seq, in db.execute("SELECT seq FROM outbox_parked WHERE consumer = 'flaky' AND due_at IS NOT NULL")]
        self.assertGreater(len(held), 0)
        db.executescript("""UPDATE outbox_parked SET claim = 7 WHERE consumer = 'flaky' AND due_at IS NOT NULL;
                            INSERT INTO outbox_claim VALUES ('flaky', 7, 0, 1, 0, 0, 'gone', 1, 30000);
                            UPDATE outbox_consumer SET epoch = 7 WHERE name = 'flaky';""")
        db.close()
        self.outbox("init")
        self.sql("UPDATE outbox_parked SET due_at = 1 WHERE due_at IS NOT NULL")
        self.drain("--consumer", "flaky", "--retry", "base=1ms,attempts=5", "--sink", f"file:{self.path('flaky.ndjson')}")
        self.assertLessEqual(set(held), {e["seq"] for e in read_ndjson(self.path("flaky.ndjson"))})
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_parked WHERE claim IS NOT NULL"), [(0,)])

    def test_triggers_and_indexes_of_the_application_are_kept(self):
        made = ["CREATE TRIGGER told AFTER INSERT ON outbox_event BEGIN INSERT INTO told VALUES (new.type); END",
                "CREATE INDEX by_type ON outbox_event (type)"]
        db = sqlite3.connect(self.db)
        db.executescript(HERE.joinpath("0.1.0.sqlite.sql").read_text())
        db.executescript("CREATE TABLE told (type);" + ";".join(made))
        db.close()
        self.outbox("init")
        self.emit("order.new")
        self.assertEqual(self.sql("SELECT type FROM told"), [("order.new",)])
        self.assertEqual(sorted(self.sql("SELECT sql FROM sqlite_master WHERE name IN ('told', 'by_type') AND type <> 'table'")),
                         sorted((text,) for text in made))


class FromPostgres(Upgrade, PgCase):
    past = "'2020-01-01'"

    def table(self, name): return f"outbox.{name}"

    def test_an_older_database_is_brought_up_with_nothing_lost(self):
        for version in VERSIONS:
            with self.subTest(version):
                subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", self.store], check=True, capture_output=True,
                               input=HERE.joinpath(f"{version}.postgres.sql").read_bytes())
                self.whole(version, "postgres")
