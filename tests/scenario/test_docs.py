"""The documents are accurate: their examples print the documented output, their links resolve, and the tests and options they
name exist."""
# build: plain
import contextlib
import json
import pathlib
import re
import subprocess
import types
import unittest

import proof
import rows
from pages import BROKERS, items, section
from support import BIN, ROOT, TIMEOUT, Case, PgCase, clean_env

BUILD = pathlib.Path(BIN).parent
README = ROOT / "README.md"
FIRST_STEPS = ROOT / "docs" / "first-steps.md"
C_PAGE = ROOT / "docs" / "c.md"
OPERATIONS = ROOT / "docs" / "operations.md"
REFERENCE = ROOT / "docs" / "reference.md"
WEBHOOKS = ROOT / "docs" / "webhooks.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
# The required features, where that file is kept beside the source.
CONTRACT = next((path for path in (folder / "shared" / "CONTRACT.md" for folder in ROOT.parents) if path.exists()), None)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# `contract/store.c:name`, `scenario/test_cli.py:name`: a test, by its path below tests/
TEST_NAME = re.compile(r"`(\w+/\w+\.(?:c|py)):(\w+)`")


def documents():
    """documents returns every .md file of the project."""
    found = [path for path in ROOT.rglob("*.md") if not re.match(r"build|\.", str(path.relative_to(ROOT)))]
    assert README in found
    return sorted(found)


def blocks(path):
    """blocks returns the fenced blocks as (language, text, whether only white space separates it from the previous one)."""
    text, end, found = path.read_text(), 0, []
    for block in FENCE.finditer(text):
        found.append((block[1], block[2], not text[end:block.start()].strip()))
        end = block.end()
    return found


def shell_blocks(path):
    """shell_blocks returns the commands to run, each with its expected output; None: any."""
    found = []
    for language, text, follows in blocks(path):
        if language == "sh": found.append([text, None])
        elif language == "text" and follows and found: found[-1][1] = text
    return found


def plain(text):
    """plain removes the parts of an output that differ between runs: ids, times, ages, process ids, the width of columns."""
    for pattern, name in ((r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
                          (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
                          (r"(?m)^store postgres:\S+", "store postgres:///shop:"),
                          (r"\b(\d+(ms|[smh]))+(?= old\b)", "AGE"),
                          (r"(?<= )(\d+(ms|[smh]))+(?= +\d+ +\d+ +\d+)", "AGE")):
        text = re.sub(pattern, name, text)
    return [re.sub(r" +", " ", line).strip() for line in text.strip().splitlines()]


def prose(path):
    """prose returns a document without its fenced blocks."""
    return FENCE.sub("", path.read_text())


def anchors(path):
    """anchors returns the names by which GitHub addresses a document's headings."""
    heads = re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def options():
    done = subprocess.run([BIN, "help", "--options"], capture_output=True, text=True, check=True, env=clean_env())
    return json.loads(done.stdout)


def shared_cases(path):
    """shared_cases returns the suites that a Python test imports cases from: files of tests/lib or of its own folder."""
    names = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    paths = [folder / f"{name}.py" for name in names for folder in (ROOT / "tests" / "lib", path.parent)]
    return [path.read_text() for path in paths if path.exists()]


def has_test(name, case):
    path = ROOT / "tests" / name
    if not path.exists(): return False
    text = path.read_text()
    if path.suffix == ".py": return any(f"    def {case}(self" in part for part in (text, *shared_cases(path)))
    listed = re.compile(rf"[A-Z_a-z]+\({case}\b[^;{{]*\)[,}}\s]")  # possibly by another file of its program
    defined = re.search(rf"void {case}\(\s*void \*\*", text)
    return defined is not None and any(listed.search(file.read_text()) for file in path.parent.glob("*.c"))


# Variables that no option has: the consumers, and passwords of sinks.
SECRETS = {"OUTBOX_CONSUMERS", "OUTBOX_MARIADB_PASSWORD", "OUTBOX_REDIS_PASSWORD", "OUTBOX_REDIS_SENTINEL_PASSWORD", "OUTBOX_NATS_PASSWORD", "OUTBOX_NATS_TOKEN",
           "OUTBOX_RABBITMQ_PASSWORD", "OUTBOX_KAFKA_PASSWORD"}


class Runs:
    """A mixin for cases with a folder, self.dir, that run a document's examples there."""

    def run_blocks(self, path, **addresses):
        """run_blocks runs a document's examples in order, in one shell, in a new folder, with our addresses in place of the
        document's."""
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
    def test_first_steps_examples_print_the_documented_output(self):
        self.run_blocks(FIRST_STEPS)

    def test_operations_examples_print_the_documented_output(self):
        self.run_blocks(OPERATIONS)

    def test_webhooks_examples_print_the_documented_output(self):
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

    def test_programs_on_the_c_page_compile_and_run(self):
        programs = [text for language, text, _ in blocks(C_PAGE) if language == "c" and "int main(" in text]
        printed = [self.compile_and_run(text) for text in programs]
        self.assertEqual(printed, ["", 'order.paid {"total":99}\n'])


class Readme(Runs, PgCase):
    def test_readme_examples_print_the_documented_output(self):
        self.run_blocks(README, shop=self.store)

    def test_python_producer_on_the_page_emits_events(self):
        import psycopg2
        self.init()
        self.sql("CREATE TABLE orders (id bigint, paid boolean); INSERT INTO orders VALUES (42, false)")
        program, = (text for language, text, _ in blocks(README) if language == "python")
        with contextlib.closing(psycopg2.connect(self.store)) as connection:
            exec(program, {"connection": connection})
        self.assertEqual(self.sql("SELECT type, aggregate_id, payload::text, paid FROM outbox.event, orders"),
                         [("order.paid", "42", '{"total": 99}', True)])


    def test_java_parameter_types_are_accepted(self):
        """JDBC calls a string varchar, and a long int8."""
        self.init()
        for n, kinds in enumerate(("varchar, varchar, varchar, varchar", "varchar, varchar, int8, varchar")):
            key = "'42'" if n == 0 else "42"
            self.sql(f"PREPARE e{n} ({kinds}) AS SELECT outbox.emit($1, $2, $3, $4)")
            self.sql(f"EXECUTE e{n} ('order.paid', 'order', {key}, '{{\"total\": 99}}')")
        self.assertEqual(self.sql("SELECT aggregate_id, payload::text FROM outbox.event"), [("42", '{"total": 99}')] * 2)


class Quotes(unittest.TestCase):
    def test_snippets_on_the_c_page_are_quotes(self):
        examples = [path.read_text() for path in (ROOT / "examples").glob("*.c")]
        quotes = [text for language, text, _ in blocks(C_PAGE) if language == "c" and "int main(" not in text]
        self.assertTrue(quotes)
        for quote in quotes: self.assertTrue(any(quote in text for text in examples), f"no example contains:\n{quote}")


class Recipes(Case):
    """The page on adding a sink, a store and a command."""

    # The declarations of their second steps.
    DECLARED = "#include \"sink/sink.h\"\nextern const struct sink_ops spool_ops;\n"

    def test_files_shown_on_the_page_compile(self):
        shown = [text for language, text, _ in blocks(ROOT / "docs" / "extending.md")
                 if language == "c" and text.lstrip().startswith(("#include", "/*"))]
        self.assertEqual(len(shown), 2)
        for text in shown:
            source = self.path("shown.c")
            source.write_text(self.DECLARED + text)
            done = subprocess.run(["gcc", "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                   "-I", ROOT / "include", "-I", ROOT / "src", source], capture_output=True, text=True)
            with self.subTest(file=text[:40]): self.assertEqual((done.returncode, done.stderr), (0, ""))


class Conformance(unittest.TestCase):
    def test_conformance_has_a_row_for_each_point(self):
        self.assertEqual(len({row.name for row in rows.rows()}), 51)
        self.assertEqual(len(rows.rows()), 51)

    @unittest.skipUnless(CONTRACT, "CONTRACT.md is not part of this source tree")
    def test_conformance_quotes_the_contract_verbatim(self):
        contract = re.findall(r"^\| (C\d+\.\d+) \| (.*) \|$", CONTRACT.read_text(), re.MULTILINE)
        self.assertEqual([(row.name, row.what) for row in rows.rows()], contract)

    def test_every_row_names_tests_for_each_of_its_stores(self):
        for row in rows.rows():
            with self.subTest(row=row.name):
                self.assertLessEqual(set(row.stores) | set(row.gaps), set(rows.STORES))
                self.assertTrue(row.tests)
                self.assertEqual(set(row.stores) - {store for on in row.tests.values() for store in on}, set())

    def test_row_is_proven_only_by_tests_on_its_stores(self):
        """The report of ./test --rows on a row whose test passed on one store, was skipped on the other, or is missing."""
        def said(*lines, cell="both: `scenario/test_x.py:test_y`", stores="PostgreSQL, SQLite"):
            job = types.SimpleNamespace(label="scenario/test_x.py", output="\n".join(lines))
            return rows.troubles(rows.Row("C9.1", "what", stores, cell), rows.outcomes([job]))
        on_both = ("# stores: SQLite", "ok 1 - A.test_y", "# stores: PostgreSQL", "ok 2 - B.test_y")
        self.assertEqual(said(*on_both), [])
        self.assertEqual(said(*on_both[:2]), ["test_y: not on PostgreSQL", "no test on PostgreSQL", "no test on SQLite"])
        self.assertEqual(said(*on_both[:3], "ok 2 - B.test_y # SKIP no server")[0], "test_y: skipped")
        self.assertEqual(said(*on_both[:3], "not ok 2 - B.test_y")[0], "test_y: failed")
        self.assertEqual(said()[0], "test_y: not run")
        self.assertEqual(said(cell="")[0], "names no test")
        self.assertEqual(said(*on_both, stores="PostgreSQL, SQLite, memory"), ["no test on memory"])
        self.assertEqual(said(*on_both, stores="PostgreSQL, MariaDB (not yet)"), [])

    def test_c_program_names_its_stores_by_group_or_name(self):
        def ran(label, *lines):
            return rows.results(types.SimpleNamespace(label=label, output="\n".join(lines)))
        self.assertEqual(ran("store_sqlite", "ok 1 - a", "# ok - sqlite", "1..1", "not ok 1 - a", "# not ok - memory"),
                         [("a", "passed", ["SQLite"]), ("a", "failed", ["memory"])])
        self.assertEqual(ran("handlers_pg", "not ok 1 # SKIP a", "# ok - handlers"), [("a", "skipped", ["PostgreSQL"])])
        self.assertEqual(ran("retry", "ok 1 - a", "# ok - tests"), [("a", "passed", [])])


class References(unittest.TestCase):
    def test_every_named_test_exists(self):
        for path in documents():
            for name, case in TEST_NAME.findall(path.read_text()):
                with self.subTest(document=path.name, test=f"{name}:{case}"):
                    self.assertTrue(has_test(name, case), "no such test")

    def test_missing_test_is_noticed(self):
        self.assertTrue(has_test("contract/store_lease.c", "live_claim_is_never_stolen"))
        self.assertFalse(has_test("contract/store_lease.c", "live_claim_is_never"))
        self.assertFalse(has_test("contract/store.c", "must"))
        self.assertFalse(has_test("scenario/test_docs.py", "test_missing_test_would"))

    def test_relative_links_resolve(self):
        for path in documents():
            for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
                if re.match(r"[a-z]+:", link): continue
                with self.subTest(document=str(path.relative_to(ROOT)), link=link):
                    name, _, anchor = link.partition("#")
                    target = (path.parent / name).resolve() if name else path
                    self.assertTrue(target.exists(), "no such file")
                    if anchor: self.assertIn(anchor, anchors(target))

    def test_every_named_file_exists(self):
        for path in documents():
            for name in re.findall(r"`((?:src|include|sql|tests|bench|docs|examples|scripts|packaging)/[\w./-]+\.\w+)`",
                                   path.read_text()):
                if "NAME" in name: continue
                with self.subTest(document=path.name, file=name):
                    self.assertTrue((ROOT / name).exists(), "no such file")

    def test_every_guarantee_is_stated_once(self):
        heads = re.findall(r"^## (G\d+)\b", GUARANTEES.read_text(), re.MULTILINE)
        self.assertEqual(heads, [f"G{i}" for i in range(1, 14)])

    def test_every_guarantee_has_attacks_under_its_exact_text(self):
        stated = re.findall(r"^## (G\d+) (.*)$", GUARANTEES.read_text(), re.MULTILINE)
        self.assertEqual([(name, text) for name, text, _ in proof.guarantees()], stated)
        for name, _, tests in proof.guarantees():
            with self.subTest(guarantee=name): self.assertTrue(tests)


class Program(unittest.TestCase):
    """Statements of the documents about the program are true."""

    def test_every_named_command_exists(self):
        listed = subprocess.run([BIN, "help"], capture_output=True, text=True, check=True, env=clean_env()).stdout
        commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", listed, re.MULTILINE)
        known = set(commands) | {command.split()[0] for command in commands}
        for path in documents():
            for first, second in re.findall(r"`outbox ([a-z]+)(?: ([a-z]+))?", prose(path)):
                with self.subTest(document=path.name, command=f"{first} {second}"):
                    self.assertIn(first, known)
                    if f"{first} list" in known or f"{first} up" in known or f"{first} check" in known:
                        self.assertIn(f"{first} {second}".strip(), known)

    def test_oldest_supported_postgresql_is_the_same_everywhere(self):
        source = (ROOT / "src" / "store" / "postgres" / "connect.c").read_text()
        oldest = re.search(r"#define PG_OLDEST (\d+)", source)[1]
        said = {(path.name, number) for path in documents() if path.name != "CHANGELOG.md"
                for number in re.findall(r"PostgreSQL \(?(\d+) (?:or|and) (?:later|newer)", path.read_text())}
        self.assertIn(("README.md", oldest), said)
        self.assertEqual({number for _, number in said}, {oldest}, said)

    def test_every_name_with_our_prefix_exists(self):
        """A function or constant of the library, a table, view or trigger of SQLite or MariaDB, a metric."""
        known = SECRETS | {option["env"] for option in options()}
        for pattern, files in ((r"\b(?:outbox|OUTBOX)_\w+", ("include/*.h", "examples/*.c", "src/sink/exec_env.c", "extra/streams/stream_reader.c")),
                               (r"\boutbox_\w+", ("sql/sqlite/*.sql", "sql/mariadb/*.sql", "src/admin/*.c"))):
            for path in [path for glob in files for path in ROOT.glob(glob)]: known |= set(re.findall(pattern, path.read_text()))
        for path in documents():
            if path.name in ("testing.md", "coming-from.md") or ROOT / "tests" in path.parents: continue  # the second has a separate test
            for name in re.findall(r"`(outbox_\w+|OUTBOX_[A-Z]+(?:_[A-Z]+)*)(?:\(\))?`", prose(path)):
                with self.subTest(document=path.name, name=name): self.assertIn(name, known)


class Options(unittest.TestCase):
    def test_every_documented_option_exists(self):
        known = {"--" + option["name"] for option in options()}
        pages = (OPERATIONS, REFERENCE, FIRST_STEPS, BROKERS, WEBHOOKS)
        named = {option for page in pages for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text())}
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_every_documented_variable_exists(self):
        known = {option["env"] for option in options()}
        known |= set(re.findall(r'"(OUTBOX_\w+)"', (ROOT / "src" / "sink" / "exec_env.c").read_text()))
        known |= SECRETS
        named = set(re.findall(r"\bOUTBOX_[A-Z_]*[A-Z]\b", OPERATIONS.read_text() + REFERENCE.read_text()))
        for name in ("SEARCH", "MAIL_EU"):  # consumers of an example
            known |= {f"OUTBOX_CONSUMER_{name}_{option['env'].removeprefix('OUTBOX_')}" for option in options()
                      if option["scope"] == "consumer"}
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_every_setting_is_documented_with_its_default(self):
        said = items(section(REFERENCE, "## Settings of a relay")) + items(section(REFERENCE, "## Settings of a consumer"))
        table = {name: default or "-" for name, default in (re.match(r"`([a-z-]+)`(?: \((`[^`]*`)\))?: ", item).groups() for item in said)}
        wanted = {option["name"]: f"`{option['default']}`" if option["default"] else "-"
                  for option in options() if option["file"]}
        self.assertEqual(table, wanted)

    def test_every_finding_of_the_doctor_is_documented(self):
        sources = [ROOT / "src/cli/cmd_doctor.c", *ROOT.glob("src/store/*/doctor*.c")]
        named = r'(?:FINDING_|SAY\()[A-Z]+,\s*"([a-z-]+)"', r'snprintf\(l->name, sizeof l->name, "([a-z-]+)"'
        found = {name for path in sources for pattern in named for name in re.findall(pattern, path.read_text())}
        checks = (ROOT / "sql/postgres/statements/doctor.sql").read_text()
        found |= set(re.findall(r"^-- ([a-z-]+):", checks, re.MULTILINE))
        said = [re.match(r"([a-z, -]+) \((?:all|(?:(?:, )?(?:PostgreSQL|SQLite|MariaDB))+)\): ", item) for item in items(section(OPERATIONS, "## Asking the doctor"))]
        told = [name for item in said for name in item[1].split(", ")]
        self.assertEqual(sorted(told), sorted(found))

    def test_every_exit_code_is_documented(self):
        source = (ROOT / "src" / "cli" / "cli.h").read_text()
        codes = {0} | {int(code) for code in re.findall(r"EXIT_\w+_ = (\d+)", source)}
        documented = [re.match(r"(\d+), ", item)[1] for item in items(section(REFERENCE, "## Exit codes"))]
        self.assertEqual(sorted(int(code) for code in documented), sorted(codes))


MIB = 1 << 20


class Numbers(unittest.TestCase):
    """Numbers in the code are the same in the documents: here those that are not defaults of options."""

    # Phrases of docs/reference.md: the folder of src and the constant with the same number, and the unit.
    FIXED = {r"holds at most (\d+) batches at once": ("engine", "INFLIGHT_BATCHES", 1),
             r"the first has (\d+) events at most": ("engine", "START", 1),
             r"waits at most (\d+) ms for the next claim": ("api", "SETTLE_WAIT_MS", 1),
             r"its lane taken looks again after (\d+) ms": ("engine", "TAKEN_WAIT", 10**6),
             r"a sink that is down is probed after (\d+) ms": ("engine", "DELAY_MIN_MS", 1),
             r"a sink that is down [^.]* at least every (\d+) s": ("engine", "DELAY_MAX_MS", 10**3),
             r"a store that is away is tried again after (\d+) ms": ("engine", "STORE_WAIT_MIN", 10**6),
             r"a store that is away [^.]* at least every (\d+) s": ("engine", "STORE_WAIT_MAX", 10**9),
             r"deletes old events at least every (\d+) s": ("api", "TRIM_EVERY_MAX_MS", 10**3),
             r"warns every (\d+) min about a consumer": ("api", "TRIM_WARN_EVERY_MS", 60 * 10**3),
             r"asks again at least every (\d+) s": ("engine", "STANDBY_MAX", 10**9),
             r"on postgresql looks every (\d+) ms": ("store/postgres", "POLL_ALONE", 1),
             r"every (\d+) ms while nothing comes": ("store/postgres", "POLL_ALONE_IDLE", 1),
             r"from (\d+) workers on": ("pool", "POOL_WORKERS", 1),
             r"ends its search after (\d+) sequence numbers": ("store", "STORE_LOOK", 1),
             r"takes (\d+) connections": ("admin", "CONNECTIONS_MAX", 1),
             r"(\d+) per address": ("admin", "CONNECTIONS_PER_ADDRESS", 1)}
    # The same for other pages: the page, the phrase, and the constant.
    ELSEWHERE = [("guarantees.md", r"may wait up to (\d+) ms for its settlement", "api", "SETTLE_WAIT_MS", 1),
                 ("architecture.md", r"waits up to (\d+) ms for the next claim", "api", "SETTLE_WAIT_MS", 1),
                 ("architecture.md", r"the next such claim waits (\d+) ms, as long as there are fresh events", "engine", "PARKED_PAUSE", 10**6),
                 ("architecture.md", r"batches start at (\d+) events", "engine", "START", 1),
                 ("architecture.md", r"less than (\d+) ms doubles the next", "engine", "QUICK", 10**6),
                 ("architecture.md", r"one that took more than (\d+) s halves it", "engine", "SLOW", 10**9),
                 ("architecture.md", r"the circuit\*\* then waits (\d+) ms", "engine", "DELAY_MIN_MS", 1),
                 ("architecture.md", r"the circuit\*\* then waits \d+ ms, doubling to (\d+) s", "engine", "DELAY_MAX_MS", 10**3),
                 ("architecture.md", r"the turn is retried after (\d+) ms", "engine", "STORE_WAIT_MIN", 10**6),
                 ("architecture.md", r"the turn is retried after \d+ ms, doubling to (\d+) s", "engine", "STORE_WAIT_MAX", 10**9),
                 ("architecture.md", r"relays poll every (\d+) ms", "store/postgres", "POLL_ALONE", 1),
                 ("architecture.md", r"relays poll every \d+ ms \((\d+) ms", "store/postgres", "POLL_ALONE_IDLE", 1),
                 ("architecture.md", r"polls every (\d+) ms", "store/postgres", "POLL_AWAKE", 1),
                 ("architecture.md", r"polls every \d+ ms \((\d+) ms under load", "store/postgres", "POLL_BUSY", 1),
                 ("stores.md", r"it checks every (\d+) ms", "store/postgres", "POLL_ALONE", 1),
                 ("stores.md", r"which check every (\d+) ms", "store/postgres", "POLL_ALONE", 1),
                 ("operations.md", r"asks at least every (\d+) seconds", "engine", "STANDBY_MAX", 10**9),
                 ("operations.md", r"the search ends after (\d+) sequence numbers", "store", "STORE_LOOK", 1),
                 ("brokers.md", r"at most one window of (\d+) events", "sink", "RABBITMQ_WINDOW", 1),
                 ("metrics.md", r"\*\*limits\*\*: (\d+) connections", "admin", "CONNECTIONS_MAX", 1)]
    LIMITS = {r"`type`: 1 to (\d+) bytes": ("EVENT_TYPE_MAX", 1), r"`aggregate_type`: 1 to (\d+) bytes": ("EVENT_KEY_MAX", 1),
              r"`aggregate_id`: 1 to (\d+) bytes": ("EVENT_KEY_MAX", 1), r"`tenant`: 1 to (\d+) bytes": ("EVENT_KEY_MAX", 1),
              r"`idempotency_key`: 1 to (\d+) bytes": ("EVENT_KEY_MAX", 1), r"at most (\d+) strings": ("EVENT_HEADERS_COUNT", 1),
              r"(\d+) kib in total": ("EVENT_HEADERS_MAX", 1 << 10), r"json, (\d+) mib unless": ("EVENT_PAYLOAD_MAX", MIB),
              r"(\d+) mib at most": ("EVENT_PAYLOAD_CEILING", MIB), r"ten years \((\d+) days\)": ("EVENT_AHEAD_MAX_MS", 24 * 3600 * 1000)}

    def constant(self, folder, name):
        """constant returns the value of a #define in a folder of src; it may be in any of the folder's files."""
        said = {text for path in (ROOT / "src" / folder).glob("*.[ch]")
                for text in re.findall(rf"^#define {name} (.*?)(?:\s*/\*.*)?$", path.read_text(), re.MULTILINE)}
        self.assertEqual(len(said), 1, f"#define {name} in src/{folder}")
        text = re.sub(r"\((?:size_t|int64_t)\)|INT64_C", "", said.pop()).replace("MS_NS", "10**6")
        self.assertRegex(text, r"^[\d\s*()<]+$", name)
        return eval(text)

    def words(self, heading):
        return re.sub(r"(?<=\d),(?=\d)", "", " ".join(items(section(REFERENCE, heading))).lower())

    def test_documented_constants_match_the_code(self):
        text = self.words("## Fixed numbers")
        for pattern, (folder, name, unit) in self.FIXED.items():
            with self.subTest(constant=name):
                self.assertEqual([int(n) * unit for n in re.findall(pattern, text)], [self.constant(folder, name)], pattern)
        known = {match[1] for pattern in self.FIXED for match in re.finditer(pattern, text)}
        self.assertEqual(set(re.findall(r"\d+", text)) - known, set(), "numbers that the test does not compare")

    def test_numbers_on_other_pages_match_the_code(self):
        for page, pattern, folder, name, unit in self.ELSEWHERE:
            text = re.sub(r"(?<=\d),(?=\d)", "", re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text()).lower())
            with self.subTest(page=page, words=pattern):
                self.assertEqual([int(n) * unit for n in re.findall(pattern, text)], [self.constant(folder, name)])

    def test_broker_url_defaults_match_the_code(self):
        """`name` (`default`) in the lists of docs/brokers.md is a row of that broker's table of options."""
        def rows(*files):
            text = "".join((ROOT / "src" / "sink" / file).read_text() for file in files)
            return dict(re.findall(r'\{"([a-z-]+)",[\s\\]*"[^"]*",[\s\\]*"([^"]*)",', text))
        part = section(BROKERS, "## Where to")
        for broker in ("Kafka", "NATS", "RabbitMQ", "Redis"):
            said = " ".join(items(part.split(f"\n{broker}:\n", 1)[1].split("\n\n", 1)[0]))
            known, found = rows(*(p.name for p in (ROOT / "src" / "sink").glob(f"{broker.lower()}*.c"))), re.findall(r"`([a-z-]+)` \(`([^`]+)`", said)
            self.assertTrue(found)
            for name, default in found:
                if name == "routing-key": continue  # it depends on the format
                with self.subTest(broker=broker, name=name): self.assertEqual(known.get(name), default)

    def test_event_limits_match_the_code(self):
        text = self.words("## Limits of an event")
        for pattern, (name, unit) in self.LIMITS.items():
            with self.subTest(constant=name, words=pattern):
                self.assertEqual([int(n) * unit for n in re.findall(pattern, text)], [self.constant("event", name)])

    def test_retry_presets_match_the_code(self):
        source = (ROOT / "src" / "engine" / "retry.c").read_text()
        ms = {"s": 10**3, "min": 60 * 10**3, "h": 3600 * 10**3}
        said = {name: (int(base) * ms[bu], int(cap) * ms[cu], jitter == "full", int(n)) for name, base, bu, cap, cu, jitter, n in
                re.findall(r"`(\w+)`: base (\d+) (s|min), cap (\d+) (min|h), (full|no) jitter, (\d+) attempts", "\n".join(items(section(REFERENCE, "## Retry policies"))))}
        self.assertEqual(set(said), {"patient", "fast", "slow"})
        for name, (base, cap, jitter, attempts) in said.items():
            row = re.search(rf'{{"{name}",\s*{{(.*?)}}', source, re.DOTALL)[1]
            fields = {field: value for field, value in re.findall(r"\.(\w+) = ([^,}]+)", row)}
            with self.subTest(preset=name):
                self.assertEqual((eval(fields["base_ms"]), eval(fields["cap_ms"]), fields.get("jitter", "true") == "true", int(fields["attempts"])),
                                 (base, cap, jitter, attempts))

    def test_documented_number_of_planted_bugs_is_right(self):
        patches = len(list((ROOT / "tests" / "sim" / "bugs").glob("*.patch")))
        said = re.findall(r"each of (\d+) deliberate bugs is detected", (ROOT / "docs" / "proof.md").read_text())
        self.assertEqual(said, [str(patches)])


if __name__ == "__main__":
    unittest.main()
