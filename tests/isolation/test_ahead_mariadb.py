"""MariaDB: a backlog is read in ranges and ahead of the claims. Every event arrives once, in its place, with its own seq."""
# build: plain
import collections
import contextlib
import re
import threading

from proxy_mariadb import STALLED, Proxy, socket_of
from support import MariaCase, wait_until

FILL = "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) SELECT 't.e', 'k', seq % 50, seq FROM seq_1_to_{n}"


class Ahead(MariaCase):
    def setUp(self):
        super().setUp()
        self.init()
        self.out = self.path("out")

    def relay(self):
        self.drain("--consumer", "c", "--sink", f"file:{self.out}", "--batch", "200")

    def in_order(self):
        """in_order returns the events in the order of the server's join."""
        return self.sql("SELECT o.seq, e.id FROM outbox_order o JOIN outbox_event e ON e.nr = o.nr ORDER BY o.seq")

    def assert_exact(self, events):
        got = [(line["seq"], line["id"]) for line in self.ndjson(self.out)]
        self.assertEqual(got, [tuple(row) for row in self.in_order()])
        self.assertEqual(len(got), events)

    @contextlib.contextmanager
    def counted(self):
        """counted returns a proxy, which counts packets with statements."""
        with Proxy(socket_of(self.store)) as proxy: yield proxy

    def drain_through(self, proxy, batch):
        far = f"mariadb://root@127.0.0.1:{proxy.port}/{self.dbname}"
        self.drain("--store", far, "--consumer", "c", "--sink", f"file:{self.out}", "--batch", batch)

    def test_turn_needs_few_round_trips(self):
        """A turn without parked events queries once and writes once: 2 packets, where single statements would be 9."""
        turns = 100
        self.sql(FILL.format(n=turns * 20))
        with self.counted() as proxy: self.drain_through(proxy, "20")
        self.assert_exact(turns * 20)
        self.assertLess(proxy.count, turns * 5)  # a poll and the events need two more, and connecting a few

    def test_next_events_are_read_while_a_turn_commits(self):
        """The server is asked for the next batch before this claim is committed, and has read it when this batch is
        delivered."""
        self.sql(FILL.format(n=6000))
        with self.counted() as proxy:
            commit = proxy.at(6, STALLED, part="SET position")
            relay = threading.Thread(target=self.drain_through, args=(proxy, "200"))
            relay.start()
            try:
                wait_until(commit.done)
                self.assertTrue(commit.text.endswith(";COMMIT"), commit.text)
                position = int(re.search(r"SET position = (\d+)", commit.text)[1])
                last = proxy.texts.index(commit.text) + 1  # the two use different connections
                wait_until(lambda: any(f"BETWEEN {position + 1} AND" in text for text in proxy.texts[:last + 1]))
            finally:
                commit.let_go()
                relay.join()
        self.assert_exact(6000)

    def test_events_are_parked_claimed_again_and_settled_together(self):
        """A batch that must wait needs no packet per event, whether to be parked, claimed again, or settled. At most its keys
        are looked up one by one."""
        keys = 150
        self.sql(FILL.format(n=300))
        self.sql("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, not_before) SELECT 't.e', 'k', "
                 f"seq % {keys}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 5000 FROM seq_1_to_300")
        with self.counted() as proxy:
            self.drain_through(proxy, "600")
            self.assertEqual(self.sql("SELECT count(*) FROM outbox_parked"), [(300,)])
            wait_until(lambda: self.sql("SELECT count(*) FROM outbox_delivery WHERE state = 'pending' AND due_at > "
                                        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000") == [(0,)])
            self.drain_through(proxy, "600")
        self.assertEqual(self.sql("SELECT count(*) FROM outbox_parked"), [(0,)])
        self.assertEqual(len({line["id"] for line in self.ndjson(self.out)}), 600)
        self.assertLessEqual(self.most_repeated(proxy.texts), keys // 10)

    def most_repeated(self, texts):
        """most_repeated returns how often the same query about events was made, beyond once in a transaction. Timing decides
        how many transactions find no work."""
        transactions = sum(text.startswith("START TRANSACTION") for text in texts)
        kinds = collections.Counter(re.sub(r"'[^']*'|\d+", "?", text) for text in texts
                                    if re.search(r"\.outbox_(event|order|parked|claim|passed)\b", text))
        return max(kinds.values()) - transactions

    def test_gaps_rollbacks_and_late_commits_lose_nothing(self):
        late, undone = self.connect(), self.connect()
        with contextlib.closing(late), contextlib.closing(undone), late.cursor() as first, undone.cursor() as second:
            first.execute("START TRANSACTION")
            second.execute("START TRANSACTION")
            for _ in range(8):
                self.sql(FILL.format(n=300))  # reserves more numbers than it has rows
                first.execute(FILL.format(n=7))
                second.execute(FILL.format(n=20))
            self.relay()
            self.assert_exact(8 * 300)
            for _ in range(4):
                self.sql(FILL.format(n=500))
                first.execute(FILL.format(n=7))
            self.outbox("status")  # gives its events the places of others
            late.commit()  # numbers from between, and places behind all of these
            undone.rollback()
            for _ in range(4): self.sql(FILL.format(n=500))
        self.relay()
        self.assert_exact(8 * 307 + 4 * 507 + 4 * 500)
