"""What a wake-up missed is found by the next sweep, on each store, with the bell cut off: PostgreSQL's triggers do not ring for an
emit, and a relay on SQLite hears nothing from inotify."""
# build: plain
import subprocess
import unittest

from support import Case, PgCase, wait_until

DEAF = "#include <stdint.h>\nint inotify_add_watch(int fd, const char *path, uint32_t mask) { (void)fd, (void)path, (void)mask; return 1; }\n"


class Sweep:
    def sink(self, name):
        return "--consumer", name, "--sink", f"file:{self.path(name)}"

    def got(self, name):
        path = self.path(name)
        return len(self.ndjson(path)) if path.exists() else 0

    def test_sweep_finds_what_no_bell_told_of(self):
        self.init()
        with self.deaf(*self.sink("swept"), "--sweep", "300ms") as relay:
            for n in range(1, 8):
                self.emit_unheard(n)
                wait_until(lambda: self.got("swept") == n, what=relay.output)


class Sqlite(Sweep, Case):
    def deaf(self, *args):
        source, lib = self.path("deaf.c"), self.path("deaf.so")
        source.write_text(DEAF)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", lib, source], check=True)
        return self.relay(*args, env={"LD_PRELOAD": str(lib)})

    def emit_unheard(self, n):
        self.emit(f"t{n}")


class Postgres(Sweep, PgCase):
    def deaf(self, *args):
        return self.relay(*args)

    def emit_unheard(self, n):
        self.sql(f"SET session_replication_role = replica; INSERT INTO outbox.event (type) VALUES ('t{n}')")


if __name__ == "__main__":
    unittest.main()
