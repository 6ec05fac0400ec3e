"""Users of another outbox find familiar names: docs/coming-from.md, and the views under those names."""
# build: plain
import json
import re
import sqlite3
import subprocess
import unittest

from pages import items
from support import BIN, ROOT, TIMEOUT, Case, PgCase, clean_env, wait_until
from test_docs import BUILD, FENCE, plain

PAGE = ROOT / "docs" / "coming-from.md"
METRICS = (ROOT / "docs" / "metrics.md").read_text()
HEADERS = "".join(path.read_text() for path in (ROOT / "include").glob("*.h"))

class Named:
    """The content of the views, after a delivery, a waiting failure, and a dead letter. On each store."""

    def setUp(self):
        super().setUp()
        self.init()

    def rows(self, view, columns):
        return self.sql(f"SELECT {columns} FROM {self.NAME.format(view)}")

    def mess(self):
        """mess leaves listener good at the end, with receipts; late with an event that waits; dead with a dead letter."""
        self.event_id = self.emit("message:created", "message/1", {"authorType": "user"}, "--idempotency-key", "m-1")
        wanted = [("dead", 1, False, False, None, True), ("good", 1, True, False, None, True),
                  ("late", 0, False, True, "exit status 75", True)]
        shown = lambda: sorted(self.rows("outbox_listeners", "listener_id, last_processed_id, last_processed_at IS NOT NULL, "
                                         "retry_after IS NOT NULL, last_error, created_at <= updated_at"))
        with self.relay("--consumer", "good", "--sink", "file:good.ndjson", "--receipts",
                        "--consumer", "dead", "--sink", "exec:echo 'no such room' >&2; exit 65",
                        "--consumer", "late", "--sink", "exec:exit 75", "--retry", "base=1h,cap=1h,attempts=5,jitter=none"):
            wait_until(lambda: shown() == wanted, what=lambda: str(shown()))

    def test_listeners_and_dead_letters_keep_their_names(self):
        self.mess()
        error = "exit status 65: no such room"
        self.assertEqual(self.rows("outbox_dead_letters", "listener_id, outbox_event_id, error, failed_at IS NOT NULL"),
                         [("dead", 1, error, True)])
        got = self.rows("outbox_dlq", "consumer, original_outbox_id, topic, aggregate_kind, aggregate_id, publish_attempts, final_error")
        self.assertEqual([tuple(map(str, row)) for row in got], [("dead", self.event_id, "message:created", "message", "1", "1", error)])
        self.more_names()
        self.outbox("dead", "retry", "--all", "--consumer", "dead")
        self.assertEqual(self.rows("outbox_dead_letters", "*") + self.rows("outbox_dlq", "*"), [])

    def test_retry_count_is_cleared_on_success(self):
        self.emit("a", "k/1")
        self.emit("a", "k/2")
        self.drain("--consumer", "late", "--retry", "base=1ms,cap=1ms,attempts=2,outage=0s", "--sink",
                   'exec:test $OUTBOX_AGGREGATE_ID = 2 || test $OUTBOX_ATTEMPT = 2 || { touch seen; exit 75; }')
        self.assertTrue(self.path("seen").exists())
        self.assertEqual(self.rows("outbox_listeners", "listener_id, last_processed_id, retry_count, retry_after, last_error"),
                         [("late", 2, 0, None, None)])

    def test_application_table_keeps_its_name(self):
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

    def test_inbox_has_the_documented_names(self):
        self.sql("INSERT INTO outbox_handled (handler, key, hash, at) VALUES ('shop.stock', 'k', 0, 1)")
        self.assertEqual(self.rows("outbox_event_handled", "handler_name, idempotency_key, handled_at"), [("shop.stock", "k", 1)])
        self.assertEqual(self.rows("outbox_consumed_events", "event_id, consumer, consumed_at"), [("k", "shop.stock", 1)])


class NamedOnPostgres(Named, PgCase):
    NAME = "outbox.{}"

    def before_init(self):
        self.sql("DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox")

    def test_inbox_has_the_documented_names(self):
        self.sql("SELECT outbox.handle_once('shop.stock', 'k')")
        self.assertEqual(self.rows("event_handled", "handler_name, idempotency_key, handled_at IS NOT NULL"), [("shop.stock", "k", True)])
        self.assertEqual(self.rows("consumed_events", "event_id, consumer, consumed_at IS NOT NULL"), [("k", "shop.stock", True)])

    def more_names(self):
        """more_names: in a separate schema an event can have the names that people use."""
        got = self.rows("outbox_event", "consumer, event_type, status, attempts, next_attempt_at IS NOT NULL, error_message, "
                        "delivered_at IS NOT NULL")
        self.assertEqual(sorted(got), [("dead", "message:created", "expired", 1, False, "exit status 65: no such room", False),
                                       ("good", "message:created", "delivered", 0, False, None, True),
                                       ("late", "message:created", "failed", 0, True, "exit status 75", False)])
        self.assertEqual(set(self.rows("outbox_event", "idempotency_key, id::text")), {("m-1", self.event_id)})
        self.assertEqual(self.rows("outbox", "id, topic, event_type, payload, dispatched_at IS NOT NULL, stream_id"),
                         [(1, "message:created", "message:created", {"authorType": "user"}, True, None)])

    def test_each_service_has_its_own_named_inbox(self):
        of_service = {"OUTBOX_STORE": self.store + "&schema=tenant_outbox"}
        self.outbox("init", env=of_service)
        self.emit("tenant.created", "tenant/7", {}, env=of_service)
        self.drain("--consumer", "stream", "--sink", "exec:exit 65", env=of_service)
        self.assertEqual(self.sql("SELECT topic, aggregate_id FROM tenant_outbox.tenant_outbox"), [("tenant.created", "7")])
        self.assertEqual(self.sql("SELECT topic, final_error FROM tenant_outbox.tenant_outbox_dlq"),
                         [("tenant.created", "exit status 65")])
        self.outbox("migrate", "validate", env=of_service)

    def test_validate_checks_view_names_and_allows_taken_ones(self):
        self.outbox("migrate", "validate")
        self.sql("DROP VIEW outbox.outbox_listeners")
        self.assertIn("outbox_listeners is missing", self.outbox("migrate", "validate", status=1).stdout)
        self.sql("CREATE TABLE outbox.outbox_listeners (mine text)")
        self.outbox("migrate", "validate")

    def test_roles_never_get_rights_to_application_tables(self):
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
        # Two views show every role only its own grants.
        self.assertEqual(self.sql("SELECT relname FROM pg_class WHERE has_table_privilege(%s, oid, 'SELECT') AND relnamespace = "
                                  "'outbox'::regnamespace ORDER BY relname", name), [("held_here",), ("works_here",)])


# ---- the page ----

# The words of each source that a reader looks for: names of tables, columns, functions, states, settings and metrics.
WORDS = {
    "Fan-out to handlers": """co_handlers RegisteredHandler HANDLER_NAME handler_name idempotency_key core.event_handled
        _CONSUMER_BUILDERS build_decision_recorded_consumer""",
    "Atomic find-and-claim": """BaseDAO._claim criteria claim_fields limit order_by claim_batch worker_id target_broker
        claim_for_processing find_unprocessed find_processing find_failed find_abandoned find_published locked_until PROCESSING
        messages_per_tick _SKIP_LOCKED_DIALECTS OutboxProcessor OutboxRepository get_next_batch_of_messages SQLITE_BUSY""",
    "Events with retries": """OutboxEvent outbox_event Status PENDING DELIVERED FAILED EXPIRED SENDING event_type attempts max_attempts
        next_attempt_at error_message delivered_at idempotency_key emit_event transaction.on_commit deliver_outbox_events_task base_delay
        OUTBOX_HANDLERS outbox_handler HANDLERS select_for_update OUTBOX_RETENTION_HOURS cleanup_delivered_outbox_events_task
        CELERY_TASK_ALWAYS_EAGER CELERY_BEAT_SCHEDULE safe_dispatch uuid7 archived_at""",
    "Dispatcher to Redis Streams": """defineDispatcher startDispatcher serviceName outboxTable streamFor leaseKey leaseTtlMs pollMs
        batchSize publishMaxAttempts drainDeadlineSeconds currentHwm dispatched_at stream_id publish_attempts topic aggregate_kind
        aggregate_id source_entity_version entity_version telemetry_envelope payload._telemetry committed_at <service>_outbox
        <service>_outbox_dlq original_outbox_id final_error consumed_events outbox.depth outbox.lag_seconds outbox.dispatch_rate
        outbox.publish_failures outbox.hwm outbox.lease_renewals migrate-gen tenantId dbRls withSystemContext replica-consumer""",
    "Independent listeners": """outbox_listeners listener_id last_processed_id last_processed_at retry_count retry_after last_error
        outbox_dead_letters outbox_event_id error failed_at processed_at BaseOutboxListener BroadcastListener CompanionListener
        handleEvent listenerId batchSize maxRetries baseBackoffMs claimListener updateCursor recordError fetchAfterId
        OutboxListenerConfig OutboxListenerRepository OutboxRepository""",
    "Debezium": "aggregatetype aggregateid type payload table.field.event.id route.by.field route.topic.replacement",
    "Sequin": "message_grouping group_column_names max_retry_count",
    "PgQue": "subscribe send insert_event ticker receive ack nack pgque_reader pgque_writer pgque_admin",
    "Svix": "whsec_ whsk_",
    "River": "river_job kind args InsertTx available running retryable completed discarded max_attempts scheduled_at UniqueOpts",
    "pg-boss": "send publish subscribe work fetch complete fail created active retry failed retryLimit retryBackoff deadLetter singletonKey",
    "Watermill": "watermill_<topic> watermill_offsets_<topic> offset_acked consumer_group ConsumerGroup NewSubscriber Ack Nack",
    "gruelbox transaction-outbox": "TXNO_OUTBOX schedule flush blockAfterAttempts attemptFrequency unblock uniqueRequestId ordered",
}


def sections():
    """sections returns the page's parts by their headings."""
    parts = re.split(r"^## +(.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def rows(text):
    """rows returns both sides of the arrows of a section: (there, here)."""
    return [tuple(item.split(" → ", 1)) for item in items(text) if " → " in item]


def spans(text):
    return re.findall(r"`([^`]+)`", text)


class Words(unittest.TestCase):
    def test_every_source_system_has_a_section_in_its_terms(self):
        found = sections()
        self.assertEqual(list(found), list(WORDS))
        for heading, words in WORDS.items():
            there = " ".join(span for left, _ in rows(found[heading]) for span in spans(left))
            for word in words.split():
                with self.subTest(section=heading, word=word):
                    self.assertRegex(there, rf"(?<![\w.]){re.escape(word)}(?!\w)|\.{re.escape(word)}\b")


class Names(PgCase):
    """Every name in a right-hand column exists: a function, table, view or column, a command, an option or setting, a state, a
    metric, or a function of the library."""

    def setUp(self):
        super().setUp()
        self.init()
        db = sqlite3.connect(":memory:")
        db.executescript(self.outbox("migrate", "gen", env={"OUTBOX_STORE": "sqlite:x.db"}).stdout)
        self.sqlite = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        self.columns = {column for name in self.sqlite for _, column, *_ in db.execute(f"PRAGMA table_info({name})")}
        self.columns |= {name for (name,) in self.sql("SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE "
                                                      "c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0")}
        self.relations = {name for (name,) in self.sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace")}
        self.functions = {name for (name,) in self.sql("SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace")}
        self.options = json.loads(self.outbox("help", "--options").stdout)
        self.commands = self.outbox("help").stdout

    # Values of the retry policy, settings that exist only in C, states, SQLSTATEs, an element of the config file.
    OTHERS = {"base", "cap", "attempts", "jitter", "attempts=8", "workers", "fate = shared", "fate = own", "pending", "in-flight", "delivered",
              "failed", "expired", "retry", "dead", "OB002", "[consumer NAME]", "shop.stock", "sqlite::memory:", "OUTBOX_EAGER",
              "<service>_outbox", "stream=", "lease=", "?tenant=NAME", "redis://cache/0?stream=tenant.{type[1]}", "watermill-sql", "id",
              "stream=tenant.{aggregate_type}", "outbox"}

    def is_there(self, name):
        option = {o["name"] for o in self.options}
        if name in self.OTHERS or name in self.columns or name in self.sqlite: return True
        if name.startswith("--"): return name[2:] in option
        if name.startswith("outbox ") and " --" not in name: return f"\n  {name.removeprefix('outbox ')} " in self.commands
        if name.startswith("outbox "):
            command, _, flag = name.removeprefix("outbox ").partition(" --")
            return any(o["scope"] == command and o["name"] == flag for o in self.options)
        if name.startswith("outbox.") and name.endswith("()"): return name[7:-2] in self.functions
        if name.startswith("outbox."): return name[7:] in self.relations
        if name.endswith("()"): return f" {name[:-1]}" in HEADERS or f"*{name[:-1]}" in HEADERS
        if name.startswith("OUTBOX_"): return re.search(rf"\b{name}\b", HEADERS) is not None
        if name.startswith("outbox_"): return f"* `{name}`, " in METRICS
        if " = " in name: return self.is_taken(*name.split(" = ", 1))
        return name in option

    def is_taken(self, name, value):
        """is_taken tells whether a config file may contain that line."""
        config = self.path("outbox.conf")
        scope = next((o["scope"] for o in self.options if o["name"] == name and o["file"]), None)
        lines = ["[outbox]", f"store = {self.store}", "[consumer c]", "sink = stdout:"]
        lines.insert(1 if scope == "outbox" else 3, f"{name} = {value}")
        config.write_text("\n".join(lines) + "\n")
        return scope is not None and self.outbox("-c", config, "config", "check", status=None).returncode == 0

    def test_every_equivalent_name_exists(self):
        for heading, text in sections().items():
            for left, here in rows(text):
                for name in spans(here):
                    with self.subTest(section=heading, there=left, here=name):
                        self.assertTrue(self.is_there(name), "no such name")

    def test_missing_name_is_noticed(self):
        for name in ("outbox.claims()", "outbox.listeners", "outbox events lost", "--idempotent", "outbox_emits()", "outbox_depths",
                     "retry = slowly", "leases", "outbox migrate gen --sorvice", "OUTBOX_REJECTED"):
            with self.subTest(name=name): self.assertFalse(self.is_there(name))

    def test_every_config_file_on_the_page_is_valid(self):
        found = [text for language, text in FENCE.findall(PAGE.read_text()) if language == "ini"]
        self.assertTrue(found)
        for text in found:
            self.path("page.conf").write_text(text)
            self.outbox("-c", self.path("page.conf"), "config", "check", env={"OUTBOX_STORE": ""})


class Examples:
    """The page's blocks, in order; each prints the output shown right after it."""

    def script(self):
        found = FENCE.findall(PAGE.read_text())
        script, shown = ["set -euo pipefail"], []
        for i, (language, text) in enumerate(found):
            if not self.runs(language, text): continue
            script.append(self.SHELL[language].format(text))
            script.append("echo '-- end of block --'")
            behind = found[i + 1] if i + 1 < len(found) else ("", "")
            shown.append((text, behind[1] if behind[0] == "text" else ""))
        return "\n".join(script) + "\n", shown

    def runs(self, language, text):
        if language not in self.SHELL: return False
        mark = re.match(r"(?:--|#) (SQLite|PostgreSQL)\n", text)
        return (mark[1] if mark else self.USUAL[language]) in (self.STORE, "both")

    def test_examples_print_the_documented_output(self):
        self.init()
        script, shown = self.script()
        self.assertGreater(len(shown), 4)
        env = clean_env({"OUTBOX_STORE": self.store, "PATH": f"{BUILD}:{clean_env()['PATH']}", "DB": self.store})
        done = subprocess.run(["bash", "-c", script], cwd=self.dir, env=env, capture_output=True, text=True, timeout=2 * TIMEOUT,
                              stdin=subprocess.DEVNULL)
        printed = done.stdout.split("-- end of block --\n")
        self.assertEqual(done.returncode, 0, f"block {len(printed)} of {self.STORE} failed:\n{done.stdout}{done.stderr}")
        for (text, wanted), got in zip(shown, printed): self.assertEqual(plain(got), plain(wanted), text)

    USUAL = {"sh": "both", "sql": "PostgreSQL"}


class ExamplesOnSqlite(Examples, Case):
    STORE = "SQLite"
    SHELL = {"sh": "{}", "sql": "sqlite3 shop.db <<'SQL'\n{}SQL"}


class ExamplesOnPostgres(Examples, PgCase):
    STORE = "PostgreSQL"
    SHELL = {"sh": "{}", "sql": "psql -XqAt -v ON_ERROR_STOP=1 \"$DB\" <<'SQL'\n{}SQL"}


if __name__ == "__main__":
    unittest.main()
