"""The program of a made-up next version: the sources as they are, with one more migration for each store, and the number that goes with it.

    program = next_version.make()   # a path, like support.BIN
    ... program knows version 2 and upgrades an outbox to it ...

Only the files that contain the number, and the migrations, are compiled; the rest is linked as built. The migrations do what
real ones do: a new column, a new table, rows filled in while others work."""
import fcntl
import functools
import os
import pathlib
import re
import subprocess
import sys

from support import BIN, ROOT

sys.path.insert(0, str(ROOT / "tests" / "sim"))
import bugs  # noqa: E402

THIS = int(re.search(r"#define SQLITE_SCHEMA_VERSION (\d+)", (ROOT / "src/store/sqlite/sqlite.h").read_text())[1])
NEXT = THIS + 1
MIGRATIONS = {
    "sqlite/sqlite_schema": f"""
ALTER TABLE outbox_consumer ADD COLUMN made_up TEXT NOT NULL DEFAULT 'none';
CREATE TABLE outbox_made_up (seq INTEGER PRIMARY KEY, type TEXT NOT NULL);
INSERT INTO outbox_made_up SELECT seq, type FROM outbox_event;
UPDATE outbox_meta SET value = '{NEXT}' WHERE name = 'schema_version';
""",
    # Others work half of the time and wait the other half.
    "postgres/postgres_migration": f"""
CREATE TABLE @schema@.made_up (seq bigint PRIMARY KEY, type text NOT NULL);
SELECT pg_catalog.pg_sleep(0.3);
-- @locked@
INSERT INTO @schema@.made_up SELECT seq, type FROM @schema@.event;
ALTER TABLE @schema@.consumer ADD COLUMN made_up text NOT NULL DEFAULT 'none';
UPDATE @schema@.meta SET value = '{NEXT}' WHERE name = 'schema_version';
""",
    # MariaDB commits each of these separately: the upgrade can stop after any of them and is then repeated.
    "mariadb/mariadb_schema": """
ALTER TABLE outbox_consumer ADD COLUMN IF NOT EXISTS made_up varchar(20) NOT NULL DEFAULT 'none';
CREATE TABLE IF NOT EXISTS outbox_made_up (nr bigint PRIMARY KEY, type varchar(255) NOT NULL) ENGINE = InnoDB;
INSERT IGNORE INTO outbox_made_up SELECT nr, type FROM outbox_event;
""",
}


def with_number(path):
    """with_number returns a source text with the next version number."""
    text = path.read_text()
    names = set(re.findall(r"\b[A-Z]+_SCHEMA_VERSION\b", text))
    define = "".join(f"#undef {name}\n#define {name} {NEXT}\n" for name in sorted(names))
    last = [found.end() for found in re.finditer(r"(?m)^#include .*\n", text)][-1]
    return text[:last] + define + text[last:]


def embedded(tree, folder, name, sql):
    """embedded returns the path, below the build tree, of the C that has the migrations of a store in it, and its text with one more."""
    is_made = lambda word: word.endswith(f"/{name}.c")
    command, = [line for line in tree.commands("outbox") if line[0].endswith("/embed") and any(map(is_made, line))]
    out = next(i for i, word in enumerate(command) if is_made(word))
    files = {"0002_made_up.sql": sql, f"{name}.c": ""}
    for file, text in files.items(): (folder / file).write_text(text)
    made = folder / f"{name}.c"
    subprocess.run([*command[:out], str(made), *command[out + 1:], str(folder / "0002_made_up.sql")], cwd=tree.build, check=True)
    return command[out], made.read_text()


@functools.cache
def make():
    """make builds the program once for each build tree, and returns its path."""
    build = pathlib.Path(BIN).parent
    tree = bugs.Tree(build)
    folder = build / "tests" / "next"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        texts = {str(path.relative_to(ROOT)): with_number(path) for path in sorted((ROOT / "src").rglob("*.c"))
                 if "_SCHEMA_VERSION" in path.read_text()}
        for place, sql in MIGRATIONS.items():
            made, text = embedded(tree, folder, place.split("/")[1], sql)
            texts[os.path.relpath(build / made, ROOT)] = text
        return str(tree.make("NEXT_VERSION", "outbox", texts))
