"""The runner's rules: which failures get a second chance, which tests a quick run must include, which run on other versions of
PostgreSQL, and which process removes the folder of the servers."""
# build: plain
import argparse
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import run  # finds those of tests/lib
import postgres_versions
import proof

CASES = {
    "once": 'mark = HERE / "mark"\nknown = mark.exists()\nmark.touch()\nassert known',
    "always": "assert False",
    "broken": 'mark = HERE / "mark"\nknown = mark.exists()\nmark.touch()\nif not known: raise checker.Broken("mail: lost (1): 7")',
    "dies": 'mark = HERE / "mark"\nknown = mark.exists()\nmark.touch()\nif not known: os.kill(os.getpid(), 9)',
    "well": "pass",
}


class Quick(unittest.TestCase):
    def passed(self, *names):
        """passed is a file whose cases with these names passed."""
        job = run.Job("build", "file", [])
        job.names = list(names)
        return job

    def test_guarantee_without_an_attack_fails_the_run(self):
        attacks = {name: [test for _, test in tests] for name, _, tests in proof.guarantees()}
        self.assertEqual(proof.unattacked([self.passed(*(tests[0] for tests in attacks.values()))]), [])
        others = [test for name, tests in attacks.items() if name != "G5" for test in tests if test not in attacks["G5"]]
        jobs = [self.passed(*others)]
        with contextlib.redirect_stdout(io.StringIO()) as out: self.assertTrue(run.spared(jobs))
        self.assertIn("not attacked: G5", out.getvalue())
        self.assertTrue(jobs[-1].failed)


class Versions(unittest.TestCase):
    def test_tests_about_postgresql_run_on_each_version(self):
        for label in (*postgres_versions.IN_EVERY_RUN, "fault/test_postgres_servers.py", "fault/test_clock.py"): self.assertTrue(postgres_versions.about_postgres(run.ROOT, label), label)
        for label in ("fault/test_mariadb.py", "scenario/test_cli.py", "store_sqlite"):
            self.assertFalse(postgres_versions.about_postgres(run.ROOT, label), label)

    def test_unavailable_version_is_skipped_and_reported(self):
        jobs = run.version_jobs("build", argparse.Namespace(versions=True, others={99: None}))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for job in jobs: run.report(run.run(job, 60))
        self.assertEqual([(job.passed, job.failed, len(job.skipped)) for job in jobs], [(0, [], 1)])
        self.assertIn("on PostgreSQL 99", out.getvalue())
        self.assertIn(str(postgres_versions.CACHE), out.getvalue())


class SecondChance(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def job(self, *names):
        """job is a file with these cases, run once."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        bodies = "".join(f"    def test_{name}(self):\n{textwrap.indent(CASES[name], ' ' * 8)}\n" for name in names)
        path = folder / "test_file.py"
        path.write_text(f"import os, pathlib, sys, unittest\nsys.path.append({str(run.ROOT / 'tests/fault')!r})\nimport checker\n"
                        f"HERE = pathlib.Path({str(folder)!r})\nclass Some(unittest.TestCase):\n{bodies}")
        return run.run(run.Job("build", "test_file.py", [run.PYTHON, "tests/cases.py", str(path)]), 60)

    def outcome(self, jobs):
        """outcome returns the exit status and the output of jobs that got their second chance."""
        run.second_chance(jobs, 60)
        with contextlib.redirect_stdout(io.StringIO()) as out: status = run.total(jobs)
        return status, out.getvalue()

    def test_case_that_passes_alone_is_flaky_but_not_a_failure(self):
        status, said = self.outcome([self.job("once", "well")])
        self.assertEqual(status, 0)
        self.assertIn("UNSTEADY build test_file.py Some.test_once", said)
        self.assertTrue(said.endswith("2 passed, 0 failed\n"), said)

    def test_case_that_fails_again_fails_the_run(self):
        status, said = self.outcome([self.job("once", "always", "well")])
        self.assertEqual(status, 1)
        self.assertTrue(said.endswith("1 passed, 2 failed\n"), said)

    def test_broken_guarantee_is_not_rerun(self):
        status, said = self.outcome([self.job("broken")])
        self.assertEqual((status, said), (1, "FAILED build test_file.py Some.test_broken\n0 passed, 1 failed\n"))

    def test_crash_is_not_rerun(self):
        status, said = self.outcome([self.job("dies", "well")])
        self.assertEqual((status, said), (1, "FAILED build test_file.py killed by signal 9\n0 passed, 1 failed\n"))

    def test_many_failing_files_are_not_rerun(self):
        many = run.UNSTEADY_AT_MOST + 1
        status, said = self.outcome([self.job("once") for _ in range(many)])
        self.assertEqual((status, said), (1, many * "FAILED build test_file.py Some.test_once\n" + f"0 passed, {many} failed\n"))


class FolderForAll(unittest.TestCase):
    """Each run is a process, like a run of all tests."""

    RUN = "import servers, sys\nwith servers.folder_for_all() as folder: print(folder, flush=True); sys.stdin.read()"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.env = {**os.environ, "TMPDIR": folder.name, "PYTHONPATH": str(run.ROOT / "tests" / "lib")}

    def start(self):
        child = subprocess.Popen([run.PYTHON, "-c", self.RUN], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        return child, pathlib.Path(child.stdout.readline().strip())

    def test_temporary_folder_is_removed_with_its_run(self):
        child, folder = self.start()
        self.assertTrue(folder.is_dir())
        child.communicate()
        self.assertFalse(folder.exists())

    def test_next_run_removes_only_folders_of_killed_runs(self):
        killed, abandoned = self.start()
        _, used = self.start()
        self.assertTrue(abandoned.is_dir())
        killed.kill()
        killed.wait()
        _, folder = self.start()
        self.assertEqual([abandoned.exists(), used.exists(), folder.exists()], [False, True, True])
