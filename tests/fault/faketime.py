"""Wrong clocks: programs under libfaketime, which reads an offset from a file at each call, so that the clock of a running
program can jump. Only the wall clock: CLOCK_MONOTONIC stays true.

    clock = Clock(folder / "clock")
    ... a program is started with clock.env() ...
    clock.set(-3600)
"""
import os
import pathlib

FOUND = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
HOUR = 3600


class Clock:
    def __init__(self, path, seconds=0):
        self.path = pathlib.Path(path)
        self.set(seconds)

    def set(self, seconds):
        """set moves the clock so many seconds from the true time, in one step."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        os.rename(new, self.path)

    def env(self):
        return {"LD_PRELOAD": str(FOUND[0]), "FAKETIME_TIMESTAMP_FILE": str(self.path), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
