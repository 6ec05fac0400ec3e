"""bugs.py: reads the bugs of tests/sim/bugs, applies one to a copy of the sources it names, and builds a program from them.

    python3 tests/sim/bugs.py                               # the list
    python3 tests/sim/bugs.py WINDOW_EDGE                   # the program that must fail, with the bug
    python3 tests/sim/bugs.py WINDOW_EDGE sim --trace       # another program, or other arguments

bugs/README.md describes the format of a bug. The sources themselves are never changed. Only files that a bug changes are
compiled: their objects precede the libraries on the linker's command line and so replace the libraries' objects."""
import collections
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = pathlib.Path(__file__).resolve().parent / "bugs"
LIBRARIES = ("src/liboutbox-internal.a.p/", "tests/librigs.a.p/")
# The programs that may detect a bug, and their places in a tree.
PROGRAMS = {"sim": "tests/sim/sim", "store_sqlite": "tests/contract/test_store_sqlite", "pipeline": "tests/engine/test_pipeline",
            "outbox": "outbox"}
# Optimising takes longer than running; a bug may leave an unused function, which is harmless here.
QUICKLY = ["-O1", "-g0", "-w"]

# A change in `path`, within `function` ("": anywhere): `old` becomes `new`.
Change = collections.namedtuple("Change", "path function old new")
# what: the bug's effect, in a sentence. seen_by: a name of PROGRAMS and its arguments.
Bug = collections.namedtuple("Bug", "name what seen_by changes")


class Stale(Exception):
    """A bug that does not apply to the current sources."""


def read(path):
    """read returns the bug that a file describes."""
    head, *parts = re.split(r"(?m)^@@ *", path.read_text())
    said = re.fullmatch(r"(?s)(.+?)\nSeen by: (.+?)\s*", head)
    if not said or said[2].split()[0] not in PROGRAMS or not parts:
        raise Stale(f"{path.name}: it takes a sentence, a line `Seen by: PROGRAM` ({', '.join(PROGRAMS)}), and a change")
    return Bug(path.stem, said[1].strip(), said[2].split(), [read_change(path, part) for part in parts])


def read_change(path, part):
    where, *lines = part.splitlines()
    if any(line and line[0] not in " -+" for line in lines):
        raise Stale(f"{path.name}: a line of a change begins with a blank, - or +")
    file, _, function = where.partition(":")
    old, new = ("\n".join(line[1:] for line in lines if line[:1] in kinds) for kinds in (" -", " +"))
    if not old.strip() or old == new: raise Stale(f"{path.name}: a change of nothing")
    return Change(file.strip(), function.strip(), old.strip(), new.strip())


def all_bugs():
    return {path.stem: read(path) for path in sorted(FOLDER.glob("*.patch"))}


def extent(text, function):
    """extent returns the range of a C function: from the line with its name to the next brace in the first column."""
    if not function: return 0, len(text)
    head = re.search(rf"(?m)^\w[^;{{}}=]*\b{re.escape(function)}\([^;{{}}]*\)\n\{{$", text)
    if not head: raise Stale(f"no function {function}")
    return head.start(), text.index("\n}\n", head.end())


def change(text, it):
    """change returns the text with one change applied. Line breaks and indentation do not matter."""
    begin, end = extent(text, it.function)
    pattern = r"\s+".join(re.escape(word) for word in it.old.split())
    there = list(re.compile(pattern).finditer(text, begin, end))
    if len(there) != 1: raise Stale(f"not once but {len(there)} times: {it.old}")
    return text[:there[0].start()] + it.new + text[there[0].end():]


def mutate(bug):
    """mutate returns {path: text} of the sources that a bug changes."""
    texts = {}
    for it in bug.changes:
        source = ROOT / it.path
        try:
            if not source.is_file(): raise Stale("no such file")
            texts[it.path] = change(texts.get(it.path) or source.read_text(), it)
        except Stale as why:
            place = ": ".join(part for part in (it.path, it.function) if part)
            raise Stale(f"{bug.name} can no longer be put into {place}: {why}\n"
                        f"(rewrite tests/sim/bugs/{bug.name}.patch so that it breaks the code as it is now)") from None
    return texts


class Tree:
    """A build tree: how its objects were compiled and its programs linked."""

    def __init__(self, build):
        self.build = pathlib.Path(build)

    def ninja(self, *args):
        return subprocess.run(["ninja", "-t", *args], cwd=self.build, check=True, capture_output=True, text=True).stdout

    @functools.cached_property
    def compilers(self):
        """compilers returns {object: (source, compile command)}."""
        known = json.loads((self.build / "compile_commands.json").read_text())
        return {one["output"]: ((self.build / one["file"]).resolve(), shlex.split(one["command"])) for one in known}

    @functools.cached_property
    def includes(self):
        """includes returns {object: its source and header files}."""
        made_of = collections.defaultdict(set)
        for line in self.ninja("deps").splitlines():
            if line and not line.startswith(" "): current = made_of[line.split(":")[0]]
            elif line: current.add((self.build / line.strip()).resolve())
        return made_of

    @functools.lru_cache
    def commands(self, program):
        """commands returns the commands that build a program from scratch; the last one links it."""
        return [shlex.split(line) for line in self.ninja("commands", PROGRAMS[program]).splitlines()]

    def embed(self, program, path, folder):
        """embed generates the C file that embeds an SQL file, and returns the path of the original C file."""
        sources = {source for source, _ in self.compilers.values()}
        for command in self.commands(program):
            files = {word: (self.build / word).resolve() for word in command}
            made = next((file for file in files.values() if file in sources), None)
            if made is None or ROOT / path not in files.values(): continue
            (folder / made.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            ours = {file for file in files.values() if file == ROOT / path or file.parent == made.parent and file.is_file()}
            copies = {word: folder / file.relative_to(ROOT) for word, file in files.items() if file in ours}
            self.run([str(copies.get(word, word)) for word in command])
            return str(made.relative_to(ROOT))
        return path

    def concerned(self, program, paths):
        """concerned returns the objects of the libraries and of a program that depend on these files."""
        changed = {(ROOT / path).resolve() for path in paths}
        ours = (*LIBRARIES, PROGRAMS[program] + ".p/")
        return [made for made in self.compilers if made.startswith(ours) and changed & self.includes[made]]

    def compile(self, made, folder):
        """compile compiles an object, from a folder's sources where the folder has them, and returns its path."""
        source, command = self.compilers[made]
        copy = folder / source.relative_to(ROOT) if source.is_relative_to(ROOT) else source
        output = folder / pathlib.Path(made).name
        for option, arguments in (("-MD", 1), ("-MQ", 2), ("-MF", 2), ("-o", 2), ("-c", 2)):
            at = command.index(option) if option in command else len(command)
            command = command[:at] + command[at + arguments:]
        compiler = next(i for i, word in enumerate(command) if word.startswith("-"))
        self.run([*command[:compiler], f"-I{folder}/src", *command[compiler:], *QUICKLY, "-o", str(output), "-c",
                  str(copy if copy.exists() else source)])
        return output

    def run(self, command):
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode: raise Stale(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")

    def make(self, name, program, texts):
        """make links a program with these {path: text} in place of the sources; it returns the program's path."""
        folder = (self.build / "tests" / "sim" / "bugs" / name).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        command = self.commands(program)[-1]
        changed = [self.embed(program, path, folder) if path.endswith(".sql") else path for path in texts]
        ours = {made: str(self.compile(made, folder)) for made in self.concerned(program, changed)}
        if not ours: raise Stale(f"{name}: nothing of {program} is made of {', '.join(texts)}")
        first = next(i for i, word in enumerate(command) if word.endswith(".o"))
        of_library = [path for made, path in ours.items() if made.startswith(LIBRARIES)]
        words = [*command[:first], *of_library, *(ours.get(word, word) for word in command[first:])]
        output = folder / program
        words[words.index("-o") + 1] = str(output)
        self.run([*words, "-Wl,--strip-all"])
        return output


def main(names):
    known = all_bugs()
    if not names:
        for bug in known.values(): print(f"{bug.name:28} {bug.what}")
        return 0
    bug = known[names[0]]
    program, *args = names[1:] or bug.seen_by
    tree = Tree(pathlib.Path(os.environ.get("OUTBOX_BIN", ROOT / "build" / "outbox")).parent)
    made = tree.make(bug.name, program, mutate(bug))
    return subprocess.run([made, *args], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
