"""The files that `meson install` installs are complete, minimal, and enough to build a program against, in C and in C++."""
# build: plain
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from http_endpoint import Endpoint
from support import BIN, ROOT, clean_env

BUILD = pathlib.Path(BIN).parent
SOURCE = ROOT / "tests" / "install" / "hello.c"
WEBHOOK = SOURCE.with_name("webhook.c")
# The libraries of a program that emits or runs handlers: libc, and the clients of the three databases.
NEEDED = {"libc", "libsqlite3", "libpq", "libmariadb", "ld-linux-x86-64"}


def said(*argv, env=None):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise AssertionError(f"{argv}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="ob"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        said("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.root / "dest")
        cls.dest = cls.root / "dest"

    def find(self, pattern):
        """find returns the only installed file with this name."""
        found = sorted(path for path in self.dest.rglob(pattern) if path.is_file())
        self.assertEqual(len(found), 1, f"{pattern}: {found}")
        return found[0]

    def pkg_config(self, *args):
        env = {"PKG_CONFIG_PATH": self.find("outbox.pc").parent, "PKG_CONFIG_SYSROOT_DIR": self.dest}
        return said("pkg-config", *args, "outbox", env=clean_env({k: str(v) for k, v in env.items()})).split()

    def runs(self, *compiler):
        program = self.root / compiler[0]
        said(*compiler, SOURCE, "-o", program, *self.pkg_config("--cflags", "--libs"))
        env = clean_env({"LD_LIBRARY_PATH": str(self.find("liboutbox.so.0").parent)})
        self.assertIn(str(self.dest), said("ldd", program, env=env), "not linked with the installed library")
        self.assertEqual(said(program, env=env), 'order.paid {"total": 99}\n')

    def test_only_the_two_public_headers_are_installed(self):
        headers = [path.name for path in self.dest.rglob("*.h*") if path.is_file()]
        self.assertEqual(sorted(headers), ["outbox.h", "outbox_rows.h", "outbox_test.h"])

    def test_c_program_runs_against_the_installed_library(self):
        self.runs("gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-pedantic")

    def test_cxx_program_runs_against_the_installed_library(self):
        self.runs("g++", "-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror")

    def test_pkg_config_reports_the_version(self):
        version = self.pkg_config("--modversion")[0]
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        self.assertIn(version, said(self.find("outbox"), "version"))

    def test_pkg_config_of_the_build_tree_finds_the_header(self):
        env = clean_env({"PKG_CONFIG_PATH": str(BUILD / "meson-uninstalled")})
        folders = [flag[2:] for flag in said("pkg-config", "--cflags-only-I", "outbox", env=env).split()]
        self.assertTrue(any((pathlib.Path(folder) / "outbox.h").exists() for folder in folders), folders)

    def needed(self, name):
        return set(re.findall(r"NEEDED.*\[([\w-]+)\.so", said("readelf", "-d", self.find(name))))

    def test_library_does_not_link_a_broker_client(self):
        self.assertLessEqual(self.needed("liboutbox.so.0"), NEEDED)
        self.assertTrue(self.needed("liboutbox-sinks.so.0") - NEEDED, "the sinks are built, so their libraries are needed")

    def test_broker_sinks_are_loaded_on_demand(self):
        program = self.root / "webhook"
        said("gcc", WEBHOOK, "-o", program, *self.pkg_config("--cflags", "--libs"))
        folder = self.find("liboutbox.so.0").parent
        with Endpoint() as endpoint:
            said(program, endpoint.url, env=clean_env({"LD_LIBRARY_PATH": str(folder)}))
            self.assertEqual([request.body for request in endpoint.requests], [b'{"total": 99}'])

    def test_error_names_missing_sinks_and_emits_still_work(self):
        folder = self.root / "alone"
        folder.mkdir()
        shutil.copy(self.find("liboutbox.so.0"), folder)
        env = clean_env({"LD_LIBRARY_PATH": str(folder)})
        for source in (SOURCE, WEBHOOK):
            said("gcc", source, "-o", folder / source.stem, *self.pkg_config("--cflags", "--libs"))
        self.assertIn("order.paid", said(folder / "hello", env=env))
        failed = subprocess.run([folder / "webhook", "http://127.0.0.1:1/"], env=env, capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("broker sinks are in liboutbox-sinks.so.0, which could not be loaded", failed.stdout)
        self.assertIn("install it next to liboutbox", failed.stdout)

    def test_soname_carries_the_abi_number(self):
        dynamic = said("readelf", "-d", self.find("liboutbox.so.0"))
        self.assertEqual(re.findall(r"SONAME.*\[(.*)\]", dynamic), ["liboutbox.so.0"])
        self.assertTrue(self.find("liboutbox.so").is_symlink())

    def test_library_exports_only_outbox_functions(self):
        rows = [line.split() for line in said("nm", "-D", "--defined-only", self.find("liboutbox.so.0")).splitlines()]
        # The name of the version itself is the only absolute symbol.
        exported = {name.split("@")[0] for _, kind, name in rows if kind != "A"}
        text = "".join((ROOT / "include" / name).read_text() for name in ("outbox.h", "outbox_rows.h", "outbox_test.h"))
        declared = set(re.findall(r"OUTBOX_API[^;]*?\b(outbox_\w+)\(", text))
        self.assertTrue(declared)
        self.assertEqual(exported, declared)

    def test_binary_and_library_are_hardened(self):
        for name, wanted in (("outbox", ("PIE", "NOW")), ("liboutbox.so.0", ("NOW",)), ("liboutbox-sinks.so.0", ("NOW",))):
            with self.subTest(name):
                file = self.find(name)
                dynamic, headers = said("readelf", "-dW", file), said("readelf", "-lW", file)
                symbols = said("nm", "-D", "--undefined-only", file)
                flags = re.search(r"FLAGS_1.*Flags:(.*)", dynamic)[1].split()
                self.assertLessEqual(set(wanted), set(flags))
                self.assertIn("GNU_RELRO", headers)
                self.assertRegex(headers, r"GNU_STACK.* RW ")
                self.assertNotRegex(headers, r"LOAD.* RWE ")
                self.assertIn("__stack_chk_fail", symbols)
                self.assertRegex(symbols, r"__(snprintf|vsnprintf|memcpy|read)_chk")

    def test_library_has_stack_probes_and_branch_targets(self):
        code = said("objdump", "-d", "--no-show-raw-insn", self.find("liboutbox.so.0"))
        if "x86-64" not in code: self.skipTest("other architectures have other marks")
        # Functions that use more than a page of the stack touch each page; jump targets are marked.
        self.assertRegex(code, r"or[qlb] +\$0x0,(0x[0-9a-f]+)?\(%rsp")
        for name in ("outbox_open", "outbox_emit", "outbox_run"):
            self.assertRegex(code, rf"<{name}(@@\S+)?>:\n[^\n]*endbr64", name)

    def test_binary_and_man_page_are_installed(self):
        self.assertTrue(os.access(self.find("outbox"), os.X_OK))
        self.assertEqual(self.find("outbox.1*").parent.name, "man1")
        self.assertEqual(self.find("outbox-alerts.yml").parent.name, "outbox")

    def test_systemd_unit_starts_the_installed_binary(self):
        start, = re.findall(r"^ExecStart=(\S+) ", self.find("outbox.service").read_text(), re.MULTILINE)
        self.assertEqual(self.dest / start.lstrip("/"), self.find("outbox"))
