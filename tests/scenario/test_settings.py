"""Settings that change while several relays run: a rolling deploy converges without intervention; only an operator can restore
old settings."""
# build: plain
import re
import signal
import urllib.error
import urllib.request

from support import Case, PgCase, wait_until

DATA, CONFIG = 65, 78
STANDING = "standing by: "


class Rolling:
    """Cases on every store. Relays have separate files, as on separate hosts, and write to separate files."""

    def setUp(self):
        super().setUp()
        self.init()

    def configure(self, host, **options):
        conf = self.path(f"{host}.conf")
        options = {"sink": f"file:{self.path('out')}", **options}
        lines = [f"{name} = {value}" for name, value in options.items()]
        conf.write_text("\n".join([f"[outbox]\nstore = {self.store}", "listen = 127.0.0.1:0", "[consumer c]", *lines]) + "\n")
        return conf

    def host(self, name, **options):
        relay = self.relay("-c", self.configure(name, **options))
        relay.url = re.search(r"listening on (http://\S+)", relay.output())[1]
        return relay

    def reload(self, relay):
        before = relay.output().count("reloaded the config")
        relay.signal(signal.SIGHUP)
        wait_until(lambda: relay.output().count("reloaded the config") > before, what=relay.output)

    def ready(self, relay):
        try:
            with urllib.request.urlopen(f"{relay.url}/readyz?verbose", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e: return e.code, e.read().decode()

    def wait_standing(self, relay):
        wait_until(lambda: STANDING in relay.output() and self.ready(relay)[0] == 503,
                   what=lambda: (self.ready(relay), relay.output()))
        self.assertTrue(relay.running())

    def types(self):
        return sorted(ev["type"] for ev in self.ndjson(self.path("out")))

    def wait_types(self, expected, *relays):
        wait_until(lambda: len(self.types()) >= len(expected),
                   what=lambda: (self.types(), [r.output() for r in relays]))
        self.assertEqual(self.types(), sorted(expected))

    def test_relay_restarted_with_an_old_file_stands_by(self):
        b = self.host("b", events="a.*")
        with self.host("a", events="a.*") as a:
            self.configure("a", events="a.*, b.*")
            self.reload(a)
            self.wait_standing(b)
            b.kill()
            with self.host("b", events="a.*") as again:  # it still has the old file
                self.wait_standing(again)
                self.assertRegex(again.output(), r'events "a\.\*, b\.\*".*outbox consumers revert c --to 1')
                self.assertIn('standing by: ', self.ready(again)[1])
                for n in range(3):
                    self.emit("a.x")
                    self.emit("b.x")
                self.wait_types(["a.x"] * 3 + ["b.x"] * 3, a, again)
                self.assertEqual(again.output().count(STANDING), 1, "the relay reports it once")
                self.configure("b", events="a.*, b.*")  # and now it has
                self.reload(again)
                wait_until(lambda: self.ready(again)[0] == 200, what=again.output)
                a.stop()
                self.emit("b.y")
                self.wait_types(["a.x"] * 3 + ["b.x"] * 3 + ["b.y"], again)

    def test_relay_with_replaced_settings_stands_by_until_restored(self):
        with self.host("old", events="a.*") as old:
            self.emit("a.1")
            self.wait_types(["a.1"], old)
            with self.host("new", events="*") as new:
                self.emit("b.1")
                self.wait_types(["a.1", "b.1"], old, new)
                self.wait_standing(old)
                self.assertIn('now: events "a.*"', self.outbox("consumers", "revert", "c").stdout)
                self.emit("a.2")
                self.wait_types(["a.1", "a.2", "b.1"], old, new)
                self.wait_standing(new)
                wait_until(lambda: self.ready(old)[0] == 200, what=old.output)
                self.assertIn("the settings of this relay are in force again; resuming", old.output())

    def test_relay_with_replaced_order_or_lanes_also_stands_by(self):
        with self.host("old", lanes="1") as old:
            with self.host("new", lanes="4", order="none") as new:
                self.wait_standing(old)
                self.emit("t", "k/1")
                self.wait_types(["t"], old, new)
                old.stop()
            with self.host("old", lanes="1") as again:
                self.wait_standing(again)
                self.assertRegex(again.output(), 'order "?none"?, lanes "?4"?')

    def test_settings_awaiting_other_workers_apply_later(self):
        hold = self.path("hold")
        hold.touch()
        slow = {"sink": f"exec:while [ -e {hold} ]; do sleep 0.02; done; cat >>{self.path('out')}"}
        with self.host("old", **slow) as old:
            self.emit("t")
            wait_until(lambda: self.json("consumers", "list")[0]["in_flight"], what=old.output)
            with self.host("new", lanes="2", **slow) as new:
                self.wait_standing(new)
                self.assertIn("still has undelivered events", new.output())
                hold.unlink()
                wait_until(lambda: self.ready(new)[0] == 200, what=new.output)
                self.emit("t")
                self.wait_standing(old)
                self.wait_types(["t", "t"], old, new)

    def test_relay_reloaded_with_old_settings_keeps_current_ones(self):
        self.drain("--consumer", "c", "--sink", f"file:{self.path('out')}", "--events", "a.*")
        with self.host("a", events="b.*") as a:
            self.configure("a", events="a.*")
            self.reload(a)
            self.assertRegex(a.output(), "could not apply the new settings: .*keeping the old ones")
            self.emit("b.1")
            self.wait_types(["b.1"], a)
            self.assertEqual(self.ready(a)[0], 200)

    def test_draining_relay_reports_replaced_settings_at_once(self):
        sink = "--consumer", "c", "--sink", f"file:{self.path('out')}"
        self.drain(*sink, "--events", "a.*")
        self.drain(*sink, "--events", "b.*")
        said = self.outbox("relay", "--drain", *sink, "--events", "a.*", status=DATA).stderr
        self.assertIn("outbox consumers revert c --to 1", said)

    def test_standby_does_not_recreate_a_removed_consumer(self):
        old = self.host("old", events="a.*")
        self.outbox("consumers", "set", "c", "--events", "b.*")
        self.wait_standing(old)
        self.outbox("consumers", "remove", "c", "--yes")
        old.wait(expect=DATA)
        self.assertIn("is not registered", old.output())
        self.assertEqual(self.json("consumers", "list"), [])

    def test_history_shows_who_set_which_settings(self):
        sink = "--consumer", "c", "--sink", f"file:{self.path('out')}"
        self.drain(*sink, "--events", "a.*")
        first, = self.json("consumers", "history", "c")
        self.assertEqual((first["generation"], first["counts"], first["events"]), (1, True, "a.*"))
        self.drain(*sink, "--events", "b.*")
        self.outbox("consumers", "set", "c", "--events", "a.*", "--where", "n = 1")
        rows = self.json("consumers", "history", "c")
        self.assertEqual([(r["generation"], r["counts"], r["events"], r["where"]) for r in rows],
                         [(3, True, "a.*", "n = 1"), (2, False, "b.*", ""), (1, False, "a.*", "")])
        self.outbox("consumers", "revert", "c", "--to", 9, status=DATA)
        self.outbox("consumers", "history", "nobody", status=DATA)
        self.outbox("consumers", "set", "c", status=64)
        self.outbox("consumers", "set", "c", "--lanes", 2, "--order", "global", status=64)

    def test_equivalent_filters_count_as_the_same_settings(self):
        sink = "--consumer", "c", "--sink", f"file:{self.path('out')}"
        self.drain(*sink, "--events", "b.*,a.*", "--where", "n=1 and( m  exists)")
        for events, where in (("a.*,b.*", "n = 1 and (m exists)"), (" a.* ,b.*, a.**", " n=1  and (m exists)")):
            self.drain(*sink, "--events", events, "--where", where)
            self.outbox("consumers", "set", "c", "--events", events, "--where", where)
        self.assertEqual([(r["generation"], r["events"]) for r in self.json("consumers", "history", "c")], [(1, "a.*, b.*")])
        with self.host("a", events="b.*,a.*", where="n=1 and (m exists)") as a:
            with self.host("b", events="a.*, b.*", where="n = 1 and (m exists)") as b:
                self.emit("b.x", None, {"n": 1, "m": 0})
                self.wait_types(["b.x"], a, b)
                self.assertEqual([self.ready(r)[0] for r in (a, b)], [200, 200])
        self.drain(*sink, "--events", "*")
        self.drain(*sink)
        self.assertIn('events "*"', self.outbox("relay", "--drain", *sink, "--events", "b.*,a.*", "--where",
                                                "n=1 and (m exists)", status=DATA).stderr)

    def test_relay_that_fails_to_start_leaves_no_consumer_behind(self):
        for sink, why in (("exec:", "the command is missing"), ("redis://127.0.0.1/0", "names no stream"),
                          ("http://10.1.2.3/x", "private address")):
            with self.subTest(sink):
                said = self.outbox("relay", "--consumer", "good", "--sink", f"file:{self.path('out')}", "--consumer", "bad",
                                   "--sink", sink, status=None).stderr
                self.assertIn(why, said)
                self.assertEqual(self.json("consumers", "list"), [])


class OnSqlite(Rolling, Case):
    pass


class OnPostgres(Rolling, PgCase):
    def test_plain_sql_workers_follow_the_same_rules(self):
        self.sql("SELECT outbox.register('c', 'a.*')")
        self.sql("SELECT outbox.register('c', 'b.*')")
        with self.assertRaisesRegex(Exception, "was given other settings") as caught:
            self.sql("SELECT outbox.register('c', 'a.*')")
        self.assertEqual(caught.exception.pgcode, "OB001")
        self.assertIn("outbox consumers revert c --to 1", caught.exception.diag.message_hint)
        self.assertEqual(self.sql("SELECT outbox.revert('c')"), [(1,)])
        self.sql("SELECT outbox.register('c', 'a.*')")
        self.sql("SELECT outbox.register('c', ' z, a.**,a.*')")
        self.sql("SELECT outbox.register('c', 'a.*,z')")
        self.assertEqual(self.sql("SELECT events FROM outbox.consumer"), [("a.*, z",)])
        self.sql("UPDATE outbox.consumer SET events = 'z,a.*'")  # as written by earlier versions
        self.sql("SELECT outbox.register('c', 'a.*, z')")
        self.assertEqual(self.sql("SELECT events, (SELECT count(*) FROM outbox.setting) FROM outbox.consumer"), [("a.*, z", 3)])
        with self.assertRaisesRegex(Exception, "no such settings"): self.sql("SELECT outbox.revert('c', 77)")
        with self.assertRaisesRegex(Exception, "no consumer"): self.sql("SELECT outbox.revert('x')")
