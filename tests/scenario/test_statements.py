"""scripts/statements, which turns the statements of SQLite and MariaDB into C, refuses statements that would fail at run
time."""
# build: plain
import pathlib
import subprocess
import tempfile
import unittest

from support import ROOT

DROP = "-- drop_claim (consumer text, epoch int): it is over.\nDELETE FROM c WHERE consumer = :consumer AND epoch = :epoch;\n"


class Statements(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.header, self.source, self.sql = (pathlib.Path(folder.name, name) for name in ("a.h", "a.c", "a.sql"))

    def make(self, text, store="sqlite"):
        self.sql.write_text(text)
        return self.statements(store, self.sql)

    def statements(self, *words):
        return subprocess.run([ROOT / "scripts" / "statements", self.header, self.source, *words], capture_output=True, text=True)

    def make_both(self, text, other):
        self.sql.write_text(text)
        beside = self.sql.with_name("b.sql")
        beside.write_text(other)
        return self.statements("sqlite", self.sql, "mariadb", beside)

    def test_statement_becomes_a_struct_with_ordered_parameters(self):
        self.assertEqual(self.make("-- About the file.\n\n" + DROP).returncode, 0)
        self.assertIn("struct sql_drop_claim {\n    const char *consumer;\n    int64_t epoch;\n};", self.header.read_text())
        self.assertIn('"DELETE FROM c WHERE consumer = :consumer AND epoch = :epoch"', self.source.read_text())

    def test_mariadb_gets_one_placeholder_per_parameter_use(self):
        self.assertEqual(self.make("-- twice (a int, b text): both.\nSELECT ':a' FROM outbox_t WHERE x = :b AND y = :a OR z = :b;\n", "mariadb").returncode, 0)
        self.assertIn('"SELECT \':a\' FROM \\1outbox_t WHERE x = ? AND y = ? OR z = ?", twice_mariadb, 3', self.source.read_text())
        self.assertEqual(self.source.read_text().count('{"b", \'s\''), 2)

    def test_undeclared_parameters_have_the_types_of_their_names(self):
        self.assertEqual(self.make(DROP.replace(" (consumer text, epoch int)", "")).returncode, 0)
        self.assertIn("struct sql_drop_claim {\n    const char *consumer;\n    int64_t epoch;\n};", self.header.read_text())
        self.assertIn("drop_claim: no type is known for epoc", self.make("-- drop_claim: it is over.\nDELETE FROM c WHERE e = :epoc;\n").stderr)

    def test_alternatives_in_braces_make_several_statements(self):
        self.assertEqual(self.make("-- all_{up,down}: in order.\nSELECT {} FROM t ORDER BY a{, DESC};\n").returncode, 0)
        self.assertIn('"SELECT up FROM t ORDER BY a"', self.source.read_text())
        self.assertIn('"SELECT down FROM t ORDER BY a DESC"', self.source.read_text())

    def test_statement_of_two_stores_has_the_parameters_of_both(self):
        self.assertEqual(self.make_both(DROP, "-- drop_claim (epoch int, owner str): it is over.\nDELETE FROM c WHERE o = :owner AND e = :epoch;\n").returncode, 0)
        self.assertIn("struct sql_drop_claim {\n    const char *consumer;\n    int64_t epoch;\n    struct str owner;\n};", self.header.read_text())
        self.assertIn('[SQL_SQLITE] = {"DELETE FROM c WHERE consumer = :consumer AND epoch = :epoch", drop_claim_sqlite, 2}', self.source.read_text())
        self.assertIn('[SQL_MARIADB] = {"DELETE FROM c WHERE o = ? AND e = ?", drop_claim_mariadb, 2}', self.source.read_text())

    def test_store_may_declare_a_statement_empty(self):
        self.assertEqual(self.make_both(DROP, "-- drop_claim (consumer text, epoch int): they go by themselves.\nNONE;\n").returncode, 0)
        self.assertIn('[SQL_MARIADB] = {"", NULL, 0}', self.source.read_text())

    def make_shared(self, shared, sqlite, mariadb):
        files = [self.sql.with_name(name) for name in ("shared.sql", "sqlite.sql", "mariadb.sql")]
        for file, text in zip(files, (shared, sqlite, mariadb)): file.write_text(text)
        return self.statements(*(word for name, file in zip(("shared", "sqlite", "mariadb"), files) for word in (name, file)))

    def test_shared_statement_is_translated_for_each_store(self):
        text = "-- top (n int): one.\nINSERT INTO t (a) SELECT greatest(@a@, :n) WHERE 1 ON CONFLICT (a) DO UPDATE SET a = excluded.a;\n"
        self.assertEqual(self.make_shared(text, "-- @a@: its own.\nx;\n", "-- @a@: its own.\ny;\n").returncode, 0)
        self.assertIn('"INSERT INTO t (a) SELECT max(x, :n) WHERE 1 ON CONFLICT (a) DO UPDATE SET a = excluded.a"', self.source.read_text())
        self.assertIn('"INSERT INTO t (a) SELECT greatest(y, ?) WHERE 1 ON DUPLICATE KEY UPDATE a = VALUES(a)"', self.source.read_text())

    def test_store_can_override_a_shared_statement(self):
        self.assertEqual(self.make_shared(DROP, "", "-- drop_claim (epoch int): another.\nDELETE FROM d WHERE e = :epoch;\n").returncode, 0)
        self.assertIn('[SQL_SQLITE] = {"DELETE FROM c WHERE consumer = :consumer AND epoch = :epoch"', self.source.read_text())
        self.assertIn('[SQL_MARIADB] = {"DELETE FROM d WHERE e = ?"', self.source.read_text())

    def test_shared_parameter_may_be_used_by_only_one_store(self):
        text = "-- read (most int): some.\nSELECT @payload@;\n"
        self.assertEqual(self.make_shared(text, "-- @payload@: all.\np;\n", "-- @payload@: part.\nleft(p, :most);\n").returncode, 0)
        done = self.make_shared(text, "-- @payload@: all.\np;\n", "-- @payload@: all.\np;\n")
        self.assertIn("read: no store uses most", done.stderr)

    def test_parameter_cannot_have_two_types(self):
        done = self.make_both(DROP, "-- drop_claim (consumer str): it is over.\nDELETE FROM c WHERE consumer = :consumer;\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("drop_claim: consumer is str in mariadb, and text elsewhere", done.stderr)

    def test_common_fragments_are_included(self):
        self.assertEqual(self.make("-- @pair@: two.\na, b;\n\n-- both (): all.\nSELECT @pair@ FROM t WHERE c = ':no';\n").returncode, 0)
        self.assertIn('"SELECT a, b FROM t WHERE c = \':no\'"', self.source.read_text())
        self.assertIn('#define SQL_PAIR "a, b"', self.header.read_text())

    def test_inconsistent_statements_are_refused_with_the_file_name(self):
        for text, why in ((DROP.replace(", epoch int", ""), "drop_claim: declared are ['consumer'], used are ['consumer', 'epoch']"),
                          (DROP.replace("epoch int", "epoch int, lane int"), "'lane'"), (DROP.replace("int)", "number)"), "no such type: number"),
                          (DROP.replace("-- drop_claim (", "-- ("), "does not open with"), (DROP.replace(";", ""), "a semicolon at its end"),
                          (DROP.replace("epoch;", "epoch; SELECT 1;"), "one statement"), (DROP.replace("FROM c", "FROM @c@"), "@c@ is not known"),
                          (DROP + "\n" + DROP, "more than one statement is called drop_claim")):
            with self.subTest(why):
                done = self.make(text)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)
                self.assertFalse(self.header.exists())


if __name__ == "__main__":
    unittest.main()
