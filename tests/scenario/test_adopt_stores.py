"""Adopting a table on each store: its producer goes on unchanged, and its rows become events; what was processed stays processed."""
# build: plain
import uuid

from flag_table import FlagTable
from support import on_each_store

DATA = 65


@on_each_store
class Adoption(FlagTable):
    def test_processed_rows_stay_processed_and_the_others_are_delivered_once_in_order(self):
        self.old_rows(10)
        said = self.outbox("adopt", "outbox").stdout
        self.assertEqual(said, "outbox: adopted; 7 unprocessed rows became events\n")
        self.insert(11, 12)
        events = self.drained()
        self.assertEqual([e["payload"]["n"] for e in events], [1, 2, 4, 5, 7, 8, 10, 11, 12])
        self.assertEqual([e["headers"] for e in events][:3], [{"source_id": "1"}, {"source_id": "2"}, {"source_id": "4"}])
        self.assertEqual({e["type"] for e in events}, {"message:created"})
        self.assertEqual([e["created_at"] for e in events][:2], ["2024-04-30T00:00:00.000Z", "2024-04-29T00:00:00.000Z"])
        self.assertTrue(all(uuid.UUID(e["id"]).version == 7 for e in events))
        self.assertEqual(self.processed(), [3, 6, 9], "nothing marks them unless it is said")

    def test_again_and_undone_and_again(self):
        self.old_rows(3)
        dry = self.json("adopt", "outbox", "--dry-run")
        self.assertEqual((dry["copied"], dry["columns"]["type"]), (2, "event_type"))
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(0,)])
        self.outbox("adopt", "outbox")
        self.assertIn("already adopted; nothing to do", self.outbox("adopt", '"outbox"').stdout)
        self.assertIn("delivered twice", self.outbox("adopt", "outbox", "--existing", "copy", status=DATA).stderr)
        self.assertIn("with these columns", self.outbox("adopt", "outbox", "--column", "type='note'").stdout)
        self.insert(4)
        self.assertEqual(self.ask("SELECT type FROM @event ORDER BY seq"), [("message:created",)] * 2 + [("note",)])
        self.assertIn("no longer adopted", self.outbox("adopt", "outbox", "--undo", "--yes").stdout)
        self.assertIn("was not adopted", self.outbox("adopt", "outbox", "--undo", "--yes").stdout)
        self.insert(5)
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(3,)])
        self.assertIn("cannot be told", self.outbox("adopt", "outbox", status=DATA).stderr)
        self.outbox("adopt", "outbox", "--existing", "skip")
        self.insert(6)
        self.assertEqual(self.ask("SELECT count(*) FROM @event"), [(4,)])
