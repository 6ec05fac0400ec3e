"""Every limit of docs/reference.md, for every way to emit, on each store: an event over a limit is refused with a message that
names the limit, and stores nothing; an event at the limit is delivered byte for byte.

# build: plain
# quick: no
"""
import collections
import ctypes
import io
import itertools
import json
import pathlib
import sqlite3
import time

from support import BIN, Case, PgCase

MIB = 1 << 20
DAY = 86400 * 1000
TEN_YEARS = 3653 * DAY
UUID = "018f3c2a-1b2c-7000-8000-000000000000"
SOUND = {"type": "order.paid", "aggregate_type": "order", "aggregate_id": "42", "payload": '{"total": 30}'}
AGGREGATE = {"aggregate_type", "aggregate_id"}


class Cannot(Exception):
    """This way cannot express such an event."""


class Refused(Exception):
    pass


def now():
    return int(time.time() * 1000)


# name: the violation, and words of which one must be in the message. Every message names the field as well. A third element
# names the ways that accept it by design, or that use other words.
VIOLATIONS = {
    "no type": ({"type": None}, ("missing", "null", "NULL", "TYPE")),
    "empty type": ({"type": ""}, ("empty", "255")),
    "long type": ({"type": "x" * 256}, ("255",)),
    "long type of few characters": ({"type": "\u00e9" * 128}, ("255",)),
    "type with a space": ({"type": "a b"}, ("white space",)),
    "type with a wide space": ({"type": "a\u3000b"}, ("white space",)),
    "type with a line separator": ({"type": "a\u2028b"}, ("white space",)),
    "type with no-break space": ({"type": "a\u00a0b"}, ("white space",)),
    "type with a line break": ({"type": "a\nb"}, ("control character",)),
    "type with DEL": ({"type": "a\x7f"}, ("control character",)),
    "type with C1": ({"type": "a\u0085b"}, ("control character",)),
    "type with NUL": ({"type": "a\0b"}, ("control character", "NUL")),
    "half a key: type": ({"aggregate_id": None}, ("both or neither", "without", "slash between")),
    "half a key: id": ({"aggregate_type": None}, ("both or neither", "without", "slash between")),
    "empty aggregate type": ({"aggregate_type": ""}, ("empty", "1024", "slash between")),
    "empty aggregate id": ({"aggregate_id": ""}, ("empty", "1024", "slash between")),
    "aggregate type with a slash": ({"aggregate_type": "a/b"}, ("'/'",)),
    "long aggregate type": ({"aggregate_type": "x" * 1025}, ("1024",)),
    "long aggregate id": ({"aggregate_id": "x" * 1025}, ("1024",)),
    "long aggregate id of few characters": ({"aggregate_id": "\u00e9" * 513}, ("1024",)),
    "aggregate type with a line break": ({"aggregate_type": "a\nb"}, ("control character",)),
    "aggregate type with DEL": ({"aggregate_type": "a\x7f"}, ("control character",)),
    "aggregate type with C1": ({"aggregate_type": "\u0080"}, ("control character",)),
    "aggregate id with a line break": ({"aggregate_id": "a\r\nb"}, ("control character",)),
    "aggregate id with escape": ({"aggregate_id": "a\x1b[0m"}, ("control character",)),
    "aggregate id with DEL": ({"aggregate_id": "\x7f"}, ("control character",)),
    "aggregate id with C1": ({"aggregate_id": "a\u009fb"}, ("control character",)),
    "aggregate id with NUL": ({"aggregate_id": "a\0b"}, ("control character", "NUL")),
    "empty tenant": ({"tenant": ""}, ("empty", "1024")),
    "long tenant": ({"tenant": "x" * 1025}, ("1024",)),
    "tenant with a line break": ({"tenant": "a\nb"}, ("control character",)),
    "tenant with C1": ({"tenant": "a\u009fb"}, ("control character",)),
    "empty idempotency key": ({"idempotency_key": ""}, ("empty", "1024")),
    "long idempotency key": ({"idempotency_key": "x" * 1025}, ("1024",)),
    "idempotency key with a line break": ({"idempotency_key": "a\nb"}, ("control character",)),
    "payload that is no JSON": ({"payload": "{oops}"}, ("JSON", "json")),
    "empty payload": ({"payload": ""}, ("JSON", "json")),
    "two payloads": ({"payload": "{} {}"}, ("JSON", "json")),
    "payload with NUL behind it": ({"payload": "{}\0{"}, ("JSON", "json", "NUL")),
    "large payload": ({"payload": '"' + "x" * MIB + '"'}, ("1048576", "1 MiB", "longer"), ("sqlite insert",)),
    "headers in an array": ({"headers": '["a","b"]'}, ("object",)),
    "headers in a string": ({"headers": '"ab"'}, ("object",)),
    "header with a number": ({"headers": '{"a":1}'}, ("string",)),
    "header with null": ({"headers": '{"a":null}'}, ("string",)),
    "header with true behind others": ({"headers": '{"a":"b","c":"d","e":true}'}, ("string",)),
    "header with a number before others": ({"headers": '{"a":1,"c":"d"}'}, ("string",)),
    "nested headers": ({"headers": '{"a":{"b":"c"}}'}, ("string",)),
    "nested headers before others": ({"headers": '{"a":{"b":"c"},"d":"e"}'}, ("string",)),
    "empty object in headers": ({"headers": '{"a":{}}'}, ("string",)),
    "array in headers": ({"headers": '{"a":["b"]}'}, ("string",)),
    "array of colons in headers": ({"headers": '{"a":[":"],"b":"c"}'}, ("string",)),
    "header that ends in a brace": ({"headers": '{"a{":1}'}, ("string",)),
    "header of a brace": ({"headers": '{"{":1}'}, ("string",)),
    "header of a backslash": ({"headers": '{"a\\\\":1,"b":"c"}'}, ("string",)),
    "header of quotes": ({"headers": '{"\\":\\"":1}'}, ("string",)),
    "header of a comma": ({"headers": '{",":1}'}, ("string",)),
    "header of a colon": ({"headers": '{":":1}'}, ("string",)),
    "array in a header of a comma": ({"headers": '{",":[]}'}, ("string",)),
    "header without a name, not a string": ({"headers": '{"":1}'}, ("string", "empty")),
    "header twice": ({"headers": '{"a":{},"a":"b"}'}, ("string",)),
    "header without a name": ({"headers": '{"":"v"}'}, ("empty", "strings", "NAME=VALUE"), ("sqlite insert",)),
    "header with a line break in its name": ({"headers": '{"a\\nb":"v"}'}, ("control character", "strings"), ("sqlite insert",)),
    "header with an escaped NUL": ({"headers": '{"a":"\\u0000"}'}, ("NUL", "u0000", "strings"), ("sqlite insert",)),
    "65 headers": ({"headers": json.dumps({f"h{i}": "" for i in range(65)})}, ("64",)),
    "65 headers as short as can be": ({"headers": "{" + ",".join(f'"{chr(0x4e00 + i)}":""' for i in range(65)) + "}"}, ("64",)),
    "9,000 headers": ({"headers": "{" + ",".join('"a":""' for i in range(9000)) + "}"}, ("64", "twice")),
    "large headers": ({"headers": '{"a":"' + "x" * 65529 + '"}'}, ("65536", "64 KiB")),
    "version too large": ({"version": 2 ** 63}, ("64 bits", "bigint", "9223372036854775808", "whole number", "does not exist")),
    "version that is text": ({"version": "soon"}, ("64 bits", "bigint", "whole number", "number")),
    "time before 1970": ({"not_before": -1}, ("1970",)),
    "time eleven years ahead": ({"not_before": TEN_YEARS + 365 * DAY}, ("ten years",)),
    "time without an end": ({"not_before": "infinity"}, ("ten years",)),
    "time without a beginning": ({"not_before": "-infinity"}, ("1970",)),
    "created before 1970": ({"created_at": -1}, ("1970",)),
    "created without an end": ({"created_at": "infinity"}, ("one day ahead", "9999")),
    "created without a beginning": ({"created_at": "-infinity"}, ("1970",)),
    "created two days ahead": ({"created_at": 2 * DAY}, ("one day ahead",), ("sqlite insert",)),
    "id that is no UUID": ({"id": "7"}, ("uuid", "UUID")),
    "id of version 4": ({"id": UUID[:14] + "4" + UUID[15:]}, ("id: a UUIDv7",)),
    "id of another variant": ({"id": UUID[:19] + "c" + UUID[20:]}, ("id: a UUIDv7",)),
    "id with other letters": ({"id": UUID[:-1] + "g"}, ("uuid", "UUID")),
}

# Only SQLite can express these.
TYPES = {
    "bytes as type": ({"type": b"order.paid"}, ("255",)),
    "bytes as aggregate type": ({"aggregate_type": b"order"}, ("1024",)),
    "bytes as aggregate id": ({"aggregate_id": b"42"}, ("1024",)),
    "bytes as tenant": ({"tenant": b"acme"}, ("1024",)),
    "bytes as payload": ({"payload": b"{}"}, ("JSON",)),
    "bytes as headers": ({"headers": b"{}"}, ("object",)),
    "bytes as id": ({"id": UUID.encode()}, ("UUID",)),
    "NUL behind the id": ({"id": UUID + "\0x"}, ("NUL", "UUID")),
    "NUL behind headers": ({"headers": "{}\0x"}, ("NUL", "object")),
    "bytes as version": ({"version": b"1"}, ("64 bits",)),
    "half a version": ({"version": 1.5}, ("64 bits",)),
    "infinite version": ({"version": float("inf")}, ("64 bits",)),
    "text as time": ({"not_before": "soon"}, ("milliseconds",)),
    "bytes as time": ({"not_before": b"1"}, ("milliseconds",)),
    "half a millisecond": ({"not_before": 1.5}, ("milliseconds",)),
    "infinite time": ({"not_before": float("inf")}, ("milliseconds",)),
    "time before all": ({"not_before": float("-inf")}, ("milliseconds",)),
    "text as created_at": ({"created_at": "soon"}, ("milliseconds",)),
    "infinite created_at": ({"created_at": float("inf")}, ("milliseconds",)),
    "largest created_at": ({"created_at": 2 ** 63 - 1}, ("milliseconds",)),
    "payload over 64 MiB": ({"payload": '"' + "x" * (64 * MIB) + '"'}, ("64 MiB",)),
}

EXTREMES = {
    "bare": {"aggregate_type": None, "aggregate_id": None, "payload": "null"},
    "longest type": {"type": "x" * 255},
    "longest type of wide characters": {"type": "\u00e9" * 127 + "x"},
    "odd type": {"type": "\u3042.\u00e4/\"'*\\%\U0001F600"},
    "longest key": {"aggregate_type": "t" * 1024, "aggregate_id": "\U0001F600" * 256},
    "odd key": {"aggregate_type": "it's a \"type\"", "aggregate_id": " a/b/c \\ '; DROP TABLE event; -- $1 %s ? \u2028\ufeff"},
    "key at the edges of what is refused": {"aggregate_type": " .0~\u00a0", "aggregate_id": "\u00a0/\U0010ffff"},
    "type at the edges of what is refused": {"type": "!~\u00a1\u167f\u1681\u1fff\u200b\u2027\u202a\u202e\u2030\u205e\u2060\u2fff\u3001"},
    "longest tenant and idempotency key": {"tenant": "t" * 1024, "idempotency_key": "k" * 1024},
    "odd payload": {"payload": ' { "a" : [1.0, 1e3, -0, "\\u00e9\u00e9\\u0000\\ud83d\\ude00"],"a":1, "b":{} } '},
    "largest payload": {"payload": '"' + "x" * (MIB - 2) + '"'},
    "empty headers": {"headers": " { } "},
    "odd headers": {"headers": '{"a":"","b ":":","{c}":"{\\"}","d":"\\\\","e\\\\":"\\\\\\"","\\"f\\"":",","g":"\\":1","h":"\\n\\u00e9"}'},
    "most headers": {"headers": "{" + ",".join(f'"h{i}":"\\":\\"{"x" * 500}"' for i in range(64)) + "}"},
    "headers named like the marks between them": {"headers": '{":":"x",",":":","\\":":"\\":","{":"}","}":"{","[":"]"}'},
    "largest headers": {"headers": '{"a":"' + "x" * 65528 + '"}'},
    "lowest version": {"version": -2 ** 63},
    "highest version": {"version": 2 ** 63 - 1},
    "furthest time": {"not_before": TEN_YEARS - DAY},
    "earliest time": {"not_before": "earliest"},
}


class Message(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("type", ctypes.c_char_p), ("aggregate_type", ctypes.c_char_p),
                ("aggregate_id", ctypes.c_char_p), ("payload", ctypes.c_char_p), ("payload_size", ctypes.c_size_t),
                ("headers", ctypes.c_char_p), ("idempotency_key", ctypes.c_char_p), ("tenant", ctypes.c_char_p),
                ("has_version", ctypes.c_int), ("version", ctypes.c_int64), ("not_before", ctypes.c_int64)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("retry_class", ctypes.c_int), ("native", ctypes.c_int), ("reserved", ctypes.c_int),
                ("text", ctypes.c_char * 496)]


class WaysIn:
    """The ways that every store has: the CLI, lines of JSON, and C."""

    def ways(self):
        return {"cli": self.by_cli, "ndjson": self.by_ndjson, "c": self.by_c, **self.own_ways()}

    def time_of(self, value):
        """time_of returns milliseconds since 1970 of a time that is written as so many ahead, or is negative."""
        if value == "earliest": return 1
        return value if value < 0 else now() + value

    def run_cli(self, *args, **kw):
        done = self.outbox("emit", *args, status=None, **kw)
        if done.returncode: raise Refused(done.stderr)

    def by_cli(self, ev):
        if "id" in ev or "created_at" in ev or any("\0" in str(v) for v in ev.values()): raise Cannot
        if "/" in (ev["aggregate_type"] or "") or isinstance(ev.get("not_before"), str): raise Cannot
        args = [] if ev["type"] is None else [ev["type"]]
        half = (ev["aggregate_type"] is None) != (ev["aggregate_id"] is None)
        if half: args += ["--key", ev["aggregate_type"] or "/" + ev["aggregate_id"]]
        elif ev["aggregate_type"] is not None: args += ["--key", ev["aggregate_type"] + "/" + ev["aggregate_id"]]
        for name in ("tenant", "idempotency_key", "version"):
            if name in ev: args += ["--" + name.replace("_", "-"), ev[name]]
        if "not_before" in ev:
            if ev["not_before"] < 0: raise Cannot
            args += ["--delay", f"{ev['not_before'] // 1000}s"]
        if "headers" in ev:
            try: pairs = json.loads(ev["headers"], object_pairs_hook=list)
            except ValueError: raise Cannot
            if not all(isinstance(p, tuple) and isinstance(p[1], str) for p in pairs) or pairs == "ab": raise Cannot
            if not pairs or any("=" in n or "\0" in v for n, v in pairs) or len(ev["headers"]) == 65536: raise Cannot
            for name, value in pairs: args += ["--header", f"{name}={value}"]
        self.run_cli(*args, "--payload", "-", input=ev["payload"])

    def by_ndjson(self, ev):
        if "id" in ev or "created_at" in ev or "\0" in ev["payload"] or isinstance(ev.get("not_before"), str): raise Cannot
        parts = {name: json.dumps(value) for name, value in ev.items() if value is not None}
        parts["payload"] = ev["payload"]
        if "headers" in ev: parts["headers"] = ev["headers"]
        if "not_before" in ev:
            if ev["not_before"] < 0: raise Cannot
            del parts["not_before"]
            parts["delay"] = f'"{ev["not_before"] // 1000}s"'
        if parts["payload"] in ("", "{oops}", "{} {}"): self.assertNotIn("headers", parts)  # the line would not be JSON
        line = "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n"
        self.run_cli("--ndjson", "-", input=line)

    def by_c(self, ev):
        if "id" in ev or "created_at" in ev or any("\0" in str(v) for v in ev.values()): raise Cannot
        if isinstance(ev.get("version"), str) or ev.get("version") == 2 ** 63: raise Cannot
        at = {"infinity": 2 ** 63 - 1, "-infinity": -2 ** 63}.get(ev.get("not_before"))
        if at is None and "not_before" in ev: at = self.time_of(ev["not_before"])
        m, err = Message(size=ctypes.sizeof(Message)), Error()
        for name in ("type", "aggregate_type", "aggregate_id", "payload", "headers", "idempotency_key", "tenant"):
            if ev.get(name) is not None: setattr(m, name, ev[name].encode())
        if "version" in ev: m.has_version, m.version = 1, ev["version"]
        m.not_before = at or 0
        if self.lib.outbox_emit(self.handle, ctypes.byref(m), None, ctypes.byref(err)): raise Refused(err.text.decode())

    def begin(self):
        self.init()
        self.lib = ctypes.CDLL(str(pathlib.Path(BIN).parent / "src" / "liboutbox.so"))
        self.handle = ctypes.c_void_p()
        err = Error()
        opened = self.lib.outbox_open(self.store.encode(), None, ctypes.byref(self.handle), ctypes.byref(err))
        self.assertEqual(opened, 0, err.text)
        self.addCleanup(self.lib.outbox_close, self.handle)

    def count(self):
        return self.sql(f"SELECT count(*) FROM {self.table}")[0][0]

    def check_refused(self, way, name, broken, words):
        ev = {**SOUND, **broken}
        field = next(iter(broken))
        try:
            self.ways()[way](ev)
        except Cannot:
            return 0
        except Refused as why:
            text = str(why)
            self.assertTrue(any(word in text for word in words), f"{way}, {name}: {text[:500]}")
            names = {field, field.replace("_", " "), field.replace("_", "-"), "key" if field in AGGREGATE else field}
            if field == "type": names.add("TYPE")
            if field == "headers": names.add("header")
            if field == "not_before": names.add("delay")
            self.assertTrue(any(n in text for n in names) or field in ("id", "version", "payload"), f"{way}, {name}: {text[:500]}")
            self.assertEqual(self.count(), 0, f"{way}, {name}: refused, but stored")
            return 1
        self.fail(f"{way} accepted {name}")

    def test_every_violation_is_refused_on_every_path(self):
        self.begin()
        tried = {way: 0 for way in self.ways()}
        for way, (name, (broken, words, *but)) in itertools.product(tried, VIOLATIONS.items()):
            if but and way in but[0]: continue
            with self.subTest(way=way, violation=name):
                tried[way] += self.check_refused(way, name, broken, words)
        for way, n in tried.items(): self.assertGreater(n, 25, f"{way}: too few violations were tried to prove anything")

    def test_every_extreme_value_arrives_intact_on_every_path(self):
        self.begin()
        stored = {}
        for way, (name, odd) in itertools.product(self.ways(), EXTREMES.items()):
            with self.subTest(way=way, extreme=name):
                ev = {**SOUND, **odd}
                if "idempotency_key" in ev: ev["idempotency_key"] = (way + ev["idempotency_key"])[:1024]
                if ev.get("not_before") == "earliest" and way in ("cli", "ndjson"): continue
                try:
                    self.ways()[way](ev)
                except Cannot:
                    continue
                seq, payload = self.check_stored(way, ev)
                stored[seq] = way, name, ev, payload, bool(odd.get("not_before")) and odd["not_before"] != "earliest"
        lines = self.delivered()
        for seq, (way, name, ev, payload, later) in stored.items():
            with self.subTest(way=way, extreme=name):
                self.assertEqual(len(lines[seq]), 0 if later else 1)
                if not later: self.check_line(lines[seq][0], ev, payload)

    def check_stored(self, way, ev):
        """check_stored compares the newest row with the event, and returns its seq and payload."""
        seq, *got = self.sql(f"SELECT seq, type, aggregate_type, aggregate_id, {self.text_of('payload')}, "
                             f"{self.text_of('headers')}, tenant, version FROM {self.table} ORDER BY seq DESC LIMIT 1")[0]
        headers = got[4] if way != "cli" or "headers" not in ev else ev["headers"]
        self.assertEqual([*got[:4], headers, *got[5:]],
                         [ev["type"], ev["aggregate_type"], ev["aggregate_id"], ev["payload"].strip() if way == "ndjson"
                          else ev["payload"], ev.get("headers", None) if way != "ndjson" or "headers" not in ev
                          else ev["headers"].strip(), ev.get("tenant"), ev.get("version")])
        return seq, got[3]

    def check_line(self, line, ev, payload):
        self.assertIn(f'"payload":{payload},'.encode(), line)
        sent = json.loads(line)
        self.assertEqual([sent[n] for n in ("type", "aggregate_type", "aggregate_id", "version")],
                         [ev["type"], ev["aggregate_type"], ev["aggregate_id"], ev.get("version")])
        if "headers" in ev: self.assertEqual(sent["headers"], json.loads(ev["headers"]))

    def delivered(self):
        """delivered drains once, and returns {seq: [lines]}; events that are not due yet have none."""
        out = self.path("out.ndjson")
        self.drain("--consumer", "c", "--order", "none", "--sink", f"file:{out}")
        lines = collections.defaultdict(list)
        for line in out.read_bytes().split(b"\n")[:-1]: lines[json.loads(line)["seq"]].append(line)
        return lines

    def test_stored_violation_never_stops_a_consumer(self):
        """Bypassing the checks, like an older version's events and a superuser's."""
        self.begin()
        self.let_in_anything()
        broken = self.malformed()
        for ev in broken: self.force({**SOUND, **ev})
        for at in self.absurd_times(): self.force({**SOUND, "aggregate_id": "later", "not_before": at})
        for at in self.absurd_times(): self.force({**SOUND, "aggregate_id": "odd", "created_at": at})
        self.outbox("emit", "last")
        out = self.path("out.ndjson")
        for order in ("none", "key"):
            for _ in range(2): self.drain("--consumer", order, "--order", order, "--sink", f"file:{out}-{order}")
            came = [json.loads(line) for line in pathlib.Path(f"{out}-{order}").read_bytes().splitlines()]
            self.assertIn("last", [ev["type"] for ev in came])
            dead = self.json("dead", "list", "--consumer", order) if broken else []
            dead = [dead] if isinstance(dead, dict) else dead
            self.assertEqual(len(dead), len(broken))
            for letter in dead: self.assertIn("malformed", letter["error"])
            # Events with an odd creation time are delivered; events due later wait.
            self.assertEqual(len([ev for ev in came if ev["aggregate_id"] == "odd"]), len(self.absurd_times()))
        for command in (["status"], ["status", "--json"], ["events", "list"], ["consumers", "list"], ["dead", "list"], ["doctor"]):
            self.outbox(*command, status=None if command == ["doctor"] else 0)


class LimitsOfSqlite(WaysIn, Case):
    table = "outbox_event"

    def text_of(self, column): return column

    def own_ways(self):
        return {"sqlite insert": self.by_insert}

    def by_insert(self, ev):
        if "idempotency_key" in ev: raise Cannot
        ev = dict(ev)
        if isinstance(ev.get("not_before"), str) and ev["not_before"].endswith("infinity"): raise Cannot  # see TYPES
        if isinstance(ev.get("created_at"), str) and ev["created_at"].endswith("infinity"): raise Cannot
        if ev.get("not_before") == "earliest" or isinstance(ev.get("not_before"), int): ev["not_before"] = self.time_of(ev["not_before"])
        if ev.get("version") == 2 ** 63: ev["version"] = float(2 ** 63)
        self.insert(ev)

    def insert(self, ev):
        try:
            self.sql(f"INSERT INTO outbox_event ({', '.join(ev)}) VALUES ({', '.join('?' * len(ev))})", *ev.values())
        except sqlite3.IntegrityError as why:
            raise Refused(str(why))

    def test_values_of_the_wrong_column_type_are_refused(self):
        self.begin()
        for name, (broken, words) in TYPES.items():
            with self.subTest(name):
                with self.assertRaises(Refused) as caught: self.insert({**SOUND, **broken})
                self.assertTrue(any(word in str(caught.exception) for word in words), caught.exception)
                self.assertEqual(self.count(), 0)

    def test_update_cannot_break_a_limit(self):
        self.begin()
        self.insert(SOUND)
        for name, (broken, _, *but) in VIOLATIONS.items():
            if but or "idempotency_key" in broken or isinstance(broken.get("created_at", 0), str): continue
            if broken.get("not_before") in ("infinity", "-infinity"): broken = {"not_before": 2 ** 62}
            if broken.get("not_before", 0) > 0: broken = {"not_before": self.time_of(broken["not_before"])}
            if broken.get("version") == 2 ** 63: continue
            with self.subTest(name), self.assertRaises(sqlite3.IntegrityError):
                self.alter_events(f"UPDATE outbox_event SET {next(iter(broken))} = ?", params=tuple(broken.values()))

    def let_in_anything(self):
        self.checks = False

    def force(self, ev):
        db = sqlite3.connect(self.db)
        db.execute("PRAGMA ignore_check_constraints = ON")
        texts = {name: value for name, value in ev.items() if isinstance(value, bytes)}
        with db:
            db.execute(f"INSERT INTO outbox_event ({', '.join(ev)}) VALUES "
                       f"({', '.join('CAST(? AS TEXT)' if name in texts else '?' for name in ev)})", list(ev.values()))
        db.close()

    def malformed(self):
        return [{"type": b"a\xff"}, {"aggregate_id": b"\x80"}, {"payload": b'"\xc3"'}, {"type": "a\nb"}, {"tenant": "a\0b"},
                {"id": "7"}, {"headers": "[1]"}, {"payload": "{}\0{"}]

    def absurd_times(self):
        return [2 ** 63 - 1, float("inf")]


class LimitsOfPostgres(WaysIn, PgCase):
    table = "outbox.event"

    def text_of(self, column): return column + "::text"

    def own_ways(self):
        return {"emit": self.by_emit, "emit by name": self.by_named_emit, "emit_once": self.by_emit_once, "insert": self.by_insert,
                "copy": self.by_copy}

    def ask(self, statement, *params):
        import psycopg2
        try:
            self.sql(statement, *params)
        except ValueError as why:  # psycopg2 on NUL
            raise Cannot from why
        except psycopg2.Error as why:
            raise Refused(str(why))

    def values(self, ev):
        def time_text(value):
            if isinstance(value, str) and value != "earliest": return value
            return time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(self.time_of(value) / 1000))
        return {name: time_text(v) if name in ("not_before", "created_at") else v for name, v in ev.items()}

    def by_emit(self, ev):
        if "id" in ev or "created_at" in ev: raise Cannot
        ev = self.values(ev)
        self.ask("SELECT outbox.emit(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                 *[ev.get(n) for n in ("type", "aggregate_type", "aggregate_id", "payload", "headers", "idempotency_key", "version",
                                       "not_before", "tenant")])

    def by_named_emit(self, ev):
        if "id" in ev or "created_at" in ev: raise Cannot
        ev = self.values(ev)
        self.ask(f"SELECT outbox.emit({', '.join(f'{name} => %s' for name in ev)})", *ev.values())

    def by_emit_once(self, ev):
        if "id" in ev or "created_at" in ev: raise Cannot
        ev = {"headers": None, "idempotency_key": f"k{self.count()}", **self.values(ev)}
        self.ask(f"SELECT outbox.emit_once({', '.join(f'{name} => %s' for name in ev)})", *ev.values())

    def by_insert(self, ev):
        if "idempotency_key" in ev: raise Cannot
        ev = self.values(ev)
        self.ask(f"INSERT INTO outbox.event ({', '.join(ev)}) VALUES ({', '.join(['%s'] * len(ev))})", *ev.values())

    def by_copy(self, ev):
        import psycopg2
        if "idempotency_key" in ev or any("\0" in str(v) for v in ev.values()): raise Cannot
        ev = self.values(ev)
        def field(value):
            if value is None: return "\\N"
            for a, b in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")): value = str(value).replace(a, b)
            return value
        db = psycopg2.connect(self.store)
        try:
            with db, db.cursor() as cursor:
                cursor.copy_expert(f"COPY outbox.event ({', '.join(ev)}) FROM STDIN",
                                   io.StringIO("\t".join(field(v) for v in ev.values()) + "\n"))
        except psycopg2.Error as why:
            raise Refused(str(why))
        finally:
            db.close()

    def test_update_cannot_break_a_limit(self):
        import psycopg2
        self.begin()
        self.by_emit(SOUND)
        for name, (broken, _) in [(n, v[:2]) for n, v in VIOLATIONS.items()]:
            if "idempotency_key" in broken or "\0" in str(next(iter(broken.values()))) or "version" in broken: continue
            with self.subTest(name), self.assertRaises(psycopg2.Error):
                column, value = next(iter(self.values(broken).items()))
                self.alter_events(f"UPDATE outbox.event SET {column} = %s", params=(value,))

    def test_payload_limit_is_a_setting_with_a_ceiling(self):
        self.begin()
        large = lambda n: json.dumps("x" * (n - 2))
        insert = "SELECT set_config('outbox.max_payload', %s, true); INSERT INTO outbox.event (type, payload) VALUES ('a', %s)"
        self.ask(insert, "3MB", large(3 * MIB))
        with self.assertRaises(Refused): self.ask(insert, "3MB", large(3 * MIB + 1))
        with self.assertRaises(Refused): self.ask(insert, "1GB", large(64 * MIB + 1))
        self.outbox("emit", "b", "--payload", "-", "--max-payload", "3MiB", input=large(3 * MIB))
        self.outbox("emit", "b", "--payload", "-", "--max-payload", "3MiB", "--idempotency-key", "k", input=large(3 * MIB))
        self.assertEqual(self.count(), 3)

    def test_emit_accepts_driver_parameter_types(self):
        """Each type and none for each argument, in a call with literals and as a parameter of a prepared statement."""
        self.begin()
        body, head = '{"b": [1.0],"a":2}', '{"trace": "1"}'
        kinds = ["unknown", "text", "varchar", "json", "jsonb"]
        ids = {"unknown": "42", "text": "42", "varchar": "42", "smallint": "42", "int": "42", "bigint": "42", "numeric": "42",
               "uuid": UUID}
        wanted, n = [], 0
        with self.connection() as db:
            for (kind, value), p, h in itertools.product(ids.items(), kinds, [*kinds, None]):
                def cast(text, t): return f"'{text}'" + ("" if t == "unknown" else f"::{t}")
                args = [cast("a.b", p if p in ("text", "varchar") else "unknown"), "'order'", cast(value, kind), cast(body, p)]
                if h: args.append(cast(head, h))
                db.execute(f"SELECT outbox.emit({', '.join(args)})")
                db.execute(f"SELECT outbox.emit({', '.join(args)}, version => 5)")
                types = ["unknown", "unknown", kind, p, *([h] if h else [])]
                db.execute(f"PREPARE e ({', '.join(types)}) AS SELECT outbox.emit({', '.join(f'${i + 1}' for i in range(len(types)))})")
                db.execute(f"EXECUTE e ({', '.join(['%s'] * len(types))})", ("a.b", "order", value, body, head)[:len(types)])
                db.execute("DEALLOCATE e")
                n += 1
                db.execute(f"SELECT duplicate FROM outbox.emit_once({', '.join(args[:4])}, {cast(head, h or 'unknown')}, 'k{n}', 5::smallint)")
                self.assertEqual(db.fetchone(), (False,))
                wanted += [(value, body if p != "jsonb" else '{"a": 2, "b": [1.0]}')] * 4
            db.execute("SELECT aggregate_id, payload::text FROM outbox.event ORDER BY seq")
            self.assertEqual(db.fetchall(), wanted)
            db.execute("SELECT outbox.emit('a', NULL, NULL, 'null', NULL, NULL, NULL, NULL, NULL)")
            for statement in ("emit($1, $2, $3, $4)", "emit($1, $2, $3, $4, $5, $6, $7, $8, $9)", "emit_once($1, $2, $3, $4, $5, $6)",
                              "handle_once($1, $2)", "handle_once($1, $2, $3)", "settle($1, $2, $3, $4)", "settle($1, $2, $3)",
                              "settle($1, $2, $3, $4, $5)"):
                db.execute(f"PREPARE e AS SELECT outbox.{statement}")
                db.execute("DEALLOCATE e")

    def test_handle_once_and_settle_accept_driver_types(self):
        self.begin()
        with self.connection() as db:
            for key, payload in itertools.product(("'k'", "'k'::varchar", "7", "7::bigint", f"'{UUID}'::uuid"),
                                                  ("'{}'", "'{}'::text", "'{}'::json", "'{}'::jsonb")):
                db.execute("BEGIN")
                db.execute(f"SELECT outbox.handle_once('h', {key}, {payload}), outbox.handle_once('h', {key}, {payload})")
                self.assertEqual(db.fetchone(), (True, False), (key, payload))
                db.execute(f"SELECT outbox.handle_once('i', {key}), outbox.handle_once('i', {key})")
                self.assertEqual(db.fetchone(), (True, False))
                db.execute("ROLLBACK")
            for bad in ("'', 'k'", "'h', ''", "NULL, 'k'", "'h', NULL", "'h', repeat('x', 1025)"):
                with self.assertRaises(Refused): self.ask(f"SELECT outbox.handle_once({bad})")
            db.execute("SELECT outbox.register('c')")
            for outcomes in ("'[]'", "'[]'::text", "'[]'::json", "'[]'::jsonb", "'[]'::varchar"):
                db.execute("SELECT outbox.emit('a', NULL, NULL, '1')")
                db.execute("SELECT DISTINCT epoch FROM outbox.claim('c', 'w')")
                epoch = db.fetchone()[0]
                db.execute(f"SELECT outbox.settle('c', 'w', {epoch}, {outcomes})")
                self.assertEqual(db.fetchone(), (True,))

    def connection(self):
        import contextlib
        import psycopg2

        @contextlib.contextmanager
        def cursor():
            db = psycopg2.connect(self.store)
            db.autocommit = True
            try:
                with db.cursor() as c: yield c
            finally:
                db.close()
        return cursor()

    def let_in_anything(self):
        for name, domain in self.sql("SELECT c.conname, t.typname FROM pg_constraint c JOIN pg_type t ON t.oid = c.contypid "
                                     "WHERE t.typnamespace = 'outbox'::regnamespace"):
            self.sql(f'ALTER DOMAIN outbox.{domain} DROP CONSTRAINT "{name}"')
        self.sql('ALTER TABLE outbox.event DROP CONSTRAINT "aggregate_type and aggregate_id: both or neither"')

    def force(self, ev):
        self.sql(f"INSERT INTO outbox.event ({', '.join(ev)}) VALUES ({', '.join(['%s'] * len(ev))})", *ev.values())

    def malformed(self):
        return [{"type": "a\nb"}, {"aggregate_id": "\x1f"}, {"tenant": "a\tb"}, {"headers": "[1]"}]

    def absurd_times(self):
        return ["infinity", "200000-01-01"]
