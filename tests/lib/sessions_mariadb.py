"""Shared by the isolation tests on MariaDB: sessions on an outbox that a test steps one statement at a time, like
sessions_postgres.py for PostgreSQL."""
import mariadb_server
from support import MariaCase


class Session:
    """One connection. It begins and commits only by do()."""

    def __init__(self, case):
        self.db = case.connect()

    def do(self, statement, *params):
        with self.db.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())

    def emit(self, key=None, type="t.e"):
        """emit inserts an event, with a key as "aggregate/id", and returns its id."""
        aggregate, _, name = key.partition("/") if key else (None, None, None)
        return self.do("INSERT INTO outbox_event (type, aggregate_type, aggregate_id) VALUES (%s, %s, %s) RETURNING id",
                       type, aggregate, name)[0][0]


class Exact(MariaCase):
    """A MariaCase with an outbox in it. A consumer's deliveries are the lines that a draining relay writes to a file."""

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
        """take delivers every pending event and returns the ids."""
        self.drain(*self.options[consumer], "--batch", max_events)
        ids = [line["id"] for line in self.ndjson(self.path(consumer))]
        new = ids[self.had[consumer]:]
        self.had[consumer] = len(ids)
        return new

    drain_all = take


class ExactAlone(Exact):
    """An Exact on a private server of its class, with these settings."""

    SERVER, SETTINGS = mariadb_server.MariaDB, {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = cls.SERVER(cls.SETTINGS).start()
        cls.addClassCleanup(cls.server.close)

    def init(self):
        self.server_url = self.server.url("")
        super().init()
