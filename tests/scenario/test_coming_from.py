"""Whoever comes from another outbox finds it by its names: docs/coming-from.md, and the views under those names."""
# build: plain
import unittest

from support import Case, PgCase, wait_until

class Named:
    """What the views show, after a delivery, a failure that waits, and a dead letter. On each store."""

    def setUp(self):
        super().setUp()
        self.init()

    def rows(self, view, columns):
        return self.sql(f"SELECT {columns} FROM {self.NAME.format(view)}")

    def mess(self):
        """mess leaves listener good at the end, with receipts; late with an event that waits; dead with a dead letter."""
        self.event_id = self.emit("message:created", "message/1", {"authorType": "user"})
        wanted = [("dead", 1, False, False, None, True), ("good", 1, True, False, None, True),
                  ("late", 0, False, True, "exit status 75", True)]
        shown = lambda: sorted(self.rows("outbox_listeners", "listener_id, last_processed_id, last_processed_at IS NOT NULL, "
                                         "retry_after IS NOT NULL, last_error, created_at <= updated_at"))
        with self.relay("--consumer", "good", "--sink", "file:good.ndjson", "--receipts",
                        "--consumer", "dead", "--sink", "exec:echo 'no such room' >&2; exit 65",
                        "--consumer", "late", "--sink", "exec:exit 75", "--retry", "base=1h,cap=1h,attempts=5,jitter=none"):
            wait_until(lambda: shown() == wanted, what=lambda: str(shown()))

    def test_listeners_and_dead_letters_are_there_by_their_names(self):
        self.mess()
        error = "exit status 65: no such room"
        self.assertEqual(self.rows("outbox_dead_letters", "listener_id, outbox_event_id, error, failed_at IS NOT NULL"),
                         [("dead", 1, error, True)])
        got = self.rows("outbox_dlq", "consumer, original_outbox_id, topic, aggregate_kind, aggregate_id, publish_attempts, final_error")
        self.assertEqual([tuple(map(str, row)) for row in got], [("dead", self.event_id, "message:created", "message", "1", "1", error)])
        self.more_names()
        self.outbox("dead", "retry", "--all", "--consumer", "dead")
        self.assertEqual(self.rows("outbox_dead_letters", "*") + self.rows("outbox_dlq", "*"), [])

    def test_a_retry_is_counted_and_forgotten_once_it_succeeds(self):
        self.emit("a", "k/1")
        self.emit("a", "k/2")  # which gets through beside it, so that the failure is the first one's own
        self.drain("--consumer", "late", "--retry", "base=1ms,cap=1ms,attempts=2", "--sink",
                   'exec:test $OUTBOX_AGGREGATE_ID = 2 || test $OUTBOX_ATTEMPT = 2 || { touch seen; exit 75; }')
        self.assertTrue(self.path("seen").exists())
        self.assertEqual(self.rows("outbox_listeners", "listener_id, last_processed_id, retry_count, retry_after, last_error"),
                         [("late", 2, 0, None, None)])

    def test_a_table_of_the_applications_own_keeps_its_name(self):
        self.before_init()
        self.sql(f"CREATE TABLE {self.NAME.format('outbox_dead_letters')} (mine text)")
        self.outbox("init")
        self.sql(f"INSERT INTO {self.NAME.format('outbox_dead_letters')} VALUES ('kept')")
        self.outbox("init")
        self.assertEqual(self.rows("outbox_dead_letters", "mine"), [("kept",)])
        self.assertEqual(self.rows("outbox_listeners", "*"), [])


class NamedOnSqlite(Named, Case):
    NAME = "{}"

    def more_names(self):
        pass

    def before_init(self):
        self.db.unlink()
        self.db.touch()

    def test_the_inbox_is_there_by_its_names(self):
        self.sql("INSERT INTO outbox_handled (handler, key, hash, at) VALUES ('shop.stock', 'k', 0, 1)")
        self.assertEqual(self.rows("outbox_event_handled", "handler_name, idempotency_key, handled_at"), [("shop.stock", "k", 1)])
        self.assertEqual(self.rows("outbox_consumed_events", "event_id, consumer, consumed_at"), [("k", "shop.stock", 1)])


class NamedOnPostgres(Named, PgCase):
    NAME = "outbox.{}"

    def before_init(self):
        self.sql("DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox")

    def test_the_inbox_is_there_by_its_names(self):
        self.sql("SELECT outbox.handle_once('shop.stock', 'k')")
        self.assertEqual(self.rows("event_handled", "handler_name, idempotency_key, handled_at IS NOT NULL"), [("shop.stock", "k", True)])
        self.assertEqual(self.rows("consumed_events", "event_id, consumer, consumed_at IS NOT NULL"), [("k", "shop.stock", True)])

    def more_names(self):
        """more_names: in a schema of its own an event can be called as people call it."""
        got = self.rows("outbox_event", "consumer, event_type, status, attempts, next_attempt_at IS NOT NULL, error_message, "
                        "delivered_at IS NOT NULL")
        self.assertEqual(sorted(got), [("dead", "message:created", "expired", 1, False, "exit status 65: no such room", False),
                                       ("good", "message:created", "delivered", 0, False, None, True),
                                       ("late", "message:created", "failed", 0, True, "exit status 75", False)])
        self.assertEqual(self.rows("outbox", "id, topic, event_type, payload, dispatched_at IS NOT NULL, stream_id"),
                         [(1, "message:created", "message:created", {"authorType": "user"}, True, None)])

    def test_a_service_has_its_own_by_its_name(self):
        of_service = {"OUTBOX_STORE": self.store + "&schema=tenant_outbox"}
        self.outbox("init", env=of_service)
        self.emit("tenant.created", "tenant/7", {}, env=of_service)
        self.drain("--consumer", "stream", "--sink", "exec:exit 65", env=of_service)
        self.assertEqual(self.sql("SELECT topic, aggregate_id FROM tenant_outbox.tenant_outbox"), [("tenant.created", "7")])
        self.assertEqual(self.sql("SELECT topic, final_error FROM tenant_outbox.tenant_outbox_dlq"),
                         [("tenant.created", "exit status 65")])
        self.outbox("migrate", "validate", env=of_service)

    def test_they_are_compared_and_one_that_is_taken_is_no_fault(self):
        self.outbox("migrate", "validate")
        self.sql("DROP VIEW outbox.outbox_listeners")
        self.assertIn("outbox_listeners is missing", self.outbox("migrate", "validate", status=1).stdout)
        self.sql("CREATE TABLE outbox.outbox_listeners (mine text)")
        self.outbox("migrate", "validate")

    def test_a_part_reads_those_it_may_know_and_never_a_table_of_the_applications(self):
        self.sql("DROP VIEW outbox.outbox_dead_letters; CREATE TABLE outbox.outbox_dead_letters (mine text)")
        roles = {part: self.role(part) for part in ("producer", "consumer", "operator")}
        may = {part: {name for (name,) in self.sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND "
                      "has_table_privilege(%s, oid, 'SELECT') AND relname = ANY (%s)", url.split("user=")[1].split("&")[0],
                      ["outbox_listeners", "outbox_dead_letters", "outbox_dlq", "outbox", "event_handled", "outbox_event"])}
               for part, url in roles.items()}
        everything = {"outbox_listeners", "outbox_dlq", "outbox", "outbox_event"}
        self.assertEqual(may, {"producer": set(), "consumer": everything, "operator": everything | {"event_handled"}})
        name = roles["operator"].split("user=")[1].split("&")[0]
        self.outbox("revoke", "operator", name, "--yes")
        self.assertEqual(self.sql("SELECT count(*) FROM pg_class WHERE has_table_privilege(%s, oid, 'SELECT') AND relnamespace = "
                                  "'outbox'::regnamespace", name), [(0,)])


if __name__ == "__main__":
    unittest.main()
