"""The documents tell the truth: their examples run and print what they show, their links lead somewhere, and the tests
and options they name exist."""
# build: plain
import json
import pathlib
import re
import subprocess
import types
import unittest

import proof
import rows
from support import BIN, ROOT, TIMEOUT, Case, PgCase, clean_env

BUILD = pathlib.Path(BIN).parent
README = ROOT / "README.md"
FIRST_STEPS = ROOT / "docs" / "first-steps.md"
FROM_C = ROOT / "docs" / "from-c.md"
OPERATIONS = ROOT / "docs" / "operations.md"
WEBHOOKS = ROOT / "docs" / "webhooks.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
# What is asked for, where it is kept beside the source.
CONTRACT = next((path for path in (folder / "shared" / "CONTRACT.md" for folder in ROOT.parents) if path.exists()), None)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# `contract/store.c:name`, `scenario/test_cli.py:name`: a test, by its path below tests/
TEST_NAME = re.compile(r"`(\w+/\w+\.(?:c|py)):(\w+)`")


def documents():
    """documents gives every .md file of the project."""
    found = [path for path in ROOT.rglob("*.md") if not re.match(r"build|\.", str(path.relative_to(ROOT)))]
    assert README in found
    return sorted(found)


def blocks(path):
    """blocks gives the fenced blocks as (language, text, whether nothing but white space stands before it since the
    last one)."""
    text, end, found = path.read_text(), 0, []
    for block in FENCE.finditer(text):
        found.append((block[1], block[2], not text[end:block.start()].strip()))
        end = block.end()
    return found


def shell_blocks(path):
    """shell_blocks gives what to run, each with what it must print; None: that does not matter."""
    found = []
    for language, text, follows in blocks(path):
        if language == "sh": found.append([text, None])
        elif language == "text" and follows and found: found[-1][1] = text
    return found


def plain(text):
    """plain takes out of an output what differs from run to run: ids, times, ages, process ids, the width of columns."""
    for pattern, name in ((r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
                          (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
                          (r"(?m)^store postgres:\S+", "store postgres:///shop:"),
                          (r"\b(\d+(ms|[smh]))+(?= old\b)", "AGE"),
                          (r"(?<= )(\d+(ms|[smh]))+(?= +\d+ +\d+ +\d+)", "AGE")):
        text = re.sub(pattern, name, text)
    return [re.sub(r" +", " ", line).strip() for line in text.strip().splitlines()]


def prose(path):
    """prose gives a document without its fenced blocks."""
    return FENCE.sub("", path.read_text())


def anchors(path):
    """anchors gives the names under which GitHub makes a document's headings reachable."""
    heads = re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def options():
    done = subprocess.run([BIN, "help", "--options"], capture_output=True, text=True, check=True, env=clean_env())
    return json.loads(done.stdout)


def shared_cases(path):
    """shared_cases gives the suites that a Python test takes cases from: files of tests/lib or of its own folder."""
    names = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    paths = [folder / f"{name}.py" for name in names for folder in (ROOT / "tests" / "lib", path.parent)]
    return [path.read_text() for path in paths if path.exists()]


def has_test(name, case):
    path = ROOT / "tests" / name
    if not path.exists(): return False
    text = path.read_text()
    if path.suffix == ".py": return any(f"    def {case}(self" in part for part in (text, *shared_cases(path)))
    listed = re.compile(rf"[A-Z_a-z]+\({case}\b[^;{{]*\)[,}}\s]")  # maybe by another file of its program
    defined = re.search(rf"void {case}\(\s*void \*\*", text)
    return defined is not None and any(listed.search(file.read_text()) for file in path.parent.glob("*.c"))


# Variables that no option has: the consumers, and passwords of sinks.
SECRETS = {"OUTBOX_CONSUMERS", "OUTBOX_MARIADB_PASSWORD", "OUTBOX_REDIS_PASSWORD", "OUTBOX_REDIS_SENTINEL_PASSWORD", "OUTBOX_NATS_PASSWORD", "OUTBOX_NATS_TOKEN",
           "OUTBOX_RABBITMQ_PASSWORD", "OUTBOX_KAFKA_PASSWORD"}


class Runs:
    """Whoever has a folder, self.dir, and runs the examples of a document there."""

    def run_blocks(self, path, **addresses):
        """run_blocks runs a document's examples in order, in one shell, in a folder of its own; with our address in place of one
        of the document's."""
        found = shell_blocks(path)
        self.assertTrue(found)
        mark = "-- end of block --"
        script = "set -euo pipefail\n" + "".join(f"{text}\necho '{mark}'\n" for text, _ in found)
        for shop, ours in addresses.items(): script = script.replace(f"=postgres:///{shop}\n", f"='{ours}'\n")
        env = clean_env()
        env["PATH"] = f"{BUILD}:{env['PATH']}"
        done = subprocess.run(["bash", "-c", script], cwd=self.dir, env=env, capture_output=True, text=True,
                              timeout=2 * TIMEOUT, stdin=subprocess.DEVNULL)
        printed = done.stdout.split(mark + "\n")
        self.assertEqual(done.returncode, 0, f"{path.name}: block {len(printed)} failed\n"
                         f"{found[min(len(printed), len(found)) - 1][0]}\n{done.stdout}{done.stderr}")
        for (text, shown), got in zip(found, printed):
            if shown is not None: self.assertEqual(plain(got), plain(shown), f"{path.name}: {text}")


class Examples(Runs, Case):
    def test_examples_of_first_steps_print_what_it_shows(self):
        self.run_blocks(FIRST_STEPS)

    def test_examples_of_operations_print_what_it_shows(self):
        self.run_blocks(OPERATIONS)

    def test_examples_of_webhooks_print_what_it_shows(self):
        self.run_blocks(WEBHOOKS)

    def compile_and_run(self, text):
        source, program, lib = self.path("app.c"), self.path("app"), BUILD / "src"
        source.write_text(text)
        subprocess.run(["gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include", source, "-o", program,
                        "-L", lib, "-loutbox", "-lsqlite3"], check=True)
        done = subprocess.run([program], cwd=self.dir, capture_output=True, text=True, timeout=TIMEOUT,
                              env=clean_env({"LD_LIBRARY_PATH": str(lib)}))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_programs_of_from_c_compile_and_run(self):
        programs = [text for language, text, _ in blocks(FROM_C) if language == "c" and "int main(" in text]
        printed = [self.compile_and_run(text) for text in programs]
        self.assertEqual(printed, ["", 'order.paid {"total":99}\n'])


class Readme(Runs, PgCase):
    def test_examples_of_the_readme_print_what_it_shows(self):
        self.run_blocks(README, shop=self.store)


class Quotes(unittest.TestCase):
    def test_code_of_from_c_that_is_no_program_stands_in_an_example(self):
        examples = [path.read_text() for path in (ROOT / "examples").glob("*.c")]
        quotes = [text for language, text, _ in blocks(FROM_C) if language == "c" and "int main(" not in text]
        self.assertTrue(quotes)
        for quote in quotes: self.assertTrue(any(quote in text for text in examples), f"in no example:\n{quote}")


class Recipes(Case):
    """The pages on adding a sink, a store and a command."""

    # What their second steps declare.
    DECLARED = "#include \"sink/sink.h\"\nextern const struct sink_ops spool_ops;\n"

    def test_files_they_show_compile(self):
        shown = [(path.name, text) for path in (ROOT / "docs").glob("adding-a-*.md")
                 for language, text, _ in blocks(path) if language == "c" and text.lstrip().startswith(("#include", "/*"))]
        self.assertEqual(sorted(name for name, _ in shown), ["adding-a-command.md", "adding-a-sink.md"])
        for name, text in shown:
            source = self.path(name + ".c")
            source.write_text(self.DECLARED + text)
            done = subprocess.run(["gcc", "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                   "-I", ROOT / "include", "-I", ROOT / "src", source], capture_output=True, text=True)
            with self.subTest(document=name): self.assertEqual((done.returncode, done.stderr), (0, ""))


class Conformance(unittest.TestCase):
    def test_has_a_row_for_each_point(self):
        self.assertEqual(len({row.name for row in rows.rows()}), 51)
        self.assertEqual(len(rows.rows()), 51)

    @unittest.skipUnless(CONTRACT, "CONTRACT.md is not kept beside this source")
    def test_quotes_every_row_of_the_contract_word_by_word(self):
        contract = re.findall(r"^\| (C\d+\.\d+) \| (.*) \|$", CONTRACT.read_text(), re.MULTILINE)
        self.assertEqual([(row.name, row.what) for row in rows.rows()], contract)

    def test_every_row_names_tests_on_each_store_it_speaks_of(self):
        for row in rows.rows():
            with self.subTest(row=row.name):
                self.assertLessEqual(set(row.stores) | set(row.gaps), set(rows.STORES))
                self.assertTrue(row.tests)
                self.assertEqual(set(row.stores) - {store for on in row.tests.values() for store in on}, set())

    def test_a_row_is_proven_only_by_tests_on_its_stores(self):
        """What ./test --rows says of a row whose test passed on one store, was skipped on the other, or is not there."""
        def said(*lines, cell="both: `scenario/test_x.py:test_y`", stores="PostgreSQL, SQLite"):
            job = types.SimpleNamespace(label="scenario/test_x.py", output="\n".join(lines))
            return rows.troubles(rows.Row("C9.1", "what", stores, cell), rows.outcomes([job]))
        on_both = ("# stores: SQLite", "ok 1 - A.test_y", "# stores: PostgreSQL", "ok 2 - B.test_y")
        self.assertEqual(said(*on_both), [])
        self.assertEqual(said(*on_both[:2]), ["test_y: not on PostgreSQL", "no test on PostgreSQL", "no test on SQLite"])
        self.assertEqual(said(*on_both[:3], "ok 2 - B.test_y # SKIP no server")[0], "test_y: skipped")
        self.assertEqual(said(*on_both[:3], "not ok 2 - B.test_y")[0], "test_y: failed")
        self.assertEqual(said()[0], "test_y: not run")
        self.assertEqual(said(cell="")[0], "no test is named")
        self.assertEqual(said(*on_both, stores="PostgreSQL, SQLite, memory"), ["no test on memory"])
        self.assertEqual(said(*on_both, stores="PostgreSQL, MariaDB (not yet)"), [])

    def test_a_c_program_tells_its_stores_by_its_groups_or_its_name(self):
        def ran(label, *lines):
            return rows.results(types.SimpleNamespace(label=label, output="\n".join(lines)))
        self.assertEqual(ran("store_sqlite", "ok 1 - a", "# ok - sqlite", "1..1", "not ok 1 - a", "# not ok - memory"),
                         [("a", "passed", ["SQLite"]), ("a", "failed", ["memory"])])
        self.assertEqual(ran("handlers_pg", "not ok 1 # SKIP a", "# ok - handlers"), [("a", "skipped", ["PostgreSQL"])])
        self.assertEqual(ran("retry", "ok 1 - a", "# ok - tests"), [("a", "passed", [])])


class References(unittest.TestCase):
    def test_every_test_that_is_named_exists(self):
        for path in documents():
            for name, case in TEST_NAME.findall(path.read_text()):
                with self.subTest(document=path.name, test=f"{name}:{case}"):
                    self.assertTrue(has_test(name, case), "no such test")

    def test_a_test_that_does_not_exist_would_be_noticed(self):
        self.assertTrue(has_test("contract/store_lease.c", "live_claim_is_never_stolen"))
        self.assertFalse(has_test("contract/store_lease.c", "live_claim_is_never"))
        self.assertFalse(has_test("contract/store.c", "must"))
        self.assertFalse(has_test("scenario/test_docs.py", "test_a_test_that_does_not"))

    def test_relative_links_lead_somewhere(self):
        for path in documents():
            for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
                if re.match(r"[a-z]+:", link): continue
                with self.subTest(document=str(path.relative_to(ROOT)), link=link):
                    name, _, anchor = link.partition("#")
                    target = (path.parent / name).resolve() if name else path
                    self.assertTrue(target.exists(), "no such file")
                    if anchor: self.assertIn(anchor, anchors(target))

    def test_every_file_that_is_named_exists(self):
        for path in documents():
            for name in re.findall(r"`((?:src|include|sql|tests|bench|docs|examples|scripts|packaging)/[\w./-]+\.\w+)`",
                                   path.read_text()):
                if "NAME" in name: continue
                with self.subTest(document=path.name, file=name):
                    self.assertTrue((ROOT / name).exists(), "no such file")

    def test_every_guarantee_is_stated_once(self):
        heads = re.findall(r"^## (G\d+)\b", GUARANTEES.read_text(), re.MULTILINE)
        self.assertEqual(heads, [f"G{i}" for i in range(1, 14)])

    def test_every_guarantee_is_attacked_in_its_own_words(self):
        stated = re.findall(r"^## (G\d+) (.*)$", GUARANTEES.read_text(), re.MULTILINE)
        self.assertEqual([(name, text) for name, text, _ in proof.guarantees()], stated)
        for name, _, tests in proof.guarantees():
            with self.subTest(guarantee=name): self.assertTrue(tests)


class Program(unittest.TestCase):
    """What documents say of the program is so."""

    def test_every_command_that_is_named_exists(self):
        listed = subprocess.run([BIN, "help"], capture_output=True, text=True, check=True, env=clean_env()).stdout
        commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", listed, re.MULTILINE)
        known = set(commands) | {command.split()[0] for command in commands}
        for path in documents():
            for first, second in re.findall(r"`outbox ([a-z]+)(?: ([a-z]+))?", prose(path)):
                with self.subTest(document=path.name, command=f"{first} {second}"):
                    self.assertIn(first, known)
                    if f"{first} list" in known or f"{first} up" in known or f"{first} check" in known:
                        self.assertIn(f"{first} {second}".strip(), known)

    def test_the_oldest_postgresql_is_the_same_everywhere(self):
        source = (ROOT / "src" / "store" / "postgres" / "connect.c").read_text()
        oldest = re.search(r"#define PG_OLDEST (\d+)", source)[1]
        said = {(path.name, number) for path in documents() if path.name != "CHANGELOG.md"
                for number in re.findall(r"PostgreSQL \(?(\d+) (?:or|and) (?:later|newer)", path.read_text())}
        self.assertIn(("README.md", oldest), said)
        self.assertEqual({number for _, number in said}, {oldest}, said)

    def test_every_name_that_begins_like_ours_is_ours(self):
        """A function or constant of the library, a table, view or trigger of SQLite or MariaDB, a metric."""
        known = SECRETS | {option["env"] for option in options()}
        for pattern, files in ((r"\b(?:outbox|OUTBOX)_\w+", ("include/*.h", "examples/*.c", "src/sink/exec_env.c", "src/extra/streams/stream_reader.c")),
                               (r"\boutbox_\w+", ("sql/sqlite/*.sql", "sql/mariadb/*.sql", "src/admin/*.c"))):
            for path in [path for glob in files for path in ROOT.glob(glob)]: known |= set(re.findall(pattern, path.read_text()))
        for path in documents():
            if path.name in ("CHANGELOG.md", "testing.md", "proof.md", "coming-from.md"): continue  # the last has a test of its own
            for name in re.findall(r"`(outbox_\w+|OUTBOX_[A-Z]+(?:_[A-Z]+)*)(?:\(\))?`", prose(path)):
                with self.subTest(document=path.name, name=name): self.assertIn(name, known)


class Options(unittest.TestCase):
    def test_every_option_that_is_documented_exists(self):
        known = {"--" + option["name"] for option in options()}
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", OPERATIONS.read_text()))
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_every_variable_that_is_documented_exists(self):
        known = {option["env"] for option in options()}
        known |= set(re.findall(r'"(OUTBOX_\w+)"', (ROOT / "src" / "sink" / "exec_env.c").read_text()))
        known |= SECRETS
        named = set(re.findall(r"\bOUTBOX_[A-Z_]*[A-Z]\b", OPERATIONS.read_text()))
        for name in ("SEARCH", "MAIL_EU"):  # consumers of an example
            known |= {f"OUTBOX_CONSUMER_{name}_{option['env'].removeprefix('OUTBOX_')}" for option in options()
                      if option["scope"] == "consumer"}
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_every_setting_is_documented_with_its_default(self):
        table = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]*?) *\|", OPERATIONS.read_text(), re.MULTILINE))
        wanted = {option["name"]: f"`{option['default']}`" if option["default"] else "-"
                  for option in options() if option["file"]}
        self.assertEqual(table, wanted)

    def test_every_finding_of_the_doctor_is_documented(self):
        files = ("cli/cmd_doctor.c", "store/postgres/doctor.c", "store/postgres/doctor_server.c", "store/sqlite/doctor.c",
                 "store/mariadb/doctor.c")
        sources = [ROOT / "src" / name for name in files]
        found = {name for path in sources for name in re.findall(r'FINDING_[A-Z]+,\s*"([a-z-]+)"', path.read_text())}
        table = re.search(r"^\| finding \| where .*?\n\n", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)[0]
        told = [name for names in re.findall(r"^\| ([a-z, -]+?) \| (?:all|(?:(?:, )?(?:PostgreSQL|SQLite|MariaDB))+) \|", table, re.MULTILINE)
                for name in names.split(", ")]
        self.assertEqual(sorted(told), sorted(found))

    def test_every_exit_code_is_documented(self):
        source = (ROOT / "src" / "cli" / "cli.h").read_text()
        codes = {0} | {int(code) for code in re.findall(r"EXIT_\w+_ = (\d+)", source)}
        documented = re.findall(r"^\| (\d+) \|", OPERATIONS.read_text(), re.MULTILINE)
        self.assertEqual(sorted(int(code) for code in documented), sorted(codes))


if __name__ == "__main__":
    unittest.main()
