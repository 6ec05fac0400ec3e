"""cases.py FILE [NAME...]: runs one file of unittest cases (those whose name contains a NAME) and reports them as TAP.

TAP goes to the standard output alone; everything the tests print goes to standard error."""
import importlib.util
import os
import pathlib
import resource
import sys
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "lib"))

import signal_defaults  # noqa: E402


def spent():
    """spent returns the current time and the CPU seconds of this process and its reaped children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)


class Tap(unittest.TestResult):
    """One line per case, with the reasons as comments before it. A failing subtest fails its case."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.count = 0
        self.bad = 0
        self.why = []

    def startTest(self, test):
        super().startTest(test)
        self.why = []
        self.skip = None
        self.begun = spent()

    def stopTest(self, test):
        super().stopTest(test)
        seconds, cpu = (now - then for now, then in zip(spent(), self.begun))
        print(f"# time: {seconds:.2f} {cpu:.2f} {test.id().split('.', 1)[-1]}", file=self.out)
        if used := getattr(test, "stores", None): print(f"# stores: {' '.join(sorted(used))}", file=self.out)
        if self.why: self.line("not ok", test, "")
        elif self.skip is not None: self.line("ok", test, f" # SKIP {self.skip}")
        else: self.line("ok", test, "")

    def line(self, verdict, test, more):
        self.count += 1
        self.bad += verdict != "ok"
        for text in self.why:
            print("".join(f"# {part}\n" for part in text.splitlines()), end="", file=self.out)
        name = test.id().split(".", 1)[-1] if isinstance(test, unittest.TestCase) else test.id()
        print(f"{verdict} {self.count} - {name}{more}", file=self.out, flush=True)

    def addFailure(self, test, err):
        self.why.append(self._exc_info_to_string(err, test))
        # A failing setUpClass or import is reported for a holder that never starts.
        if not isinstance(test, unittest.TestCase): self.line("not ok", test, "")

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None: self.why.append(f"{subtest}\n{self._exc_info_to_string(err, test)}")

    def addUnexpectedSuccess(self, test):
        self.why.append("was expected to fail")

    def addSkip(self, test, reason):
        self.skip = reason.replace("\n", " ")
        if not isinstance(test, unittest.TestCase): self.line("ok", test, f" # SKIP {self.skip}")


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def main(path, names):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal_defaults.forget_signals()
    os.environ["OUTBOX_TAP"] = str(out.fileno())  # for tests that report figures, as comments
    sys.path[:0] = [str(HERE / "lib"), str(pathlib.Path(path).resolve().parent)]
    suite = load(pathlib.Path(path))
    if os.environ.get("OUTBOX_TEST_PG_BIN"):  # another version of PostgreSQL than the installed one
        suite = unittest.TestSuite(case for case in flatten(suite) if getattr(case, "postgres", True))
    if names:
        suite = unittest.TestSuite(case for case in flatten(suite) if any(name in case.id() for name in names))
    result = Tap(out)
    suite.run(result)
    print(f"1..{result.count}", file=out, flush=True)
    return 1 if result.bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
