"""Handlers that die at each step, and connections cut between steps: the crash table of docs/c.md. A handler's changes in its
transaction take effect once; actions outside may be repeated, where the table says so."""
# build: plain
import pathlib
import signal

from proxy_postgres import ANSWERED, SENT, TORN, UNSENT, Proxy
from support import BIN, Case, MariaCase, PgCase

BUILD = pathlib.Path(BIN).parent
HANDLERS, SHOP = BUILD / "tests" / "fault" / "fault_handlers", BUILD / "examples" / "shop"
EVENTS = 10


class Dying:
    """A program that the test restarts until it completes."""

    KEY = "key"

    def setUp(self):
        super().setUp()
        self.init()
        self.sql(f"CREATE TABLE effect (handler text, {self.KEY} int)")
        self.emit_many([{"type": "e", "aggregate_type": "k", "aggregate_id": str(i % 3), "payload": i}
                        for i in range(EVENTS)])

    def run_until_through(self, step, deaths, by=signal.SIGKILL):
        for _ in range(deaths):
            self.spawn(HANDLERS, self.store, self.path("out"), step).wait(-by)
        self.spawn(HANDLERS, self.store, self.path("out"), step).wait()

    def effects(self, handler):
        return [n for n, in self.sql(f"SELECT {self.KEY} FROM effect WHERE handler = '{handler}' ORDER BY {self.KEY}")]

    def letters(self):
        return sorted(int(line.split()[1]) for line in self.path("out").read_text().splitlines())

    def handled(self, handler):
        return self.sql(f"SELECT count(*) FROM {self.PREFIX}handled WHERE handler = 'c.{handler}'")[0][0]

    def test_crash_before_the_effect_still_applies_it_once(self):
        self.run_until_through("before", 1)
        self.assertEqual((self.effects("h"), self.handled("h")), (list(range(EVENTS)), EVENTS))

    def test_crash_before_the_commit_still_applies_the_effect_once(self):
        self.run_until_through("after", 1)
        self.assertEqual((self.effects("h"), self.handled("h")), (list(range(EVENTS)), EVENTS))

    def test_always_crashing_handler_buries_only_its_event(self):
        self.run_until_through("always", 4, signal.SIGABRT)  # one attempt with its neighbours, then three alone
        self.assertEqual(self.effects("h"), [n for n in range(EVENTS) if n != 5])
        self.assertEqual(self.handled("h"), EVENTS - 1)
        self.assertEqual(self.ask("SELECT CAST(payload AS text) FROM @dead"), [("5",)])

    def test_crash_before_an_external_effect_repeats_nothing(self):
        self.run_until_through("out-before", 1)
        self.assertEqual((self.letters(), self.handled("mail")), (list(range(EVENTS)), EVENTS))

    def test_crash_before_the_record_repeats_an_external_effect(self):
        self.run_until_through("out-after", 1)
        self.assertEqual((self.letters(), self.handled("mail")), (sorted([*range(EVENTS), 5]), EVENTS))

    def test_crash_before_the_settlement_does_not_repeat_the_effect(self):
        self.run_until_through("between", 1)
        self.assertEqual(self.letters(), list(range(EVENTS)))
        for name in "stock", "last":
            self.assertEqual((self.effects(name), self.handled(name)), (list(range(EVENTS)), EVENTS))


class DyingOnSqlite(Dying, Case):
    PREFIX = "outbox_"


class DyingOnPostgres(Dying, PgCase):
    PREFIX = "outbox."


class DyingOnMariadb(Dying, MariaCase):
    PREFIX, KEY = "outbox_", "`key`"


def effect(request):
    return "UPDATE stock" in request.text and bool(request.params)


def recording(request):
    return "handle_all(" in request.text and any(b"shop.stock" in (value or b"") for value in request.params)


class Cut(PgCase):
    """The connection of a handler breaks, and the library must find out what the server did."""

    COUNT = 30

    def cut(self, match, when):
        """cut runs the shop through a proxy that breaks one request, and then checks every number."""
        self.sql("DROP TABLE IF EXISTS orders, stock; DROP SCHEMA IF EXISTS outbox CASCADE")
        with Proxy(self.store) as proxy:
            rule = proxy.cut(match, when)
            self.spawn(SHOP, proxy.url, self.COUNT).wait()
            self.assertTrue(rule.done(), "no connection was cut")
        kept = [i for i in range(1, self.COUNT + 1) if i % 7]
        self.assertEqual(self.sql("SELECT 300000 - sum(quantity)::int FROM stock"), [(sum(1 + i % 5 for i in kept),)])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.handled WHERE handler = 'shop.stock'"), [(len(kept),)])
        self.assertEqual(self.sql("SELECT count(*) FROM outbox.dead"), [(0,)])

    def cut_everywhere(self, match):
        for when in UNSENT, SENT, ANSWERED, TORN:
            with self.subTest(when): self.cut(match, when)

    def test_handler_statement_cut_off_anywhere_takes_effect_once(self):
        self.cut_everywhere(effect)

    def test_handler_record_cut_off_anywhere_takes_effect_once(self):
        self.cut_everywhere(recording)

    def test_commit_whose_answer_is_lost_takes_effect_once(self):
        self.cut_everywhere(lambda request: request.text == "COMMIT" and "turn(" in request.before)
