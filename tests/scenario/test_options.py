"""One table behind flags, environment, file, help, manual page and sample: none has a name that another lacks."""
# build: plain
import json
import re

from support import RESERVED, SOAK, Case, wait_until


class Drift(Case):
    def setUp(self):
        super().setUp()
        self.options = json.loads(self.outbox("help", "--options").stdout)
        self.sample = self.outbox("config", "sample").stdout
        self.examples = dict(re.findall(r"(?m)^#([a-z-]+) = (.*)$", self.sample))

    def names(self, *scopes):
        return {o["name"] for o in self.options if o["scope"] in scopes}

    def test_sample_has_exactly_the_options_of_the_file(self):
        found = re.findall(r"(?m)^#([a-z-]+) = ", self.sample)
        self.assertEqual(found, [o["name"] for o in self.options if o["file"]])
        self.assertLessEqual({"store", "lease", "sink", "drain-deadline", "sweep", "retention", "where"}, set(found))

    def test_sample_is_valid_with_everything_switched_on(self):
        self.path("a.conf").write_text(self.sample)
        said = self.outbox("config", "check", "-c", "a.conf", status=78).stderr
        self.assertRegex(said, r"\Aoutbox: a\.conf: no consumers to run[^\n]*\n\Z")
        all_on = re.sub(r"(?m)^#([a-z-]+ = |\[)", r"\1", self.sample)
        token = self.path("listen.token")
        token.write_text("0123456789abcdef0123456789abcdef\n")
        all_on = all_on.replace("/etc/outbox/listen.token", str(token))
        self.path("b.conf").write_text(all_on)
        env = {"LISTEN_TOKEN": "fedcba9876543210fedcba9876543210"}
        self.assertIn("1 consumer", self.outbox("config", "check", "-c", "b.conf", env=env).stdout)
        rows = self.json("config", "show", "-c", "b.conf", env={"OUTBOX_STORE": ""})
        given = {r["name"] for r in rows if r["origin"] == "file"}
        self.assertEqual(given, self.names("outbox", "consumer"))

    def test_help_of_relay_has_exactly_its_options(self):
        found = re.findall(r"(?m)^ {2,6}(?:-\w, )?--([a-z-]+)", self.outbox("help", "relay").stdout)
        self.assertEqual(sorted(found), sorted(self.names("global", "outbox", "consumer", "relay")))

    def test_help_of_every_command_lists_its_options(self):
        common = {"store", "busy-timeout", "max-payload", "color"}
        bare = re.compile(r"webhook|help|version|config sample")  # these load no settings
        as_relay = {"relay", "doctor", "config show", "config check"}  # these accept all options of a relay
        for scope in {o["scope"] for o in self.options} - {"global", "outbox", "consumer"} - as_relay:
            found = set(re.findall(r"(?m)^ {2,6}(?:-\w, )?--([a-z-]+)", self.outbox("help", *scope.split()).stdout))
            self.assertEqual(found, self.names(scope, "global") | (set() if bare.match(scope) else common), scope)

    def test_manual_page_has_exactly_the_options(self):
        page = self.outbox("help", "--man").stdout
        found = {name.replace("\\-", "-") for name in re.findall(r"(?m)^(?:\\fB\\-\w\\fR, )?\\fB\\-\\-([a-z\\-]+)\\fR",
                                                                 page)}
        self.assertEqual(found, {o["name"] for o in self.options})
        self.assertTrue(page.startswith(".TH OUTBOX 1"))

    def check_given(self, origin, where, give):
        """check_given tests all options at once; in a soak also each alone."""
        settings = [o["name"] for o in self.options if o["file"]]
        for names in [settings, *([name] for name in settings if SOAK)]:
            args, env = give(names)
            rows = self.json("config", "show", *args, env={"OUTBOX_STORE": "", **env})
            given = [(r["name"], r["origin"], r["where"]) for r in rows if r["origin"] != "default"]
            self.assertEqual(sorted(given), sorted((name, origin, where(name)) for name in names))

    def test_every_setting_can_come_from_its_variable(self):
        for o in self.options:
            if o["file"]: self.assertEqual(o["env"], "OUTBOX_" + o["name"].upper().replace("-", "_"))
        variable = lambda name: "OUTBOX_" + name.upper().replace("-", "_")
        self.check_given("environment", variable, lambda names: ([], {variable(n): self.examples[n] for n in names}))

    def test_every_setting_can_come_from_its_flag(self):
        self.check_given("flag", lambda name: f"--{name}",
                         lambda names: ([f"--{name}={self.examples[name]}" for name in names], {}))

    def test_each_option_is_accepted_only_by_its_own_command(self):
        """Each option with its own command and with one other, in turn; a soak tries all commands."""
        scopes = sorted({o["scope"] for o in self.options} - {"global", "outbox", "consumer"})
        own = sorted({o["name"] for o in self.options if o["scope"] in scopes})
        strangers = 0
        for name in own:
            known = [scope for scope in scopes if name in self.known_in(scope)]
            others = [scope for scope in scopes if scope not in known]
            strangers += 1
            for scope in known + (others if SOAK else [others[strangers % len(others)]]):
                done = self.outbox(*scope.split(), f"--{name}=1", "--help", status=None)
                refused = f"unknown option --{name}" in done.stderr
                self.assertNotEqual(refused, scope in known, f"{scope} --{name}: {done.stderr}")

    def test_help_after_options_is_the_commands_help(self):
        help = self.outbox("consume", "--help").stdout
        self.assertEqual(self.outbox("consume", "--group=g", "--name=n", "--drain", "--help").stdout, help)

    def known_in(self, scope):
        shared = ("consumer",) if scope == "relay" or scope.startswith("config ") else ()
        return self.names(scope, "global", "outbox", *shared)

    def test_command_variables_differ_from_exec_sink_variables(self):
        self.init()
        for o in self.options:
            if not o["env"]:
                continue
            self.assertNotIn(o["env"].removeprefix("OUTBOX_"), RESERVED)
            if o["file"] or o["scope"] in ("global", "version"):  # version works with any settings
                continue
            done = self.outbox(*o["scope"].split(), status=None, env={o["env"]: "\x01"})
            self.assertIn(o["env"], done.stderr, f"{o['scope']}: {done.returncode}")


class Members(Case):
    """The output of --json has exactly the members that help, the manual page and `help --members` describe."""

    def setUp(self):
        super().setUp()
        self.rows = json.loads(self.outbox("help", "--members").stdout)

    def members(self, command, when=None):
        return [r["member"] for r in self.rows if (r["command"], r["when"]) == (command, when)]

    def paths(self, documented, value, before=""):
        """paths returns the members of a value as `help --members` writes them; keys within a payload or a map are not members."""
        for name, inner in value.items():
            yield before + name
            one = inner[0] if isinstance(inner, list) and inner else inner
            inside = before + name + ("[]." if isinstance(inner, list) else ".")
            if isinstance(one, dict) and any(m.startswith(inside) for m in documented): yield from self.paths(documented, one, inside)

    def test_every_command_with_json_has_its_members_documented(self):
        options = json.loads(self.outbox("help", "--options").stdout)
        self.assertEqual({r["command"] for r in self.rows}, {o["scope"] for o in options if o["name"] == "json"})
        for r in self.rows: self.assertTrue(r["help"] and r["type"] and r["form"], r)

    def test_help_and_the_manual_page_have_every_member(self):
        page = self.outbox("help", "--man").stdout.replace("\\-", "-")
        for command in {r["command"] for r in self.rows}:
            text = self.outbox("help", *command.split()).stdout
            for r in self.rows:
                if r["command"] == command: self.assertIn(f"      {r['member']}, {r['type']}", text)
        for r in self.rows: self.assertIn(f".TP\n\\fB{r['member']}\\fR, {r['type']}\n{r['help']}.", page)

    def test_printed_members_are_as_documented_and_in_order(self):
        self.init()
        for n in "12": self.outbox("emit", "order.paid", "--key", f"order/{n}")
        with self.relay("--consumer", "mail", "--sink", "exec:exit 65") as relay:
            wait_until(lambda: self.json("status")["store"]["dead"] == 2, what=relay.output)
        self.path("lines").write_text('{"type": "a.b"}\n')
        for args, when in ((["init"], None), (["migrate", "up"], None), (["migrate", "status"], None), (["emit", "a.b"], None),
                           (["emit", "--ndjson", "lines"], "with --ndjson"), (["consumers", "list"], None), (["consumers", "show", "mail"], None),
                           (["consumers", "history", "mail"], None), (["consumers", "pause", "mail"], None), (["status"], None),
                           (["consumers", "set", "mail", "--events", "*"], None), (["consumers", "remove", "mail", "--force", "--dry-run"], None),
                           (["doctor"], None), (["events", "list"], None), (["events", "show", "1"], None), (["events", "retry", "1"], None),
                           (["dead", "list"], None), (["dead", "show", "2"], None), (["dead", "retry", "2"], None), (["trim", "--dry-run"], None),
                           (["config", "show"], None), (["config", "check"], None), (["version"], None)):
            command = " ".join(args[:2]) if any(r["command"] == " ".join(args[:2]) for r in self.rows) else args[0]
            documented = self.members(command, when)
            value = self.json(*args, status=None)
            value = value[0] if isinstance(value, list) else value
            found = list(self.paths(documented, value))
            self.assertTrue(documented and found, args)
            self.assertEqual(found, [m for m in documented if m in found], args)
            self.assertLessEqual({m for m in documented if "." not in m} - set(found), {"delivered_per_s", "functions", "retried", "dropped"}, args)
