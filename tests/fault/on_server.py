"""Cases on a private PostgreSQL server, which they may stop, kill and copy."""
import uuid

import workload
import producer
import servers
from support import TIMEOUT, Case, PgCase, wait_until


class ServerCase(Case):
    """A Case on a server of its class, with its own database."""

    postgres = True
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.server = servers.Postgres(cls.settings).start()
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        super().setUp()
        self.dbname = f"t_{uuid.uuid4().hex[:12]}"
        self.store = self.server.create_database(self.dbname)
        self.out = self.path("out")

    def sql(self, statement, *params):
        return servers.execute(self.store, statement, *params)

    ask = PgCase.ask

    def mail(self, *more, **kw):
        return self.relay("--consumer", "mail", "--sink", f"file:{self.out}", "--lease", "500ms", *more, **kw)

    def got(self):
        return [ev["payload"] for ev in self.ndjson(self.out)]

    def wait_for(self, payloads, *relays, timeout=TIMEOUT):
        wait_until(lambda: set(self.got()) >= set(payloads), timeout, lambda: "".join(
            [f"missing {sorted(set(payloads) - set(self.got()))[:20]}\n", *(r.output() for r in relays)]))

    def asleep(self):
        return self.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted")


class Load(workload.Workload, ServerCase):
    PREFIX = "outbox."
    TABLE, FILL = producer.TABLE, producer.FILL

    def rows(self):
        return self.sql("SELECT id::text, aggregate_id, payload::text FROM outbox.event")
