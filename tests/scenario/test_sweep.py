"""The next sweep finds an event whose wake-up was missed, on each store, with wake-ups cut off: PostgreSQL's triggers do not
notify for an emit, and a relay on SQLite gets nothing from inotify."""
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

    def test_sweep_finds_events_committed_without_a_wake_up(self):
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
        """An INSERT with an explicit xid notifies no worker."""
        self.sql(f"INSERT INTO outbox.event (xid, type) VALUES (pg_current_xact_id(), 't{n}')")

    def holder(self):
        """holder returns the backend that holds the wake-up lock: its pid, and when it last sent a query."""
        return self.sql("SELECT a.pid, a.query_start FROM outbox._wakeup_locks() b JOIN pg_stat_activity a USING (pid) WHERE b.alone "
                        "AND NOT b.second AND a.state = 'idle'")

    def test_sleeping_relay_stays_silent_as_others_join_and_leave(self):
        """The server records when each session last began a statement: an unchanged time means no statement. Only the lock
        holder is that quiet: a listener beside it is notified when the holder wakes, and polls every 10 s."""
        self.init()
        with self.relay(*self.sink("asleep"), "--sweep", "1h") as relay:
            wait_until(self.holder, what=relay.output)
            self.emit("first")
            wait_until(lambda: self.got("asleep") == 1, what=relay.output)
            wait_until(lambda: not self.sql("SELECT 1 FROM outbox.claim"))  # its last query before it sleeps
            asleep = self.holder()
            self.emit_unheard(1)
            with self.relay(*self.sink("other"), "--sweep", "1h") as other:
                wait_until(lambda: self.got("other") == 2, what=other.output)
                wait_until(lambda: self.sql("SELECT 1 FROM outbox._wakeup_locks() WHERE second"), what=other.output)
                self.emit_unheard(2)
            self.assertEqual((self.holder(), self.got("asleep")), (asleep, 1))
            self.emit("heard")
            wait_until(lambda: self.got("asleep") == 4, what=relay.output)


if __name__ == "__main__":
    unittest.main()
