"""The information a relay shows about the broker behind a sink, the same for every broker: in its metrics and in `doctor
--connect`."""
import re
import urllib.request

from support import wait_until

SAMPLE = re.compile(r'outbox_sink_(\w+)\{(.*)\} (\S+)$', re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


class BrokerView:
    """A part of a Case."""

    def serve(self, *args, env=None):
        relay = self.relay("--listen", "127.0.0.1:0", *args, env=env)
        relay.url = re.search(r"listening on (http://\S+)", relay.output())[1]
        return relay

    def shown(self, relay):
        """shown returns the labels of the broker and its numbers."""
        with urllib.request.urlopen(relay.url + "/metrics", timeout=30) as answer: text = answer.read().decode()
        found = {name: (dict(LABEL.findall(labels)), float(value)) for name, labels, value in SAMPLE.findall(text)}
        if "broker_info" not in found: return None
        numbers = {name: found[name][1] for name in ("connected", "unconfirmed", "confirm_lag_seconds")}
        return {**found["broker_info"][0], **numbers}

    def wait_shown(self, relay, **want):
        """wait_shown waits until the broker is shown like this, and returns the values shown; an expected value may be a
        predicate."""
        def fits():
            have = self.shown(relay) or {}
            ok = all(value(have.get(name)) if callable(value) else have.get(name) == value for name, value in want.items())
            return have if ok else None
        return wait_until(fits, what=lambda: f"{want}\nbut {self.shown(relay)}\n{relay.output()}")

    def check_view(self, args, freeze, thaw, **want):
        """check_view checks that a relay shows the broker and its leader, and, when the broker stalls, the unconfirmed events
        and their age; and that the doctor names it. The settings must allow for seconds without an answer."""
        done = self.outbox("doctor", "--connect", *args, status=None)
        self.assertIn(f"{want['kind']} at {want['broker']} answered within", done.stdout)
        if want["leader"]: self.assertIn(f"leader: {want['leader']}", done.stdout)
        with self.serve(*args, "--timeout", "60s") as relay:
            self.emit("a.b")
            wait_until(lambda: self.json("consumers", "show", "out")["delivered"] == 1, what=relay.output)  # otherwise that event may be the unconfirmed one
            self.wait_shown(relay, consumer="out", connected=1, unconfirmed=0, confirm_lag_seconds=0, **want)
            freeze()
            try:
                self.emit("a.b")
                first = self.wait_shown(relay, unconfirmed=1, confirm_lag_seconds=lambda s: s > 0.2)
                self.wait_shown(relay, unconfirmed=1, confirm_lag_seconds=lambda s: s > first["confirm_lag_seconds"] + 0.2)
            finally:
                thaw()
            self.wait_shown(relay, unconfirmed=0, confirm_lag_seconds=0, **want)
