"""The bugs of tests/sim/bugs apply to the current code, each in exactly one way."""
# build: plain
import pathlib
import tempfile
import unittest

import bugs
from support import ROOT

CODE = """static int other(int n)
{
    return n;
}

/* claim is the one that is meant. */
int claim(struct lane *l,
          int n)
{
    if (n == 0) return 0;
    l->to =
        l->from + n;
    return n;
}
"""


def bug(text, name="EXAMPLE"):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, name + ".patch")
        path.write_text(text)
        return bugs.read(path)


class Bugs(unittest.TestCase):
    def changed(self, old, new, function="claim"):
        return bugs.change(CODE, bugs.Change("claim.c", function, old, new))

    def test_every_bug_applies_to_the_code(self):
        for one in bugs.all_bugs().values():
            with self.subTest(one.name):
                for path, text in bugs.mutate(one).items(): self.assertNotEqual(text, (ROOT / path).read_text())

    def test_every_file_in_the_folder_is_a_bug(self):
        self.assertEqual({path.name for path in bugs.FOLDER.iterdir()}, {"README.md", *(f"{name}.patch" for name in bugs.all_bugs())})

    def test_bug_names_its_effect_its_detector_and_its_change(self):
        it = bug("One too far.\nSeen by: sim --seeds 40\n\n@@ src/a.c: claim\n l->to\n-= n;\n+= n + 1;\n@@ src/b.h\n-1\n+2\n")
        self.assertEqual(it, ("EXAMPLE", "One too far.", ["sim", "--seeds", "40"],
                              [("src/a.c", "claim", "l->to\n= n;", "l->to\n= n + 1;"), ("src/b.h", "", "1", "2")]))

    def test_incomplete_bug_description_is_refused(self):
        for text in ("@@ src/a.c\n-1\n+2\n", "What.\n\n@@ src/a.c\n-1\n+2\n", "What.\nSeen by: sim\n", "What.\nSeen by: nobody\n\n@@ a\n-1\n",
                     "What.\nSeen by: sim\n\n@@ src/a.c\n+2\n", "What.\nSeen by: sim\n\n@@ src/a.c\n 2\n", "What.\nSeen by: sim\n\n@@ a\n-1\n2\n"):
            with self.subTest(text), self.assertRaisesRegex(bugs.Stale, "EXAMPLE"): bug(text)

    def test_change_applies_within_its_function_in_any_layout(self):
        self.assertEqual(self.changed("l->to = l->from + n;", "l->to = n;"), CODE.replace("l->to =\n        l->from + n", "l->to = n"))
        self.assertEqual(self.changed("return n;", "return 1;"), "return 1;".join(CODE.rsplit("return n;", 1)))

    def test_change_of_missing_or_ambiguous_text_is_refused(self):
        for old, function, why in (("l->to = 0;", "claim", "0 times"), ("return", "claim", "2 times"), ("return n;", "", "2 times"),
                                   ("l->to", "other", "0 times"), ("l->to", "claims", "no function claims")):
            with self.subTest(old), self.assertRaisesRegex(bugs.Stale, why): self.changed(old, "", function)

    def test_error_names_a_bug_that_no_longer_applies_and_its_place(self):
        stale = bug("What.\nSeen by: sim\n\n@@ src/engine/retry.c\n-this is nowhere\n")
        with self.assertRaisesRegex(bugs.Stale, r"EXAMPLE can no longer be put into src/engine/retry.c: not once but 0 times"):
            bugs.mutate(stale)
        with self.assertRaisesRegex(bugs.Stale, "src/engine/gone.c: no such file"):
            bugs.mutate(bug("What.\nSeen by: sim\n\n@@ src/engine/gone.c\n-this is nowhere\n"))


if __name__ == "__main__":
    unittest.main()
