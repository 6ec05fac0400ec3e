"""A table of the application's own on MariaDB, made a source of events by the statements that docs/mariadb.md has for it."""
# build: plain
import contextlib
import re
import threading
import time

import mariadb_server
from support import ROOT, MariaCase, wait_until

CONFIG = 78


def statements():
    """statements gives those of the document; a semicolon at the end of a line ends one."""
    text = re.search(r"```sql\n(LOCK TABLES.*?)```", (ROOT / "docs" / "mariadb.md").read_text(), re.DOTALL)[1]
    return [statement for statement in re.split(r";\n", text) if statement.strip()]


class Adopting(MariaCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.sql("CREATE TABLE legacy (id INT AUTO_INCREMENT PRIMARY KEY, type VARCHAR(50), order_id VARCHAR(50), payload TEXT, "
                 "processed_at DATETIME) ENGINE = InnoDB")
        self.out = self.path("out")

    def write(self, stop, wrote):
        """write inserts rows until it is told to stop, two in each transaction, and counts what was committed."""
        db = mariadb_server.connect(self.store)
        with contextlib.closing(db), db.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("BEGIN")
                for _ in range(2):
                    cursor.execute("INSERT INTO legacy (type, order_id, payload) VALUES ('t', '1', '{}')")
                    wrote.append(cursor.lastrowid)
                cursor.execute("COMMIT")
                time.sleep(0.001)

    def run_until(self, broken_off):
        """run_until runs the statements on a connection that ends after as many."""
        db = mariadb_server.connect(self.store)
        with contextlib.closing(db), db.cursor() as cursor:
            for statement in statements()[:broken_off]: cursor.execute(statement)

    def test_rows_become_events_once_though_others_write_and_it_breaks_off(self):
        self.sql("INSERT INTO legacy (type, order_id, payload, processed_at) VALUES ('t', '1', '{}', NOW())")
        stop, wrote = threading.Event(), []
        writer = threading.Thread(target=self.write, args=(stop, wrote))
        writer.start()
        try:
            for n in (*range(1, len(statements())), len(statements())):
                before = len(wrote)
                wait_until(lambda: len(wrote) > before + 10)
                self.run_until(n)
            before = len(wrote)
            wait_until(lambda: len(wrote) > before + 10)
        finally:
            stop.set()
            writer.join()
        self.drain("--consumer", "c", "--sink", f"file:{self.out}")
        row_of = dict(self.sql("SELECT id, CAST(idempotency_key AS CHAR) FROM outbox_event"))
        got = [row_of[event["id"]] for event in self.ndjson(self.out)]
        self.assertEqual(sorted(got), sorted(f"legacy {id}" for id in wrote))

    def test_adopt_is_refused_and_says_where_to_read_on(self):
        said = self.outbox("adopt", "legacy", "--yes", status=CONFIG).stderr
        self.assertRegex(said, "legacy cannot be adopted.*docs/mariadb.md")
