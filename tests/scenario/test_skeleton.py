"""outbox migrate gen --service NAME --out-dir DIR: its output is compiled and run, on both stores."""
# build: plain
import json
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess

import psycopg2
from support import BIN, ROOT, Case, PgCase, clean_env, wait_until

BUILD = pathlib.Path(BIN).parent
USAGE, CONFIG = 64, 78


class Skeleton:
    """Claims about every store. run_sql runs an SQL file as a tool would, independently of us."""

    def gen(self, service, *more, **kw):
        return self.outbox("migrate", "gen", f"--service={service}", "--out-dir", self.path("svc"), *more, **kw)

    def make(self):
        """make compiles boot.c against the library of this build, as its Makefile says."""
        folder = self.path("pc")
        folder.mkdir(exist_ok=True)
        lib = next(BUILD.rglob("liboutbox.so")).parent
        folder.joinpath("outbox.pc").write_text(f"Name: outbox\nDescription: -\nVersion: 0\nLibs: -L{lib} -loutbox\n"
                                                f"Cflags: -I{ROOT / 'include'}\n")
        subprocess.run(["make", "-s", "CFLAGS=-Werror -pedantic"], cwd=self.path("svc"), check=True, capture_output=True,
                       env=clean_env({"PKG_CONFIG_PATH": str(folder)}))
        return {"LD_LIBRARY_PATH": str(lib), "OUTBOX_STORE": ""}

    def boot(self, env):
        """boot is the unchanged program, on the store that was written into it."""
        env = {k: v for k, v in env.items() if v}
        return ["env", "-u", "OUTBOX_STORE", "-C", str(self.path("svc")), *(f"{k}={v}" for k, v in env.items()), "./boot"]

    def check(self, service):
        said = self.gen(service).stdout.split()
        self.assertEqual([pathlib.Path(line).name for line in said], ["0001_outbox.sql", "outbox.ini", "boot.c", "Makefile"])
        self.run_sql(self.path("svc").joinpath("0001_outbox.sql").read_text())
        env = self.make()
        boot = self.boot(env)
        subprocess.run([*boot, "emit", "bill.sent"], check=True, timeout=60)

        # the program delivers, and ends in order
        child = self.spawn(*boot, log="boot.log")
        wait_until(lambda: "bill.sent" in child.output(), what=child.output)
        child.signal(signal.SIGTERM)
        child.wait(expect=0)

        # so does a relay with the configuration, which continues where the program stopped
        subprocess.run([*boot, "emit", "bill.paid"], check=True, timeout=60)
        ini = ["-c", self.path("svc") / "outbox.ini"]
        nowhere = {"OUTBOX_STORE": ""}
        shown = {r["name"]: r["value"] for r in self.json("config", "show", *ini, env=nowhere)
                 if r["section"] == f"consumer {service}"}
        self.assertEqual((shown["preset"], shown["batch"], shown["receipts"]), ("dispatcher", "50", "yes"))
        out = self.in_folder("relay", "-c", "outbox.ini", "--drain")
        self.assertEqual([json.loads(line)["type"] for line in out.splitlines()], ["bill.paid"])

    def in_folder(self, *args):
        done = subprocess.run([BIN, *args], cwd=self.path("svc"), env=clean_env(), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_generated_service_compiles_and_runs(self):
        self.check("nodii-tenant-service")

    def test_existing_files_are_never_overwritten(self):
        self.gen("shop")
        again = self.gen("shop", "--json")
        self.assertEqual({f["name"]: f["written"] for f in json.loads(again.stdout)["files"]},
                         {"0001_outbox.sql": False, "outbox.ini": False, "boot.c": False, "Makefile": False})
        boot, ini = self.path("svc") / "boot.c", self.path("svc") / "outbox.ini"
        boot.write_text("mine")
        ini.unlink()
        said = self.gen("shop", status=CONFIG).stderr
        self.assertIn("boot.c already exists with different content; nothing was written", said)
        self.assertEqual((boot.read_text(), ini.exists()), ("mine", False))
        boot.unlink()
        boot.symlink_to(self.path("elsewhere"))
        self.gen("shop", status=CONFIG)
        self.assertFalse(self.path("elsewhere").exists())


class OnSqlite(Skeleton, Case):
    def setUp(self):
        super().setUp()
        self.store = f"sqlite:{self.db}"

    def run_sql(self, text):
        db = sqlite3.connect(self.db)
        db.executescript(text)
        db.close()

    def test_each_migration_tool_gets_its_files(self):
        names = {"flyway": ["V1__outbox.sql"], "golang-migrate": ["000001_outbox.up.sql", "000001_outbox.down.sql"]}
        for tool, files in names.items():
            folder = self.path(tool)
            self.outbox("migrate", "gen", "--tool", tool, "--out-dir", folder)
            self.assertEqual(sorted(p.name for p in folder.iterdir()), sorted(files))
        up, down = (self.path("golang-migrate").joinpath(n).read_text() for n in names["golang-migrate"])
        self.run_sql(up)
        self.emit("order.paid")
        self.run_sql(down)
        self.assertEqual(self.sql("SELECT name FROM sqlite_master WHERE name LIKE 'outbox%'"), [])
        self.outbox("migrate", "gen", "--json", status=USAGE)

    def test_bad_names_are_refused_with_a_suggestion(self):
        for name, advice in (("größe x", "gr-e-x"), ("a'b", "a-b"), ('a"b;--', "a-b---"[:5]), ("a/b", "a-b"), ("", None),
                             ("a\nb", "a-b"), ("é", None), ("s" * 70, "s" * 52 + '"')):
            said = self.gen(name, status=USAGE).stderr
            if advice: self.assertIn(f'use "{advice}', said)
            else: self.assertIn("name", said)
        postgres = {"OUTBOX_STORE": "postgres:///x"}
        self.assertIn("is 3 bytes too long", self.gen("s" * 55, status=USAGE, env=postgres).stderr)
        self.assertIn("PostgreSQL reserves names", self.gen("pg_x", status=USAGE, env=postgres).stderr)
        self.assertFalse(self.path("svc").exists())


class OnPostgres(Skeleton, PgCase):
    def run_sql(self, text):
        self.sql(text)

    def test_names_that_need_quotes_are_quoted(self):
        for name in ("Select", "user", "9.lives", "-x-", "s" * 52):
            shutil.rmtree(self.path("svc"), ignore_errors=True)
            self.gen(name)
            self.run_sql(self.path("svc").joinpath("0001_outbox.sql").read_text())
            ini = ["-c", self.path("svc") / "outbox.ini"]
            nowhere = {"OUTBOX_STORE": ""}
            event = self.outbox("emit", "bill.sent", *ini, env=nowhere).stdout.strip()
            self.assertEqual(json.loads(self.outbox("relay", *ini, "--drain", env=nowhere).stdout)["id"], event)
            found = self.sql(f'SELECT event_id::text, dispatched_at IS NULL FROM "{name}_outbox"."{name}_outbox"')
            self.assertEqual(found, [(event, False)])
            self.assertEqual(self.sql(f'SELECT count(*) FROM "{name}_outbox"."{name}_outbox_dlq"'), [(0,)])
            self.assertRegex(self.path("svc").joinpath("boot.c").read_text(), rf'#define SERVICE "{re.escape(name)}"')
