"""What the tests of isolation on MariaDB share: sessions on an outbox, each doing one thing at a time as it is told, as sessions_postgres.py has
them for PostgreSQL."""
import mariadb_server
from support import MariaCase


class Session:
    """One connection. Nothing begins or commits but what do() is told to."""

    def __init__(self, case):
        self.db = case.connect()

    def do(self, statement, *params):
        with self.db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())

    def emit(self, key=None, type="t.e"):
        """emit inserts an event, with a key as "aggregate/id", and gives its id."""
        aggregate, _, name = key.partition("/") if key else (None, None, None)
        return self.do("INSERT INTO outbox_event (type, aggregate_type, aggregate_id) VALUES (%s, %s, %s) RETURNING id",
                       type, aggregate, name)[0][0]


class Exact(MariaCase):
    """A MariaCase with an outbox in it. What a consumer gets is what a relay that drains it writes to a file."""

    def setUp(self):
        super().setUp()
        self.init()
        self.options, self.had = {}, {}

    def session(self):
        return Session(self)

    def register(self, consumer, ordering="key", lanes=1, start_at="beginning"):
        self.options[consumer] = ["--consumer", consumer, "--sink", f"file:{self.path(consumer)}", "--order", ordering, "--lanes", lanes,
                                  "--from", start_at]
        self.had.setdefault(consumer, 0)
        before = self.take(consumer)
        return before

    def take(self, consumer, max_events=1000):
        """take delivers what is there, and gives the ids."""
        self.drain(*self.options[consumer], "--batch", max_events)
        ids = [line["id"] for line in self.ndjson(self.path(consumer))]
        new = ids[self.had[consumer]:]
        self.had[consumer] = len(ids)
        return new

    drain_all = take


class ExactAlone(Exact):
    """An Exact on a server of its class's own, with these settings."""

    SERVER, SETTINGS = mariadb_server.MariaDB, {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = cls.SERVER(cls.SETTINGS).start()
        cls.addClassCleanup(cls.server.close)

    def init(self):
        self.server_url = self.server.url("")
        super().init()
