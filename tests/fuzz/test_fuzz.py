"""A minute of libFuzzer for each target, starting from its corpus; only in a soak, and only with clang. In every run the C
tests fuzz_* replay the corpora themselves."""
# build: plain
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from support import ROOT, SOAK

HERE = pathlib.Path(__file__).parent
TREE = ROOT / "build-fuzz"
SECONDS = int(os.environ.get("OUTBOX_FUZZ_SECONDS", "60"))
CLANG = shutil.which("clang")
DICTIONARIES = {"admin": "http.dict", "consume": "redis.dict", "listen": "http.dict", "redis": "redis.dict", "redis_sentinel": "redis.dict", "webhook": "http.dict"}
# A sanitizer's finding ends the run, as everywhere; without this, undefined behaviour is only an unread line on stderr.
ENV = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}


@unittest.skipUnless(SOAK, "needs a minute for each target: ./test --soak")
@unittest.skipUnless(CLANG, "clang is not installed (Debian packages clang and libclang-rt-14-dev)")
class Fuzz(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (TREE / "build.ninja").exists():
            subprocess.run(["meson", "setup", TREE, "-Dfuzz=true", "-Db_sanitize=address,undefined", "-Db_lundef=false",
                            "-Doptimization=1"], cwd=ROOT, check=True, env={**os.environ, "CC": CLANG}, capture_output=True)
        targets = [f"tests/fuzz/{path.stem}" for path in HERE.glob("fuzz_*.c")]
        subprocess.run(["ninja", "-C", TREE, *targets], check=True, capture_output=True)

    def fuzz(self, name, found):
        words = [f"-dict={HERE / DICTIONARIES[name]}"] if name in DICTIONARIES else []
        done = subprocess.run([TREE / "tests" / "fuzz" / f"fuzz_{name}", f"-max_total_time={SECONDS}", "-max_len=4096", *words,
                               "-timeout=10", "-malloc_limit_mb=64", "-print_final_stats=1", f"-artifact_prefix={found}/broken-", found,
                               HERE / "corpus" / name], capture_output=True, text=True, errors="replace", env=ENV)
        broken = [path.read_bytes() for path in pathlib.Path(found).glob("broken-*")]
        self.assertEqual(done.returncode, 0, f"the input, for corpus/{name}: {broken}\n{done.stderr[-4000:]}")
        return done.stderr

    def test_no_input_breaks_a_parser(self):
        for source in sorted(HERE.glob("fuzz_*.c")):
            name = source.stem.removeprefix("fuzz_")
            with self.subTest(name), tempfile.TemporaryDirectory() as found:
                said = self.fuzz(name, found)
                runs, = re.findall(r"number_of_executed_units: *(\d+)", said)
                edges, features = re.findall(r"cov: (\d+) ft: (\d+)", said)[-1]
                print(f"fuzz {name}: {runs} inputs in {SECONDS} s, {edges} edges, {features} features")
