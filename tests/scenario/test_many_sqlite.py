"""Many consumers in one relay on SQLite: they share a handle, wake-ups and their transactions, without affecting each other.
Costs are counted, in the tables and by SQLite, never timed."""
# build: plain
# quick: no
import os
import pathlib
import struct
import unittest

from many_consumers import ManyConsumers, OneRelay
from support import Case, wait_until


class Many(OneRelay, Case):
    pass


class Cost(ManyConsumers, Case):
    def test_only_consumers_matching_an_event_are_woken(self):
        """A woken consumer skips events it does not want. Nor do writes of c3 wake the others."""
        self.assertEqual(self.are_woken("position"), {"c3"})

    def test_event_for_fifty_consumers_needs_few_commits(self):
        """The log's index counts commits. Fifty separate turns would be 100 for each event."""
        def commits():
            return struct.unpack_from("=I", pathlib.Path(f"{self.db}-shm").read_bytes(), 8)[0]
        with self.many(50) as relay:
            self.emit("t")
            self.wait_for(50, ["t"], relay)
            wait_until(self.settled)
            before = commits()
            for n in range(8):
                self.emit("t")
                self.wait_for(50, ["t"] * (n + 2), relay)
                wait_until(self.settled)
            self.assertLess(commits() - before, 8 * 50)

    def test_fifty_consumers_need_few_descriptors_for_the_file(self):
        with self.many(50) as relay:
            self.emit("t")
            self.wait_for(50, ["t"], relay)
            links = [os.readlink(f"/proc/{relay.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{relay.pid}/fd")]
            self.assertLess(sum(str(self.db) in link for link in links), 20, links)
            self.assertEqual(sum("inotify" in link for link in links), 1, links)

    def test_several_workers_of_one_consumer_take_turns(self):
        with self.many(6, lanes="2") as one, self.many(6, lanes="2") as two:
            for n in range(40): self.emit(f"t{n}", f"a/{n % 4}")
            for i in range(6): wait_until(lambda: sorted(self.got(i)) == sorted(f"t{n}" for n in range(40)), what=lambda: one.output() + two.output())


if __name__ == "__main__":
    unittest.main()
