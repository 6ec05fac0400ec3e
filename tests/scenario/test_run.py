"""./run, and how it installs its packages."""
# build: plain
# quick: no
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT, clean_env, read_ndjson, wait_until

TOOLS = ["bash", "env", "dirname", "cat"]  # the programs that packages.sh and the start of ./run call


def tree():
    """tree lists every file of the project outside the build folders."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")
                      and not (folder == str(ROOT) and name.startswith("build"))]
        found.update(os.path.join(folder, name) for name in files)
    return found


class Demo(unittest.TestCase):
    def test_demo_without_a_terminal_leaves_no_trace(self):
        with tempfile.TemporaryDirectory(prefix="ob") as tmp:
            before = tree()
            done = subprocess.run([ROOT / "run"], cwd="/", env=clean_env({"TMPDIR": tmp}), capture_output=True,
                                  text=True, timeout=150, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            self.assertEqual(tree(), before)
            self.assertEqual(os.listdir(tmp), [])
        self.assertIn("orders: 1715 committed, 285 rolled back on purpose, 1715 paid", done.stdout)
        rows = re.findall(r"^  (\w+ +\S+).* (\d+) +(\d+)  ok$", done.stdout, re.MULTILINE)
        self.assertEqual([(want, got) for _, want, got in rows], [("1715", "1715")] * 3 + [("0", "0")] * 2)

        # Counted again, independently of the script.
        search = read_ndjson(ROOT / "build" / "demo" / "search.ndjson")
        mail = read_ndjson(ROOT / "build" / "demo" / "mail.ndjson")
        kept = {str(n) for n in range(1, 2001) if n % 7 != 0}
        for events, type in ((search, "order.created"), (search, "order.paid"), (mail, "order.paid")):
            self.assertEqual({ev["aggregate_id"] for ev in events if ev["type"] == type}, kept)
        self.assertEqual({ev["type"] for ev in mail}, {"order.paid"})

    def test_demo_uses_a_private_server_and_removes_it(self):
        kept = {str(n) for n in range(1, 41) if n % 7 != 0}
        for store in "postgres", "mariadb":
            with self.subTest(store), tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as tmp:
                os.chmod(tmp, 0o711)  # the server, as nobody, needs access
                before = tree()
                done = subprocess.run([ROOT / "run", "--store", store, "--orders", "40"], cwd="/", env=clean_env({"TMPDIR": tmp}),
                                      capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
                self.assertEqual((done.returncode, done.stderr), (0, f"starting a {store} server of our own\n"), done.stdout)
                self.assertEqual(os.listdir(tmp), [])
                self.assertEqual(tree(), before)
                self.assertEqual(len(re.findall(r"  ok$", done.stdout, re.MULTILINE)), 5, done.stdout)
                search = read_ndjson(ROOT / "build" / "demo" / "search.ndjson")
                for type in "order.created", "order.paid":
                    self.assertEqual({ev["aggregate_id"] for ev in search if ev["type"] == type}, kept)
                running = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
                self.assertFalse(any(tmp.encode() in line for line in running))

    def test_failed_server_start_is_reported_with_its_output(self):
        with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as tmp:
            stub = pathlib.Path(tmp, "mariadb-install-db")
            stub.write_text("#!/bin/sh\necho no room left >&2\nexit 1\n")
            for path in tmp, stub: os.chmod(path, 0o755)
            env = clean_env({"PATH": f"{tmp}:{os.environ['PATH']}", "TMPDIR": tmp})
            done = subprocess.run([ROOT / "run", "--store", "mariadb"], env=env, capture_output=True, text=True, timeout=60,
                                  stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, os.listdir(tmp)), (1, [stub.name]))
        self.assertIn("no room left\nrun: the mariadb server did not start\n", done.stderr)

    def test_repeated_runs_never_print_warnings(self):
        for n in range(5):
            done = subprocess.run([ROOT / "run", "--orders", "20"], cwd="/", env=clean_env(), capture_output=True, text=True,
                                  timeout=150, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_concurrent_demo_is_refused_and_harmless(self):
        demo = ROOT / "build" / "demo"
        shutil.rmtree(demo, ignore_errors=True)
        first = subprocess.Popen([ROOT / "run", "--seconds", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        try:
            wait_until((demo / "shop.log").exists)
            second = subprocess.run([ROOT / "run", "--orders", "1"], capture_output=True, text=True)
        finally:
            first.terminate()
            said = first.communicate(timeout=60)[0]
        self.assertEqual(second.returncode, 75, second.stderr)
        self.assertIn("another ./run is at work", second.stderr)
        self.assertEqual(first.returncode, 0, said)
        self.assertIn("Every committed event was delivered", said)

    def test_unknown_arguments_are_refused(self):
        for args in (["--order", "5"], ["--orders"], ["--orders", "many"], ["--orders", "1", "--seconds", "1"],
                     ["--store", "oracle"], ["--store"]):
            with self.subTest(args=args):
                done = subprocess.run([ROOT / "run", *args], capture_output=True, text=True, timeout=30)
                self.assertEqual(done.returncode, 64)
                self.assertIn("usage:", done.stderr)


class BareMachine(unittest.TestCase):
    def test_build_is_configured_without_test_dependencies(self):
        with tempfile.TemporaryDirectory(prefix="ob") as tmp:
            tmp = pathlib.Path(tmp)
            known = subprocess.check_output(["pkg-config", "--variable", "pc_path", "pkg-config"], text=True)
            for path in known.strip().split(":"):
                for file in pathlib.Path(path).glob("*.pc"):
                    if file.stem != "cmocka" and not (tmp / file.name).exists(): (tmp / file.name).symlink_to(file)
            (tmp / "cmake").write_text("#!/bin/sh\nexit 1\n")
            (tmp / "cmake").chmod(0o755)
            env = clean_env({"PKG_CONFIG_LIBDIR": str(tmp), "PATH": f"{tmp}:{os.environ['PATH']}"})
            done = subprocess.run(["meson", "setup", tmp / "build", ROOT], env=env, capture_output=True, text=True,
                                  timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("cmocka found: NO", done.stdout)


class Packages(unittest.TestCase):
    """packages.sh on a machine of stubs: only /usr/bin/env is real."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ob"))
        self.addCleanup(shutil.rmtree, self.dir)
        for tool in TOOLS: (self.dir / tool).symlink_to(shutil.which(tool))
        self.stub("dpkg-query", 'case "${@: -1}" in have*) echo -n installed ;; *) exit 1 ;; esac')
        self.stub("apt-get", f'echo "apt-get $*" >>{self.dir}/calls')
        self.user(0)

    def stub(self, name, body):
        path = self.dir / name
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)

    def user(self, number):
        self.stub("id", f"echo {number}")

    def need(self, *packages):
        script = '. packaging/packages.sh; packages_need "$@"; echo went on'
        return subprocess.run([self.dir / "bash", "-c", script, "-", *packages], cwd=ROOT, capture_output=True,
                              text=True, env={"PATH": str(self.dir)}, stdin=subprocess.DEVNULL, timeout=30)

    def calls(self):
        path = self.dir / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_apt_is_not_called_when_nothing_is_missing(self):
        self.assertEqual(self.need("have-a", "have-b").stdout, "went on\n")
        self.assertEqual(self.calls(), [])

    def test_root_installs_only_what_is_missing(self):
        self.assertEqual(self.need("have-a", "lack-b", "lack-c").stdout, "went on\n")
        self.assertEqual(self.calls(), ["apt-get update",
                                        "apt-get install -y --no-install-recommends lack-b lack-c"])

    def test_ordinary_user_installs_with_sudo(self):
        self.user(1000)
        self.stub("sudo", f'echo "sudo" >>{self.dir}/calls; [ "$1" != -n ] || shift; exec "$@"')
        self.assertEqual(self.need("lack-a").stdout, "went on\n")
        self.assertEqual(self.calls(), ["sudo", "apt-get update", "sudo",
                                        "apt-get install -y --no-install-recommends lack-a"])

    def shell(self, script, **env):
        return subprocess.run([self.dir / "bash", "-c", f". packaging/packages.sh; {script}; echo went on"], cwd=ROOT,
                              capture_output=True, text=True, env={"PATH": str(self.dir), **env}, stdin=subprocess.DEVNULL,
                              timeout=30)

    def test_uninstallable_package_does_not_block_others(self):
        self.stub("apt-get", f'case "$*" in *-s*broken*) exit 100 ;; esac; echo "apt-get $*" >>{self.dir}/calls')
        self.lists = self.dir / "lists"
        self.lists.mkdir()
        (self.lists / "a_Packages").touch()
        done = self.shell("packages_try have-a lack-broken lack-b", packages_lists=str(self.lists))
        self.assertEqual((done.returncode, done.stdout), (0, "went on\n"), done.stderr)
        self.assertEqual([call for call in self.calls() if " -s " not in call],
                         ["apt-get install -y --no-install-recommends lack-b"])
        self.assertIn("the tests that need lack-broken are skipped: it cannot be installed here\n", done.stderr)

    def node(self, has_pg, npm=None):
        self.stub("node", f"[ {has_pg} = yes ]")
        self.stub("apt-get", "exit 100")
        if npm: self.stub("npm", npm)
        for tool in "mkdir", "timeout": (self.dir / tool).symlink_to(shutil.which(tool))
        return self.shell("packages_node_pg", XDG_CACHE_HOME=str(self.dir / "cache"))

    def test_node_module_is_installed_outside_the_tree(self):
        done = self.node("no", f'echo "npm $*" >>{self.dir}/calls')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(self.calls()[0], rf"^npm install --prefix {self.dir}/cache/outbox-tests .* pg@8$")
        self.assertNotIn("skipped", done.stderr)

    def test_installed_module_is_not_fetched(self):
        self.node("yes", f'echo "npm $*" >>{self.dir}/calls')
        self.assertEqual(self.calls(), [])

    def test_webhook_libraries_are_kept_outside_the_tree_or_skipped(self):
        for tool in "mkdir", "timeout": (self.dir / tool).symlink_to(shutil.which(tool))
        self.stub("node", "exit 1")
        for status, said in ((0, ""), (1, "the tests that need {} are skipped: {} cannot get it from here\n")):
            self.stub("npm", f'echo "npm $*" >>{self.dir}/calls; exit {status}')
            self.stub("python3", f'case "$*" in *--version) exit 0 ;; *-c*) exit 1 ;; esac; echo "pip $*" >>{self.dir}/calls; exit {status}')
            done = self.shell("packages_webhooks", XDG_CACHE_HOME=str(self.dir / "cache"))
            self.assertEqual((done.returncode, done.stdout), (0, "went on\n"), done.stderr)
            for what, tool in (("node's module standardwebhooks", "npm"), ("Python's module standardwebhooks", "pip")):
                self.assertIn(said.format(what, tool), done.stderr)
        folder = f"{self.dir}/cache/outbox-tests/webhooks"
        self.assertRegex(self.calls()[0], rf"^npm install --prefix {folder} .* standardwebhooks@1$")
        self.assertRegex(self.calls()[1], rf"^pip -m pip install .* --target {folder}/python .* standardwebhooks>=1.1,<2$")

    def test_without_a_registry_node_tests_are_skipped_visibly(self):
        for npm, why in ((None, "there is no npm to get it with"), ("exit 1", "npm cannot get it from here")):
            with self.subTest(why):
                for name in "mkdir", "timeout": (self.dir / name).unlink(missing_ok=True)
                done = self.node("no", npm)
                self.assertEqual((done.returncode, done.stdout), (0, "went on\n"), done.stderr)
                self.assertIn(f"the tests that need node's module pg are skipped: {why}\n", done.stderr)

    def refused(self):
        done = self.need("have-a", "lack-b")
        self.assertEqual(done.returncode, 69)
        self.assertNotIn("went on", done.stdout)
        self.assertIn("apt-get install -y --no-install-recommends lack-b\n", done.stderr)

    def test_script_exits_69_and_names_the_command_without_root(self):
        self.user(1000)
        self.refused()
        self.assertEqual(self.calls(), [])

    def test_refusing_sudo_counts_as_missing(self):
        self.user(1000)
        self.stub("sudo", "exit 1")
        self.refused()

    def test_run_exits_69_without_root_or_sudo(self):
        self.user(1000)
        done = subprocess.run([ROOT / "run"], capture_output=True, text=True, env={"PATH": str(self.dir)},
                              stdin=subprocess.DEVNULL, timeout=30)
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertRegex(done.stderr, r"apt-get install .*gcc .*libsqlite3-dev")
