"""Redis Streams from end to end, through the CLI: the envelope, high-water marks, a lease, reading with a group."""
# sanitizers: soak
# quick: no
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import unittest

import broker_redis
import psycopg2
import servers
from broker_metrics import BrokerView
from broker_refusals import Refusals
from pages import BROKERS, items, section
from support import BIN, ROOT, Case, PgCase, on_each_store, wait_until

HERE = pathlib.Path(__file__).resolve().parent
NODE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-tests" / "redis" / "node_modules"


class Odd:
    """A server that speaks Redis's protocol, and answers each entry of one stream with a given error."""

    def __init__(self, bad):
        self.bad, self.added = bad, []

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, client.makefile("rb") as f:
            while line := f.readline():
                words = [f.read(int(f.readline()[1:]) + 2)[:-2].decode() for _ in range(int(line[1:]))]
                client.sendall(self.answer(words))

    def answer(self, words):
        if words[0] != "XADD": return b"+OK\r\n"
        if words[1] == self.bad: return b"-ERR an error that nobody has heard of\r\n"
        self.added.append(words[1])
        return b"$15\r\n1748100000000-%d\r\n" % len(self.added)


class Redis(broker_redis.Shared):
    """Common to the cases."""

    def to(self, stream, *more, name="out"):
        return ["--consumer", name, "--sink", self.redis.url(f"stream={stream}"), *more]

    def arrived(self):
        """arrived counts events once: those that a killed relay had not settled arrive twice."""
        return len({event["event_id"] for _, event in self.redis.entries("s")})


class Read(Redis, Case):
    """By ioredis, and the SDK of CloudEvents."""

    def by_node(self, stream):
        if not (NODE / "ioredis").exists(): self.skipTest("the node modules ioredis and cloudevents are not installed")
        done = subprocess.run(["node", HERE / "redis_reader.js", self.redis.socket, stream], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "NODE_PATH": str(NODE)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_format_arrives_as_documented(self):
        event = self.emit("order.paid", "order/7", None, "--payload", '{"a": 1.50}', "--version", "3", "--header", "tag=a b")
        formats = ("plain", "cloudevents", "cloudevents-structured", "debezium", "json", "contract")
        for name in formats: self.drain(*self.to(f"{name}&format={name}&source=/shop", name=name))
        got = {}
        for name in formats: got[name], = self.by_node(name)
        fields = {name: entry["fields"] for name, entry in got.items()}

        for name in ("plain", "cloudevents", "debezium"): self.assertEqual(fields[name]["value"], '{"a": 1.50}')
        want = {"id": event, "type": "order.paid", "aggregate_type": "order", "aggregate_id": "7", "key": "order/7", "version": "3",
                "tag": "a b", "content-type": "application/json"}
        self.assertEqual({name: fields["plain"].get(name) for name in want}, want)
        self.assertEqual({name: text for name, text in fields["debezium"].items() if name != "value"}, {"id": event})
        for name in ("cloudevents", "cloudevents-structured"):
            ce = got[name]["event"]
            self.assertEqual([ce[field] for field in ("specversion", "id", "type", "source", "subject", "datacontenttype", "data")],
                             ["1.0", event, "order.paid", "/shop", "order/7", "application/json", {"a": 1.5}])
        self.assertEqual(json.loads(fields["json"]["value"])["id"], event)
        self.assertEqual(list(fields["contract"]), ["event"])
        self.assertEqual(json.loads(fields["contract"]["event"])["event_id"], event)


class Errors(unittest.TestCase):
    def test_documented_errors_match_the_code(self):
        about = {"AWAY": "server", "LOGIN": "login", "STREAM": "stream", "SIZE": "event", "SETUP": "set-up", "SCRIPT": "script"}
        source = (ROOT / "src" / "redis" / "conn.c").read_text().split("redis_errors[] = ")[1].split("bool redis_refuses_command")[0]
        rows = [(words.strip(), about[fault], "new" if reconnect == "true" else "kept")
                for words, fault, reconnect in re.findall(r'\{"([^"]*)", REDIS_FAULT_(\w+),\s+(true|false),', source)]
        said = [re.match(r"\*(.*)\*, (kept|new connection): (`.*`)$", item).groups() for item in items(section(BROKERS, "### Redis"))]
        page = [(words, what, "kept" if connection == "kept" else "new") for what, connection, all_words in said
                for words in re.findall(r"`([^`]*)`", all_words)]
        self.assertEqual(len(rows) + 2, source.count("REDIS_FAULT_"))  # and the two rows for other errors
        self.assertEqual(sorted(page), sorted(rows))
        for n, (words, *_) in enumerate(rows):  # so that the longer of two matches counts, as the page says
            self.assertFalse([longer for longer, *_ in rows[n + 1:] if longer.startswith(words)], words)


@on_each_store
class Refused(Redis, Refusals):
    def test_only_events_refused_by_one_stream_are_buried(self):
        self.redis("SET", "bad", "x")
        self.check_refused_among_others(self.to("{type}"), lambda: len(self.redis.entries("good")), "WRONGTYPE")

    def test_events_refused_by_the_only_stream_are_buried(self):
        self.redis("SET", "s", "x")
        self.check_refused_alone(self.to("s"), "WRONGTYPE", lambda: self.redis("DEL", "s"), lambda: len(self.redis.entries("s")))


class RefusedBySeveral(Refusals, Case):
    """One stream is refused where there are several servers."""

    def setUp(self):
        super().setUp()
        self.init()

    def check(self, url, server_of, good):
        server_of("bad")("SET", "bad", "x")
        self.check_refused_among_others(["--consumer", "out", "--sink", url], lambda: len(server_of(good)("XRANGE", good, "-", "+")),
                                        "WRONGTYPE", good=good)

    def test_only_the_refused_stream_of_a_cluster_fails(self):
        for together in (False, True):
            with self.subTest(together=together), broker_redis.Cluster(3, replicas=0) as cluster:
                good = next(name for name in map("g{}".format, range(1000)) if (cluster.owner(name) is cluster.owner("bad")) == together)
                self.check(cluster.url("stream={type}"), cluster.owner, good)
            self.sql("DELETE FROM outbox_dead")

    def test_only_the_refused_stream_behind_sentinels_fails(self):
        with broker_redis.Sentinels(1, 1) as group: self.check(group.url("stream={type}"), lambda _: group.master(), "good")


class Shown(Redis, BrokerView, Case):
    def test_status_shows_server_and_unconfirmed_events(self):
        send = self.redis.popen.send_signal
        self.check_view(["--consumer", "out", "--sink", self.redis.tcp_url("stream=s")], lambda: send(signal.SIGSTOP),
                        lambda: send(signal.SIGCONT), kind="redis", broker=f"127.0.0.1:{self.redis.port}", leader="")

    def test_unix_socket_works_as_broker_address(self):
        with self.serve(*self.to("s")) as relay:
            self.wait_shown(relay, kind="redis", broker=str(self.redis.socket), leader="")


@on_each_store(but=("OnMariadb",))
class Streams(Redis):
    def test_event_arrives_in_the_envelope_of_the_contract(self):
        event = self.emit("tenant.user_membership.added", "user/7", None, "--payload", '{"a": 1.50}', "--version", "3",
                          "--header", "traceparent=00-ab-cd-01")
        self.drain(*self.to("tenant.{type[1]}", "--receipts"))
        (entry, (name, text)), = self.redis("XRANGE", "tenant.user_membership", "-", "+")
        self.assertEqual(name, "event")
        at = json.loads(text)["committed_at"]
        self.assertRegex(at, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual(text, '{"event_id":"%s","topic":"tenant.user_membership.added","aggregate_kind":"user",'
                         '"aggregate_id":"7","entity_version":3,"payload":{"a": 1.50,"_telemetry":'
                         '{"traceparent":"00-ab-cd-01"}},"stream_id":"tenant.user_membership","committed_at":"%s"}'
                         % (event, at))
        self.assertEqual(self.ask("SELECT CAST(event_id AS text), sink_id FROM @receipt"), [(event, entry)])
        if self.store.startswith("postgres"):  # the names in the document; the envelope uses others
            self.assertEqual(self.ask("SELECT source_entity_version, telemetry_envelope FROM @outbox"),
                             [(3, {"traceparent": "00-ab-cd-01"})])

    def test_hwm_is_the_last_id_of_each_stream(self):
        self.outbox("hwm", "a.s", status=65)
        self.emit_many({"type": "a.x" if i % 3 else "b.x", "payload": i} for i in range(30))
        self.drain(*self.to("{type[0]}.s"))
        for stream in ("a.s", "b.s"):
            last = self.redis("XREVRANGE", stream, "+", "-", "COUNT", 1)[0][0]
            self.assertEqual(self.outbox("hwm", stream).stdout, last + "\n")
            self.assertEqual(self.json("hwm", stream)["id"], last)
        self.assertIn("a.s", self.outbox("hwm").stdout)
        self.assertIn("b.s", self.outbox("hwm").stdout)
        self.outbox("consumers", "remove", "out", "--yes")
        self.outbox("hwm", "a.s", status=65)

    def test_hwm_of_many_streams_is_complete_after_the_delivery(self):
        """Marks of many streams are recorded together; none is left behind."""
        self.emit_many({"type": f"t.{i % 60}", "payload": i} for i in range(1200))
        self.drain(*self.to("s{type[1]}", "--batch", 50))
        marks = {m["stream"]: m["id"] for m in self.json("hwm")}
        last = {f"s{n}": self.redis("XREVRANGE", f"s{n}", "+", "-", "COUNT", 1)[0][0] for n in range(60)}
        self.assertEqual(marks, last)

    def change(self, i):
        """change adds to one of two rows, and emits the change in the same transaction."""
        event = "INSERT INTO @event (type, aggregate_type, aggregate_id, version, payload)"
        if self.store.startswith("postgres"):
            changed = "UPDATE account SET version = version + 1, total = total + ? WHERE id = ? RETURNING id, version"
            return self.ask(f"WITH u AS ({changed}) {event} SELECT 'changed', 'account', id::text, version, ?::json FROM u",
                            i, i % 2 + 1, str(i))
        self.ask("UPDATE account SET version = version + 1, total = total + ? WHERE id = ?", i, i % 2 + 1)

    def test_snapshot_plus_stream_from_its_mark_is_complete(self):
        """The mark is read in the snapshot of the rows: the snapshot includes every change in the stream up to the mark."""
        self.ask("CREATE TABLE account (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, total INTEGER NOT NULL)")
        self.ask("INSERT INTO account VALUES (1, 0, 0), (2, 0, 0)")
        mark = "outbox.hwm('s')"
        if not self.store.startswith("postgres"):
            mark = "(SELECT hi || '-' || lo FROM outbox_mark WHERE stream = 's')"
            self.ask("CREATE TRIGGER told AFTER UPDATE ON account BEGIN "
                     "INSERT INTO @event (type, aggregate_type, aggregate_id, version, payload) "
                     "VALUES ('changed', 'account', CAST(new.id AS TEXT), new.version, new.total - old.total); END")
        copies, seen = [], {None}
        with self.relay(*self.to("s")) as relay:
            for i in range(40):
                self.change(i)
                if i % 8 == 3:  # once the mark has moved; later changes may be in flight
                    wait_until(lambda: self.ask(f"SELECT {mark}")[0][0] not in seen, what=relay.output)
                    copies.append(self.ask(f"SELECT id, version, total, {mark} FROM account"))
                    seen.add(copies[-1][0][3])
            wait_until(lambda: self.redis("XLEN", "s") == 40, what=relay.output)
        want = {key: (version, total) for key, version, total in self.ask("SELECT id, version, total FROM account")}
        for copy in copies:
            rows = {key: (version, total) for key, version, total, _ in copy}
            for _, fields in self.redis("XRANGE", "s", f"({copy[0][3]}", "+"):
                event = json.loads(fields[1])
                key, version, add = int(event["aggregate_id"]), event["entity_version"], event["payload"]
                if version <= rows[key][0]: continue  # the copy includes it
                self.assertEqual(version, rows[key][0] + 1, "a change is missing from both the copy and the stream after its mark")
                rows[key] = (version, rows[key][1] + add)
            self.assertEqual(rows, want)

    def test_key_order_is_kept_and_nothing_is_missing(self):
        self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": str(i % 7), "payload": i} for i in range(3000))
        self.drain(*self.to("s"))
        got = [e["payload"] for _, e in self.redis.entries("s")]
        self.assertEqual(sorted(got), list(range(3000)))
        for key in range(7): self.assertEqual([n for n in got if n % 7 == key], list(range(key, 3000, 7)))

    def test_exhausted_event_is_buried_without_delaying_others(self):
        bad = self.emit("t", "bad/1", {"n": 1})
        self.emit("t", "good/1", {"n": 2})
        with Odd("bad") as odd:
            url = f"redis://127.0.0.1:{odd.port}?stream={{aggregate_type}}"
            self.drain("--consumer", "out", "--sink", url, "--retry", "base=1ms,cap=2ms,attempts=8,jitter=none,outage=0s")
        self.assertEqual(odd.added, ["good"])
        dead = self.json("dead", "list")
        dead = dead[0] if isinstance(dead, list) else dead
        self.assertEqual((dead["id"], dead["attempts"]), (bad, 8))
        self.assertIn("ERR an error that nobody has heard of", dead["error"])
        self.assertEqual(self.ask("SELECT count(*) FROM @parked"), [(0,)])

    def test_duplicate_delivery_is_handled_once(self):
        ids = [self.emit("t", "k/1", i) for i in range(5)]
        self.drain(*self.to("s"))
        for _, event in self.redis.entries("s"): self.redis("XADD", "s", "*", "event", json.dumps(event))
        said = self.outbox("consume", self.redis.url("stream=s"), "--group", "g", "--exec",
                           'cat >> all; echo "$OUTBOX_ID" >> got', "--drain").stderr
        self.assertEqual(self.path("got").read_text().split(), ids)
        self.assertIn("10 handled", said)
        self.assertEqual(self.redis("XPENDING", "s", "g")[0], 0)
        lines = [json.loads(line) for line in self.path("all").read_text().splitlines()]
        self.assertEqual([line["payload"] for line in lines], [0, 1, 2, 3, 4])
        self.assertEqual(self.redis("XLEN", "s"), 10)
        consumed = self.ask("SELECT CAST(event_id AS text), consumer FROM @consumed_events")
        self.assertEqual(sorted(consumed), sorted((id, "g") for id in ids))

    def test_lease_lets_one_relay_work_and_another_take_over(self):
        url = self.redis.url("stream=s&lease=lock:outbox:shop&lease-ttl=1s")
        one = self.relay("--consumer", "out", "--sink", url, "--lease", "300ms")
        self.emit("t", "k/1", 1)
        wait_until(lambda: self.arrived() == 1, what=one.output)
        first = self.redis("GET", "lock:outbox:shop")
        two = self.relay("--consumer", "out", "--sink", url, "--lease", "300ms")
        for i in range(2, 12): self.emit("t", f"k/{i}", i)
        wait_until(lambda: self.arrived() == 11, what=one.output)
        token = self.redis("GET", "lock:outbox:shop")
        one.kill()
        self.emit("t", "k/12", 12)
        wait_until(lambda: self.arrived() == 12, what=two.output)
        if token == first:  # on a busy machine the second may have held it already
            self.assertNotEqual(self.redis("GET", "lock:outbox:shop"), token)
        # Another relay takes it: no new work until it is free again; and only its own lease is released.
        self.redis("SET", "lock:outbox:shop", "thief")
        wait_until(lambda: self.ask("SELECT count(*) FROM @claim") == [(0,)])
        wait_until(lambda: self.redis("GET", "lock:outbox:shop") == "thief")
        self.assertTrue(self.stays_quiet_for_a_renewal(two))
        self.redis("DEL", "lock:outbox:shop")
        wait_until(lambda: self.arrived() == 13, what=two.output)
        two.stop()
        self.assertIsNone(self.redis("GET", "lock:outbox:shop"))

    def stays_quiet_for_a_renewal(self, relay):
        """After its next renewal has failed, events emitted then stay where they are."""
        time.sleep(1.1)  # the whole lease: the relay's lease has expired by any clock
        self.emit("t", "k/13", 13)
        time.sleep(0.3)
        return self.arrived() == 12


class OnSqlite(Redis, Case):
    def test_odd_bytes_inject_nothing(self):
        odd = 'x\r\n*1\r\n$8\r\nFLUSHALL\r\n"\\\' \u2603\u0001'
        key = '"\\\' {} $8 \u2603'  # control characters are refused in a key
        line = {"type": "a.b", "aggregate_type": key, "aggregate_id": key, "payload": {"a": odd}, "headers": {"h": odd}}
        self.redis("SET", "canary", "sings")
        self.emit_many([line])
        self.drain(*self.to("s.{aggregate_type}"))
        (_, got), = self.redis.entries("s." + key)
        self.assertEqual((got["aggregate_kind"], got["aggregate_id"], got["payload"]["a"]), (key, key, odd))
        self.assertEqual(got["payload"]["_telemetry"], {"h": odd})
        self.assertEqual(self.redis("GET", "canary"), "sings")

    def test_trimming_causes_a_warning(self):
        log = self.drain("--consumer", "out", "--sink", self.redis.url("stream=s&maxlen=10")).stderr
        self.assertIn("maxlen lets Redis drop unread entries", log)
        self.assertNotIn("drop unread", self.drain(*self.to("s")).stderr)

    def test_no_secret_is_shown(self):
        secret = "h0rse-Battery"
        self.redis("ACL", "SETUSER", "relay", "on", f">{secret}", "~*", "+@all")
        self.addCleanup(self.redis, "ACL", "DELUSER", "relay")
        path = self.path("password")
        path.write_text(secret + "\n")
        self.emit("t", "k/1", {})
        args = ["--consumer", "out", "--sink", self.redis.url(f"stream=s&user=relay&password-file={path}")]
        with self.relay(*args, "--log-level", "debug") as relay:
            wait_until(lambda: self.redis.entries("s"))
            self.assertNotIn(secret.encode(), open(f"/proc/{relay.pid}/cmdline", "rb").read())
            self.redis("ACL", "SETUSER", "relay", "resetpass", ">another")
            self.redis("CLIENT", "KILL", "USER", "relay")
            self.emit("t", "k/2", {})
            wait_until(lambda: "WRONGPASS" in relay.output(), what=relay.output)
            self.redis("ACL", "SETUSER", "relay", f">{secret}")
            wait_until(lambda: len(self.redis.entries("s")) == 2, what=relay.output)
        said = relay.output() + self.outbox("config", "show", *args, status=None).stdout
        said += self.outbox("status").stdout + self.outbox("consumers", "show", "out", status=None).stdout
        self.assertNotIn(secret, said)
        # In a URL it is refused, without being repeated, and masked where the configuration is shown.
        url = f"redis://relay:{secret}@127.0.0.1:1?stream=s"
        done = self.outbox("relay", "--consumer", "x", "--sink", url, "--drain", status=78)
        self.assertIn("password-file=FILE", done.stderr)
        self.assertNotIn(secret, done.stdout + done.stderr)
        self.path("ob.ini").write_text(f"[consumer x]\nsink = {url}\n")
        self.assertNotIn(secret, self.outbox("-c", self.path("ob.ini"), "config", "show", status=None).stdout)

    def test_standby_relay_releases_its_lease(self):
        url = self.redis.url("stream=s&lease=lock:roll&lease-ttl=1s")
        old = self.relay("--consumer", "out", "--sink", url, "--events", "a.*")
        self.emit("a.1")
        wait_until(lambda: len(self.redis.entries("s")) == 1, what=old.output)
        new = self.relay("--consumer", "out", "--sink", url, "--events", "*")
        self.emit("b.1")
        wait_until(lambda: len(self.redis.entries("s")) == 2, what=lambda: old.output() + new.output())
        self.assertIn("standing by: ", old.output())
        old.stop()
        new.stop()

    def test_relay_that_lost_its_lease_releases_unsent_events(self):
        relay = self.relay("--consumer", "out", "--sink", self.redis.url("stream=s&lease=lock&lease-ttl=1s"), "--timeout",
                           "500ms")
        self.emit("t", "k/1", 0)
        wait_until(lambda: self.arrived() == 1, what=relay.output)
        sent, claimed = 1, False
        while not claimed and sent < 200:  # on a busy machine the lease may expire before they are claimed
            (epoch,), = self.sql("SELECT epoch FROM outbox_consumer")
            self.redis.popen.send_signal(signal.SIGSTOP)
            try:
                self.emit_many({"type": "t", "aggregate_type": "k", "aggregate_id": "1", "payload": i} for i in range(sent, sent + 19))
                sent += 19
                with contextlib.suppress(AssertionError):
                    claimed = wait_until(lambda: self.sql("SELECT 1 FROM outbox_consumer WHERE epoch > ?", epoch), timeout=3)
                # Another relay could deliver them if it held the lease, so they are released before Redis returns.
                wait_until(lambda: self.sql("SELECT count(*) FROM outbox_claim") == [(0,)], what=relay.output)
            finally:
                self.redis.popen.send_signal(signal.SIGCONT)
            wait_until(lambda: self.arrived() == sent, what=relay.output)
        self.assertTrue(claimed, relay.output())
        order = [event["payload"] for _, event in self.redis.entries("s")]
        self.assertEqual(list(dict.fromkeys(order)), list(range(sent)))
        relay.stop()

class OnPostgres(Redis, PgCase):
    def test_hwm_is_available_as_an_sql_function(self):
        self.emit("t", "k/1", 1)
        self.drain(*self.to("s"))
        last = self.redis("XREVRANGE", "s", "+", "-", "COUNT", 1)[0][0]
        self.assertEqual(self.sql("SELECT outbox.hwm('s')"), [(last,)])
        self.assertEqual(self.sql("SELECT outbox.hwm('none')"), [(None,)])
        self.assertEqual(self.outbox("hwm", "s").stdout, last + "\n")

    def test_marks_never_move_backwards(self):
        self.emit("t", "k/1", 1)
        self.drain(*self.to("s"))
        self.sql("UPDATE outbox.mark SET hi = 9000000000000")
        self.emit("t", "k/1", 2)
        self.drain(*self.to("s"))
        self.assertTrue(self.sql("SELECT outbox.hwm('s')")[0][0].startswith("9000000000000-"))

    def test_relay_to_redis_needs_only_the_consumer_role(self):
        self.emit("t", "k/1", 1)
        store, self.store = self.store, self.role("consumer")
        try:
            self.drain(*self.to("s"))
        finally:
            self.store = store
        self.assertEqual(len(self.redis.entries("s")), 1)
        self.assertIsNotNone(self.sql("SELECT outbox.hwm('s')")[0][0])

    def test_reader_killed_before_commit_or_ack_acts_once(self):
        """The inbox in the reader's own transaction: whichever process is killed, and however often an entry is repeated."""
        self.sql("CREATE TABLE effect (n serial, id text)")
        ids = [self.emit("t", "k/1", i) for i in range(3)]
        self.drain(*self.to("s"))
        self.redis("XGROUP", "CREATE", "s", "g", "0")
        first = {}
        for dies, which in (("before commit", ">"), ("before ack", "0"), ("never", "0")):
            entries = self.redis("XREADGROUP", "GROUP", "g", "me", "STREAMS", "s", which)[0][1]
            self.assertEqual(len(entries), 3, "no entry was acknowledged")
            db = psycopg2.connect(self.store)
            self.addCleanup(db.close)
            for entry, fields in entries:
                with db.cursor() as cursor:
                    event = json.loads(fields[1])["event_id"]
                    cursor.execute("SELECT outbox.handle_once('mirror', %s)", (event,))
                    first.setdefault(dies, []).append(cursor.fetchone()[0])
                    if first[dies][-1]: cursor.execute("INSERT INTO effect (id) VALUES (%s)", (event,))
                    if dies == "before commit":
                        self.sql("SELECT pg_terminate_backend(%s)", db.info.backend_pid)
                        break
                    db.commit()
                    if dies == "never": self.redis("XACK", "s", "g", entry)
        self.assertEqual(first, {"before commit": [True], "before ack": [True] * 3, "never": [False] * 3})
        self.assertEqual([id for id, in self.sql("SELECT id FROM effect ORDER BY n")], ids)
        self.assertEqual(self.redis("XPENDING", "s", "g")[0], 0)


class Consuming(Redis, Case):
    """Two databases: A with the relay, B with the reader."""

    def setUp(self):
        super().setUp()
        self.b = self.path("b.db")
        self.outbox("init", "--store", f"sqlite:{self.b}")

    def consume(self, *args, **kw):
        return self.outbox("consume", self.redis.url("stream=s"), "--store", f"sqlite:{self.b}", *args, **kw)

    def got(self):
        try:
            return self.path("got").read_text().split()
        except FileNotFoundError:
            return []

    def test_failed_event_is_retried_before_the_next(self):
        for i in range(3): self.emit("t", "k/1", i)
        self.drain(*self.to("s"))
        self.consume("--group", "g", "--drain", "--exec",
                     'read -r x; echo "$x" | grep -q \'"payload":1,\' && [ ! -e once ] && touch once && exit 75; '
                     'echo "$OUTBOX_ID" >> got')
        self.assertEqual(self.got(), [e["event_id"] for _, e in self.redis.entries("s")])

    def test_entries_abandoned_by_another_member_are_taken_over(self):
        self.emit("t", "k/1", 1)
        self.drain(*self.to("s"))
        self.redis("XGROUP", "CREATE", "s", "g", "0")
        self.redis("XREADGROUP", "GROUP", "g", "gone", "STREAMS", "s", ">")
        said = self.consume("--group", "g", "--claim-after", "1ms", "--exec", 'echo "$OUTBOX_ID" >> got', "--drain").stderr
        self.assertEqual(len(self.got()), 1)
        self.assertIn("1 taken over", said)
        self.assertEqual(self.redis("XPENDING", "s", "g")[0], 0)

    def test_foreign_entries_are_skipped_with_a_message(self):
        self.redis("XADD", "s", "*", "other", "x")
        self.redis("XADD", "s", "*", "event", "{}")
        said = self.consume("--group", "g", "--exec", "exit 1", "--drain").stderr
        self.assertIn("the entry has no field named event", said)
        self.assertIn("the envelope has no event_id", said)
        self.assertIn("2 skipped", said)

    def test_reader_stops_on_sigterm_and_resumes_later(self):
        child = self.spawn(BIN, "consume", self.redis.url("stream=s"), "--store", f"sqlite:{self.b}", "--group", "g", "--exec",
                           'echo "$OUTBOX_ID" >> got', log="consume.log")
        with self.relay(*self.to("s")):
            self.emit("t", "k/1", 1)
            wait_until(lambda: len(self.got()) == 1, what=child.output)
            self.redis("CLIENT", "KILL", "TYPE", "normal")
            self.emit("t", "k/1", 2)
            wait_until(lambda: len(self.got()) == 2, what=child.output)
            child.stop()
            self.emit("t", "k/1", 3)
            wait_until(lambda: len(self.redis.entries("s")) == 3)
        self.consume("--group", "g", "--exec", 'echo "$OUTBOX_ID" >> got', "--drain")
        self.assertEqual(self.got(), [e["event_id"] for _, e in self.redis.entries("s")])

    def test_snapshot_and_stream_join_without_gap_or_repeat(self):
        """Rows keep changing while a reader takes its first copy of them and then continues with the stream. Each change
        missing from its copy arrives, and none in it is applied again: versions distinguish them."""
        self.sql("CREATE TABLE account (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, total INTEGER NOT NULL)")
        self.sql("INSERT INTO account VALUES (1, 0, 0), (2, 0, 0)")
        copy = sqlite3.connect(self.b)
        copy.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, total INTEGER NOT NULL)")
        copy.execute("CREATE TABLE applied (id INTEGER, version INTEGER, PRIMARY KEY (id, version))")
        copy.commit()
        copy.close()

        def change(i):
            key, amount = i % 2 + 1, i
            db = sqlite3.connect(self.db, timeout=60, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE account SET version = version + 1, total = total + ? WHERE id = ?", (amount, key))
            version, = db.execute("SELECT version FROM account WHERE id = ?", (key,)).fetchone()
            db.execute("INSERT INTO outbox_event (type, aggregate_type, aggregate_id, version, payload) VALUES "
                       "('account.changed', 'account', ?, ?, ?)", (str(key), version, json.dumps({"add": amount})))
            db.execute("COMMIT")
            db.close()

        snapshot = self.path("snapshot.py")
        snapshot.write_text(f"""
import os, sqlite3
rows = sqlite3.connect({str(self.db)!r}).execute("SELECT id, version, total FROM account").fetchall()
b = sqlite3.connect({str(self.b)!r}, timeout=60)
b.execute("DELETE FROM account")
b.executemany("INSERT INTO account VALUES (?, ?, ?)", rows)
b.commit()
open({str(self.path("hwm"))!r}, "w").write(os.environ["OUTBOX_STREAM"] + " " + os.environ["OUTBOX_HWM"])
""")
        apply = self.path("apply.py")
        apply.write_text(f"""
import json, sqlite3, sys
e = json.load(sys.stdin)
b = sqlite3.connect({str(self.b)!r}, timeout=60)
key, version, add = int(e["aggregate_id"]), e["version"], e["payload"]["add"]
done = b.execute("UPDATE account SET total = total + ?, version = ? WHERE id = ? AND version = ?",
                 (add, version, key, version - 1)).rowcount
if done: b.execute("INSERT INTO applied VALUES (?, ?)", (key, version))
b.commit()
""")
        python = sys.executable
        with self.relay(*self.to("s")):
            for i in range(10): change(i)
            wait_until(lambda: self.redis("XLEN", "s") == 10)
            hwm = self.redis("XREVRANGE", "s", "+", "-", "COUNT", 1)[0][0]
            with self.relay("--consumer", "pace", "--sink", f"file:{self.path('pace')}"):
                reader = self.spawn(BIN, "consume", self.redis.url("stream=s"), "--store", f"sqlite:{self.b}", "--group", "g",
                                    "--snapshot", f"{python} {snapshot}", "--exec", f"{python} {apply}", log="consume.log")
                for i in range(10, 40): change(i)
                want = self.sql("SELECT id, version, total FROM account ORDER BY id")

                def rows():
                    b = sqlite3.connect(self.b, timeout=60)
                    try:
                        return b.execute("SELECT id, version, total FROM account ORDER BY id").fetchall()
                    finally:
                        b.close()
                wait_until(lambda: rows() == want, what=lambda: f"{rows()} {want} {reader.output()}")
                reader.stop()
        stream, taken = self.path("hwm").read_text().split()
        self.assertEqual(stream, "s")
        self.assertGreaterEqual([int(x) for x in taken.split("-")], [int(x) for x in hwm.split("-")])
        # A second start finds its group: no second snapshot.
        self.path("hwm").unlink()
        self.consume("--group", "g", "--snapshot", f"{python} {snapshot}", "--exec", f"{python} {apply}", "--drain")
        self.assertFalse(self.path("hwm").exists())
        self.assertEqual(rows(), want)
