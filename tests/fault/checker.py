"""The one checker of the fault suite. Its input is the producers' log, the final content of the store, each consumer's
deliveries in order, and the dead letters; it reports and counts every violation.

    c = Checker(told={1: COMMITTED, 2: ROLLED_BACK, 3: UNKNOWN}, stored=[(1, Fact("k/1", 1, b"..."))])
    c.consumer("mail", got=[(1, b"...")], dead=(), bound=0)
    c.left("outbox_claim", [])
    c.verdict()  # raises Broken on any violation

An event has a name (anything hashable that it carries) and a Fact. An event whose commit got no answer may exist or not
(UNKNOWN); the store decides, and from then on it counts like the others: for every
consumer, or for none."""
import collections
import json
import pathlib
import typing

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"
SHOWN = 5  # of a kind, in a complaint


class Fact(typing.NamedTuple):
    """order grows within a key, in the order of events; body must arrive unchanged."""
    key: typing.Any
    order: typing.Any
    body: typing.Any


class Broken(AssertionError):
    """A guarantee was broken. When this name is in a traceback, run.py does not rerun the case."""


class Checker:
    """(1) counts has a number for each of KINDS, over all consumers. (2) complaints is empty exactly if all is well."""

    KINDS = ("lost", "phantoms", "changed", "misordered", "duplicates", "bound", "dead", "left")

    def __init__(self, told, stored):
        self.counts = dict.fromkeys(self.KINDS, 0)
        self.complaints, self.notes = [], []
        self.facts = {}
        twice = [name for name, fact in stored if self.facts.setdefault(name, fact) is not fact]
        self.complain("phantoms", "stored twice", twice)
        self.complain("phantoms", "stored, and nobody emitted it", [n for n in self.facts if n not in told])
        self.complain("phantoms", "stored, though rolled back", [n for n in self.facts if told.get(n) == ROLLED_BACK])
        self.complain("lost", "committed, and not stored",
                      [n for n, fate in told.items() if fate == COMMITTED and n not in self.facts])

    @property
    def events(self):
        return len(self.facts)

    def complain(self, kind, what, cases):
        """complain counts the cases, and keeps the first few."""
        cases = list(cases)
        if not cases: return
        self.counts[kind] += len(cases)
        self.complaints.append(f"{what} ({len(cases)}): {', '.join(map(str, cases[:SHOWN]))}")

    def consumer(self, who, got, dead=(), bound=0):
        """got is [(name, body)] in order of arrival; dead has the names of dead letters; at most `bound` repeats are
        allowed."""
        dead, seen = set(dead), set()
        first = [name for name, _ in got if not (name in seen or seen.add(name))]
        self.complain("lost", f"{who}: lost", [n for n in self.facts if n not in seen and n not in dead])
        self.complain("phantoms", f"{who}: got what is not stored", [n for n in first if n not in self.facts])
        self.complain("phantoms", f"{who}: buried what is not stored", [n for n in dead if n not in self.facts])
        self.complain("changed", f"{who}: changed",
                      [(n, body) for n, body in got if n in self.facts and body != self.facts[n].body])
        self.complain("misordered", f"{who}: out of order", self.misordered(first))
        repeats = len(got) - len(first)
        self.counts["duplicates"] += repeats
        self.counts["bound"] += bound
        self.counts["dead"] += len(dead)
        if repeats > bound: self.complaints.append(f"{who}: {repeats} repeats, more than {bound}")
        self.notes.append(f"{who} {len(first)} + {len(dead - seen)} dead, {repeats} repeats of at most {bound}")

    def misordered(self, first):
        last = {}
        for name in first:
            fact = self.facts.get(name)
            if fact is None or fact.key is None: continue
            before = last.get(fact.key)
            if before is not None and fact.order < before: yield f"{name} of key {fact.key}: {fact.order} after {before}"
            else: last[fact.key] = fact.order

    def left(self, where, rows):
        """left checks that after the faults no event is claimed or parked."""
        self.complain("left", f"left in {where}", rows)

    def verdict(self):
        if self.complaints: raise Broken("\n".join(self.complaints))


def whole_lines(path):
    """whole_lines returns the lines of a file sink as [(event, the bytes of its payload)]; [] if the file does not exist. It
    omits a line without its end."""
    try:
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in data.split(b"\n")[:-1]:
        raw = line[line.index(b'"payload":') + 10:line.rindex(b',"headers":')]
        found.append((json.loads(line), raw.decode()))
    return found


def tally(checkers):
    """tally adds up the counts of several checkers."""
    total = collections.Counter()
    for c in checkers: total.update(c.counts)
    return total
