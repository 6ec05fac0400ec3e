#!/usr/bin/env python3
"""guards.py PART...: the rules of CONTRIBUTING.md that no other tool checks. Silent and 0 if the tree under the
current folder keeps them; otherwise one line per breach on standard error, `file:line: problem; remedy`, and exit status 1.

    includes   an #include in src goes to a layer below, never above or beside
    width      C, SQL and shell scripts have at most 100 columns, and documents outside of tables and fenced blocks
    exports    foo.c exports only foo_*; so may its part foo_bar.c, and so does a folder that is one module by its prefix
    named      a file that src or sql names, in a comment or a message, exists
    printed    only output.c prints text that is not a literal: it escapes outside text; help is our own text
"""
import pathlib
import re
import sys

COLUMNS = 100

# From the bottom up. A folder may include only folders of lower layers. Each folder of extra
# has its own layer: claims of rows and the reader of streams are part of the library, the others
# are commands.
LAYERS = [["base"], ["net"], ["event", "rabbit", "redis"], ["store", "sink"], ["pool", "engine", "extra/rows", "extra/streams", "listing"],
          ["api"], ["admin"], ["cli"],
          ["extra/adopt", "extra/consume", "extra/gen", "extra/receive", "extra/webhook"]]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
STORES = "src/store"  # its folders are alternatives, and independent of each other
SHARED = pathlib.PurePath("src/store/db")  # except this one, on which several of them are built

# Folders that are one module, by the prefix of their exports. CONTRIBUTING.md has the same list.
FOLDER_PREFIX = {"src/store/postgres": "pg_", "src/store/sqlite": "sqlite_", "src/store/mariadb": "mdb_", "src/store/db": "db_", "src/redis": "redis_",
                 "src/rabbit": "rabbit_", "extra/adopt": "adopt_", "extra/rows": "rows_", "src/pool": "pool_",
                 "src/admin": "admin_", "src/api": "api_"}

# Migrations, which are never edited after their release.
FOREIGN_SQL = re.compile(r"sql/\w+/\d{4}_\w+\.sql$")


def files(folders, *patterns):
    """Returns the matching files below the folders, sorted, as paths relative to the current folder."""
    return sorted(path for folder in folders for pattern in patterns for path in pathlib.Path(folder).rglob(pattern) if path.is_file())


def lines(path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


# ---- includes ----

def folder(path):
    """Returns the folder of src, or below extra, that a file is in, which determines its layer."""
    return "/".join(path.parts[:2]) if path.parts[0] == "extra" else path.parts[1]


def forbidden(path, target):
    """Returns why the file may not include the header `target` of src, or None."""
    own, other = folder(path), folder(target)
    if own != other:
        if other not in LEVEL or own not in LEVEL: return f"{own if own not in LEVEL else other} has no layer; give it one in scripts/guards.py"
        if LEVEL[other] < LEVEL[own]: return None
        where = "above" if LEVEL[other] > LEVEL[own] else "beside"
        return f"{other} is {where} {own}; move what both need to a layer below, or hand it in"
    stores = path.is_relative_to(STORES) and target.is_relative_to(STORES) and len(path.parts) > 3 and len(target.parts) > 3
    if stores and target.parent not in (path.parent, SHARED): return "stores do not know each other; move what both need to src/store"
    return None


def header(name):
    """Returns the path of a header from how it is included: extra stands beside src."""
    return pathlib.Path(name) if name.startswith("extra/") else pathlib.Path("src", name)


def includes():
    for path in files(["src", "extra"], "*.[ch]"):
        for number, line in enumerate(lines(path), 1):
            named = re.match(r'#include "(\w+/.+)"', line)
            why = named and forbidden(path, header(named.group(1)))
            if why: yield path, number, f'includes "{named.group(1)}", but {why}'


# ---- width ----

def is_shell(path):
    """Returns whether a file without an extension begins like a shell script."""
    with path.open("rb") as file:
        return re.match(rb"#!.*\b(ba)?sh\b", file.readline(200)) is not None


def narrow():
    """Returns the files subject to the width limit. Python has its own."""
    yield from files(["include", "src", "extra", "tests", "bench", "examples"], "*.[ch]")
    yield from (path for path in files(["sql", "examples", "tests"], "*.sql") if not FOREIGN_SQL.match(path.as_posix()))
    scripts = [path for folder in (".", ".ci") for path in pathlib.Path(folder).glob("*") if path.is_file()]
    yield from (path for path in sorted(scripts) + files(["scripts", "bench", "examples", "packaging"], "*") if is_shell(path))


def pages():
    """Returns the documents, without hidden folders and build trees."""
    found = list(pathlib.Path(".").glob("*.md")) + files(["docs", "bench", "tests", "examples", ".ci"], "*.md")
    yield from sorted(found)


def page_lines(path):
    """Returns the numbered lines of a document that can be broken: no tables, headings and fenced blocks, and no item that is
    one word."""
    fenced = False
    for number, line in enumerate(lines(path), 1):
        if line.startswith("```"): fenced = not fenced
        elif not fenced and not line.startswith(("|", "#", "![", "    ")) and len(line.split()) > 2: yield number, line


def width():
    wide = [(path, number, line) for path in narrow() for number, line in enumerate(lines(path), 1)]
    wide += [(path, number, line) for path in pages() for number, line in page_lines(path)]
    for path, number, line in wide:
        if len(line) > COLUMNS: yield path, number, f"{len(line)} columns; break it at {COLUMNS}"


# ---- functions ----

ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\)(?!\))")
ENDS_ANOTHER = re.compile(r"\s*$|#|.*(;|\}|\*/)$")  # a line that belongs to the text before a signature


def functions(text):
    """Returns the index of the first line, the name, and whether it is static, of each function defined in the text.
    clang-format puts the brace of a function, and no other, alone into the first column."""
    for brace, line in enumerate(text):
        if line != "{": continue
        first = brace
        while first > 0 and not ENDS_ANOTHER.match(text[first - 1]): first -= 1
        signature = ATTRIBUTE.sub("", " ".join(text[first:brace]))
        name = re.search(r"(\w+)\(", signature)
        if name: yield first, name.group(1), "static" in signature[:name.start()].split()


# ---- exports ----

def prefixes(path):
    """Returns the allowed prefixes of the file's exports: its own name, that of the file it is a part of (foo_bar.c of foo.c or
    foo.h beside it), that of a folder that is one module, and last the public prefixes."""
    yield path.stem + "_"
    whole = path.stem
    while "_" in whole:
        whole = whole.rpartition("_")[0]
        if any(path.with_name(whole + ending).exists() for ending in (".c", ".h")): yield whole + "_"
    if path.parent.as_posix() in FOLDER_PREFIX: yield FOLDER_PREFIX[path.parent.as_posix()]
    yield "outbox_"


def exports():
    for path in files(["src", "extra"], "*.c"):
        allowed = tuple(prefixes(path))
        for first, name, static in functions(lines(path)):
            if static or name == "main" or name + "_" == allowed[0] or name.startswith(allowed): continue
            yield path, first + 1, f"exports {name}; call it {' or '.join(each + '*' for each in allowed[:-1])}, or move it to the file that it names"


# ---- named ----

# By its path from the top, or by its folder below sql/STORE.
FILE_NAMED = re.compile(r"(?<![\w/.>*-])(?:docs|(?:src|extra|sql|tests|scripts|include|docs|bench)(?:/[\w-]+)+|functions|internal|views|statements)/[\w-]+\.(?:c|h|sql|py|md)\b")
FIRST_MIGRATION = re.compile(r"sql/\w+/0001_\w+\.sql$")  # released: not edited when a file moves


def candidates(path, name):
    """Returns the paths that a name in this file may refer to."""
    yield pathlib.Path(name)
    stores = [part for part in path.parts if pathlib.Path("sql", part).is_dir()]
    yield from (pathlib.Path("sql", store, name) for store in stores)


def named():
    for path in files(["src", "extra", "include"], "*.[ch]") + files(["sql"], "*.sql"):
        if FIRST_MIGRATION.match(path.as_posix()): continue
        for number, line in enumerate(lines(path), 1):
            for name in FILE_NAMED.findall(line):
                if not any(each.is_file() for each in candidates(path, name)):
                    yield path, number, f"names {name}, which is not there; name the file that is meant"


# ---- printed ----

PRINTS = re.compile(r'\b(?:v?f?printf|fwrite|dprintf|vdprintf)\(|\b(?:puts|fputs)\((?!")')
PRINTERS = {"output.c", "cmd_help.c"}


def printed():
    for path in files(["src/cli", "extra"], "*.c"):
        if path.name in PRINTERS: continue
        for number, line in enumerate(lines(path), 1):
            if PRINTS.search(re.sub(r'"(?:[^"\\]|\\.)*"', '"', line)):
                yield path, number, "prints what output.c has not shown; use output_addf and output_flush, or output_note"


# ---- claims ----

TEST = re.compile(r"\s+def (test_\w+)\(self\b|(?:static )?void (\w+)\(void \*\*")
CLAIM = 60  # longer names tell a story


def claims():
    for path in files(["tests"], "*.py") + files(["tests"], "*.[ch]"):
        for number, line in enumerate(lines(path), 1):
            found = TEST.match(line)
            name = found and (found[1] or found[2])
            if name and len(name) >= CLAIM: yield path, number, f"{name} has {len(name)} characters; say the claim in less than {CLAIM}"


GUARDS = {guard.__name__: guard for guard in (includes, width, exports, named, printed, claims)}


def main(parts):
    for part in parts or GUARDS:
        if part not in GUARDS: sys.exit(f"guards: unknown part: {part} ({', '.join(GUARDS)})")
    breaches = [breach for part in parts or GUARDS for breach in GUARDS[part]()]
    for path, number, what in breaches: print(f"{path}:{number}: {what}", file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
