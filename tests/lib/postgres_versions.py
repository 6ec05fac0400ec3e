"""postgres_versions.py: other versions of PostgreSQL than the installed one, for ./test --versions; the newest also in every
whole run.

packaging/packages.sh puts the server's programs into a cache outside the tree. A run on one of them gets the address of a server of
that version ($OUTBOX_TEST_PG) and its programs ($OUTBOX_TEST_PG_BIN), which every server that a test starts then runs. Of a
Python file only the cases about PostgreSQL are run (`postgres` of their class)."""
import contextlib
import os
import pathlib
import re
import shutil
import tempfile

import servers

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "outbox-tests")
MAJORS = (16, 17, 18)
PROGRAMS = ("store_postgres",)  # C tests
FOLDERS = ("isolation/", "fault/")  # of Python tests
ABOUT = re.compile(r"\bPgCase\b|^@on_each_store\b|\bExact(Alone)?\b|^    postgres = True$|^from on_server import ", re.MULTILINE)
# The tests of a whole run on the newest version: the store's contract, and the ways in which a newer server could treat
# transactions, claims and plans differently.
IN_EVERY_RUN = ("store_postgres", "isolation/test_claims.py", "isolation/test_visibility.py", "isolation/test_physical.py", "isolation/test_claim_batch.py")


def cached(major):
    """cached returns the folder of a version in the cache, or None."""
    found = sorted(CACHE.glob(f"postgres-{major}.*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    return found[-1] if found else None


def about_postgres(root, label):
    """about_postgres tells whether a test concerns PostgreSQL and so runs on each version."""
    if label in PROGRAMS: return True
    if not label.startswith(FOLDERS) or not label.endswith(".py") or "mariadb" in label: return False
    return bool(ABOUT.search((root / "tests" / label).read_text()))


@contextlib.contextmanager
def programs(major):
    """programs returns the folder of a version's programs. As root we run servers as user nobody, who may not read root's
    cache, so the programs are copied."""
    with contextlib.ExitStack() as stack:
        folder = cached(major)
        if os.geteuid() == 0:
            copy = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="obver")))
            copy.chmod(0o755)
            shutil.copytree(folder, copy / "postgres", symlinks=True)
            folder = copy / "postgres"
        yield folder / "bin"


@contextlib.contextmanager
def server(major):
    """server starts a server of that version, and returns the environment for the tests that run on it."""
    with programs(major) as folder, servers.Postgres(programs=folder) as postgres:
        yield {"OUTBOX_TEST_PG": postgres.url(""), "OUTBOX_TEST_PG_BIN": str(folder)}
