"""scripts/guards.py, which scripts/lint runs as includes, width, exports, named, printed and claims, finds what breaks a rule and nothing else."""
# build: plain
import importlib.util
import pathlib
import subprocess
import tempfile
import unittest

from support import ROOT

GUARDS = ROOT / "scripts" / "guards.py"
BODY = "{\n    return 0;\n}\n"


def layered(top):
    """layered returns the folders that have a layer: those of src, and those in extra."""
    yield from (path.name for path in (top / "src").iterdir() if path.is_dir())
    yield from (f"extra/{path.name}" for path in (top / "extra").iterdir() if path.is_dir())


class Guards(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)

    def complaints(self, part, **files):
        """complaints runs one guard on a tree of these files: path=text, with two underscores for each slash."""
        for name, text in files.items():
            path = self.tree / f"{name.replace('__', '/')}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([GUARDS, part], cwd=self.tree, capture_output=True, text=True)
        said = done.stderr.splitlines()
        self.assertEqual((done.returncode, done.stdout), (1 if said else 0, ""))
        return said

    def finds(self, part, place, what, **files):
        """finds expects one complaint, about that place."""
        said = self.complaints(part, **files)
        self.assertEqual(len(said), 1, said)
        self.assertTrue(said[0].startswith(place + ": "), said)
        self.assertIn(what, said[0])

    def test_includes_go_down_the_layers(self):
        text = '#include <stdio.h>\n#include "outbox.h"\n#include "engine/turn.h"\n#include "base/err.h"\n'
        self.assertEqual(self.complaints("includes", **{"src__engine__turn.c": text}), [])
        self.finds("includes", "src/store/store.h:3", "engine is above store", **{"src__store__store.h": text})
        for other, why in (("sink/sink.h", "sink is beside store"), ("extra/rows/rows.h", "extra/rows is above store"), ("moon/rise.h", "moon has no layer")):
            with self.subTest(other):
                self.finds("includes", "src/store/store.h:1", why, **{"src__store__store.h": f'#include "{other}"\n'})

    def test_no_store_includes_another(self):
        self.finds("includes", "src/store/sqlite/open.c:1", "stores do not know each other",
                   **{"src__store__sqlite__open.c": '#include "store/postgres/handle.h"\n#include "store/store.h"\n'})
        self.finds("includes", "src/store/db/trim.c:2", "stores do not know each other",
                   **{"src__store__db__trim.c": '#include "store/db/db.h"\n#include "store/sqlite/sqlite.h"\n', "src__store__sqlite__open.c": '#include "store/db/db.h"\n'})

    def test_lines_over_100_columns_are_found(self):
        wide = "x" * 100 + "\n" + "é" * 100 + "\n/* " + "x" * 98 + "\n"
        for path in ("include__outbox.h", "src__base__a.c", "sql__postgres__functions__a.sql", "tests__unit__a.c"):
            with self.subTest(path):
                self.finds("width", path.replace("__", "/") + ":3", "101 columns", **{path: wide})
                (self.tree / path.replace("__", "/")).unlink()
        self.finds("width", "scripts/build:4", "101 columns", scripts__build="#!/bin/sh\n" + wide)

    def test_wide_document_lines_outside_tables_are_found(self):
        wide = " ".join(["word"] * 21)
        fine = f"# {wide}\n\n| {wide} |\n\n```sh\n{wide}\n```\n\n    {wide}\n\n* `{'x' * 120}`\n"
        self.assertEqual(self.complaints("width", docs__page=fine, **{"docs__page.md": fine, "README.md": fine}), [])
        self.finds("width", "docs/page.md:13", "104 columns; break it at 100", **{"docs__page.md": fine + f"\n{wide}\n"})
        self.finds("width", "tests/list.md:1", "106 columns", **{"docs__page.md": fine, "tests__list.md": f"* {wide}\n"})

    def test_migrations_and_python_files_may_be_wider(self):
        wide = "x" * 200
        self.assertEqual(self.complaints("width", **{"sql__sqlite__0001_outbox.sql": wide, "scripts__a.py": wide,
                                                     "scripts__embed": "#!/usr/bin/env python3\n" + wide}), [])

    def test_file_exports_only_its_own_prefix(self):
        good = "int a_open(void)\n" + BODY + "\nstatic int other(void)\n" + BODY + "\nOUTBOX_API int outbox_open(int x,\n        int y)\n" + BODY
        self.assertEqual(self.complaints("exports", **{"src__base__a.c": good, "src__store__postgres__emit.c": "int pg_open(void)\n" + BODY,
                                                       "src__cli__main.c": "int main(void)\n" + BODY, "src__cli__cmd_x.c": "int cmd_x(void)\n" + BODY}), [])
        self.finds("exports", "src/base/b.c:1", "exports a_open; call it b_*", **{"src__base__b.c": "int a_open(void)\n" + BODY})
        (self.tree / "src/base/b.c").unlink()
        self.finds("exports", "src/store/sqlite/emit.c:1", "call it emit_* or sqlite_*", **{"src__store__sqlite__emit.c": "int pg_open(void)\n" + BODY})

    def test_part_exports_only_the_prefix_of_the_whole(self):
        part = {"src__sink__http_answer.c": "int http_judge(void)\n" + BODY + "\nint http_answer_read(void)\n" + BODY}
        self.finds("exports", "src/sink/http_answer.c:1", "exports http_judge; call it http_answer_*, or", **part)
        for whole in ("src__sink__http.c", "src__sink__http.h"):
            with self.subTest(whole):
                self.assertEqual(self.complaints("exports", **part, **{whole: ""}), [])
                (self.tree / whole.replace("__", "/")).unlink()
        self.finds("exports", "src/sink/exec.c:1", "exports http_judge; call it exec_*, or", **{"src__sink__exec.c": "int http_judge(void)\n" + BODY, "src__sink__http_answer.c": ""})

    def test_references_to_missing_files_are_reported(self):
        there = {"sql__postgres__internal__turn.sql": "", "src__base__a.h": "", "docs__reference.md": ""}
        good = "/* internal/turn.sql, sql/postgres/internal/turn.sql, src/base/a.h, docs/reference.md, sql/<store>/0001_outbox.sql, x/turn.sql */\n"
        self.assertEqual(self.complaints("named", **there, **{"src__store__postgres__a.c": good}), [])
        self.finds("named", "src/store/postgres/a.c:2", "names functions/turn.sql", **{"src__store__postgres__a.c": good + "/* functions/turn.sql */\n"})
        self.finds("named", "src/store/postgres/a.c:2", "names docs/gone.md", **{"src__store__postgres__a.c": good + "/* docs/gone.md */\n"})
        (self.tree / "src/store/postgres/a.c").unlink()
        self.finds("named", "sql/sqlite/statements/a.sql:1", "names internal/turn.sql", **{"sql__sqlite__statements__a.sql": "-- see internal/turn.sql\n", "sql__sqlite__0001_outbox.sql": "-- see internal/turn.sql\n"})

    def test_only_output_c_prints_non_literals(self):
        fine = '    puts("a");\n    fputs("b (%s)\\n", stderr);\n    snprintf(a, 1, "%s", b);\n    "printf(\\"x\\")"\n'
        self.assertEqual(self.complaints("printed", **{"src__cli__a.c": fine, "src__cli__output.c": "fwrite(p, 1, n, stdout);\n"}), [])
        for line in ('printf("%s", a);', "puts(why);", "fputs(why, stdout);", 'fprintf(stderr, "%d", 1);', "fwrite(p, 1, n, stdout);"):
            with self.subTest(line): self.finds("printed", "src/cli/a.c:1", "output_addf", **{"src__cli__a.c": line})

    def test_long_test_names_are_found(self):
        long, short = "a_" * 29 + "bc", "a_" * 29 + "b"
        text = "class T:\n    def test_{}(self):\n        pass\n"
        self.assertEqual(self.complaints("claims", **{"tests__unit__test_a.c": f"static void {short}(void **state)\n", "tests__a__test_a.py": text.format(short[5:])}), [])
        self.finds("claims", "tests/unit/test_a.c:1", "less than 60", **{"tests__unit__test_a.c": f"static void {long}(void **state)\n"})
        (self.tree / "tests/unit/test_a.c").unlink()
        self.finds("claims", "tests/a/test_a.py:2", "less than 60", **{"tests__a__test_a.py": text.format(long[5:])})

    def test_folder_prefixes_match_the_guide(self):
        spec = importlib.util.spec_from_file_location("guards", GUARDS)
        guards = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(guards)
        guide = (ROOT / "CONTRIBUTING.md").read_text()
        for folder, prefix in guards.FOLDER_PREFIX.items():
            self.assertIn(f"`{prefix}*`", guide, folder)
        for folder in guards.FOLDER_PREFIX: self.assertTrue((ROOT / folder).is_dir(), folder)
        self.assertEqual(sorted(guards.LEVEL), sorted(layered(ROOT)))

    def test_lint_runs_the_guards(self):
        done = subprocess.run([ROOT / "scripts" / "lint", "includes"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
