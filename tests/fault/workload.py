"""Producers and relays that work while they or their server are killed, and the check afterwards. A store provides:

    class Load(workload.Workload, ServerCase):
        PREFIX = "outbox."
        TABLE, FILL = ...    # producer.py's accounts
        def rows(self): ...  # [(id, key, payload as text)] of all events
"""
import json
import pathlib
import sys
import time

from checker import COMMITTED, Fact, whole_lines
from scenario import APPEND, CLAIMS, FLAKY, Crew, Scenario
from support import SOAK, TIMEOUT, wait_until

HERE = pathlib.Path(__file__).resolve().parent
STORM = 3  # seconds
BATCH = 20


class Workload(Crew, Scenario):
    """Producers and relays that work while others are killed, and the check afterwards."""
    VERSIONS = "SELECT key, version FROM account"
    LEAST = 50
    lease = "300ms"

    def begin(self, lanes):
        self.lanes, self.vanished = lanes, 0
        self.init()
        self.sql(self.TABLE)
        self.sql(self.FILL)
        self.broken = self.path("broken-down")
        self.broken.touch()
        self.sinks = {"books": f"file:{self.path('books')}", "mail": "exec:" + APPEND.format(out=self.path("mail")),
                      "flaky": FLAKY.format(out=self.path("flaky")),
                      "broken": f"exec:[ ! -e {self.broken} ] || exit 75; " + APPEND.format(out=self.path("broken"))}

    def relay_args(self):
        args = ["--batch", BATCH, "--lease", self.lease, "--lanes", self.lanes, "--concurrency", 6, "--log-hold", "0s",
                "--retry", "base=20ms,cap=200ms,attempts=1000,outage=0s"]
        for name, sink in self.sinks.items(): args += ["--consumer", name, "--sink", sink]
        return args

    def start(self, kind):
        if kind == "relay": return self.relay(*self.relay_args(), wait=False)
        name = f"p{len(self.children)}"
        return self.spawn(sys.executable, HERE / "producer.py", self.store, self.path(f"diary-{name}"), name,
                          self.random.randrange(1 << 30))

    def books(self):
        return len(self.ndjson(self.path("books")))

    def wait_books(self, more, crew):
        """wait_books waits until all have recovered, each with its own connections."""
        before = self.books()
        wait_until(lambda: self.books() > before + more, what=lambda: "".join(p.output()[-2000:] for p in crew.values()))

    def versions(self):
        """versions returns how often each account has changed, for certain."""
        return dict(self.sql(self.VERSIONS))

    def told(self):
        """told returns the committed events according to the diaries and the accounts."""
        told = {(key, v): COMMITTED for key, last in self.versions().items() for v in range(1, last + 1)}
        for path in self.dir.glob("diary-*"):
            told |= {tuple(map(int, line.split())): COMMITTED for line in path.read_text().splitlines()}
        return told

    def check(self):
        name = lambda payload: (payload["key"], payload["version"])
        rows = self.rows()
        names = {id: name(json.loads(text)) for id, _, text in rows}
        c = self.checker(self.told(), [(names[id], Fact(key, names[id][1], (id, key, text))) for id, key, text in rows])
        for who in self.sinks:
            got = [(name(ev["payload"]), (ev["id"], ev["aggregate_id"], raw)) for ev, raw in whole_lines(self.path(who))]
            dead = self.ask("SELECT CAST(id AS text) FROM @dead WHERE consumer = ?", who)
            # A claim that was lost, or vanished with its relay, may be repeated once.
            bound = (CLAIMS * self.vanished + self.lost_claims(who)) * BATCH
            c.consumer(who, got, [names[id] for id, in dead], bound)
        self.check_left(c)
        c.verdict()
        self.assertGreater(c.events, self.LEAST, "too few events and faults to prove anything")

    def heal(self):
        self.broken.unlink()
        self.drain(*self.relay_args(), timeout=600 if SOAK else TIMEOUT)
        self.healed()


class Storms:
    """Relays and producers that are killed at random moments and restarted, and relays that are stopped for longer than their
    leases. A mixin for a Workload."""

    def storm(self, lanes, producers=2):
        def play(seconds):
            self.begin(lanes)
            self.rage(self.crew(producers, 3), seconds)
            self.heal()
            self.check()
        self.rounds(play, STORM)

    def test_repeated_kills_lose_invent_and_reorder_nothing(self):
        """Whichever process is killed or stopped, at any moment: committed events are delivered, in order, and no others."""
        self.storm(lanes=1)

    def test_repeated_kills_with_lanes_lose_nothing(self):
        """Whichever process is killed or stopped, at any moment: committed events are delivered, in order, even in several
        lanes."""
        self.storm(lanes=4)

    def test_repeated_kills_with_shared_lanes_lose_nothing(self):
        """Whichever process is killed or stopped, at any moment: lanes that relays join, split and take over lose and reorder
        nothing."""
        self.storm(lanes=16, producers=3)


class ServerCrashes:
    """The server ends abruptly, or gracefully, and restarts; no relay is restarted. A mixin for a Workload."""

    lease = "1s"  # deliveries take longer on a server that has just restarted and is busy with others

    def crashes(self, seconds):
        """crashes runs through self.ways(), which returns {name: how the server ends}, at least once."""
        self.begin(2)
        crew, ways = self.crew(2, 2), self.ways()
        end = time.monotonic() + seconds
        for n in range(1 << 20):
            before = sum(self.versions().values())
            time.sleep(self.random.uniform(0.2, 0.6))
            wait_until(lambda: sum(self.versions().values()) > before)
            kind = list(ways)[n % len(ways)]
            ways[kind]()
            time.sleep(self.random.uniform(0, 0.3))
            self.server.start()
            self.fault(kind)
            if time.monotonic() > end and n >= len(ways) - 1: break
        self.wait_books(20, crew)
        self.dismiss(crew)
        self.heal()
        self.check()

    def test_server_dying_under_load_loses_nothing(self):
        """A server that crashes or shuts down, and restarts: committed events are delivered, in order, and no relay has to be
        restarted."""
        self.rounds(self.crashes, STORM)
