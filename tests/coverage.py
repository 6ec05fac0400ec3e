"""coverage.py TREE: lines and branches covered by the tests, per folder of src and extra, from gcov's data in a tree built with
-Db_coverage=true. With names of folders (engine store) as further arguments it prints their uncovered lines, by file."""
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(tree):
    """read returns {source: {line: (count, branches taken, branches)}}, over all objects a source was compiled into."""
    lines = collections.defaultdict(dict)
    for data in sorted(tree.rglob("*.gcda")):
        said = subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--stdout", data], cwd=tree,
                              capture_output=True, check=True).stdout
        for text in said.splitlines():
            for file in json.loads(text)["files"]:
                path = (tree / file["file"]).resolve()
                if path.is_relative_to(ROOT / "src"): name = path.relative_to(ROOT / "src")
                elif path.is_relative_to(ROOT / "extra"): name = path.relative_to(ROOT)
                else: continue
                known = lines[str(name)]
                for line in file["lines"]:
                    taken = [branch["count"] > 0 for branch in line["branches"]]
                    count, before = known.get(line["line_number"], (0, []))
                    if len(before) == len(taken): taken = [a or b for a, b in zip(before, taken)]
                    known[line["line_number"]] = (count + line["count"], taken)
    return lines


def share(part, whole):
    return f"{100 * part / whole:5.1f} %" if whole else "    -  "


def report(lines):
    folders = collections.defaultdict(lambda: [0, 0, 0, 0])
    for source, known in lines.items():
        parent = pathlib.Path(source).parent
        for name in {str(parent), "all"}:
            total = folders[name]
            total[0] += sum(count > 0 for count, _ in known.values())
            total[1] += len(known)
            total[2] += sum(sum(taken) for _, taken in known.values())
            total[3] += sum(len(taken) for _, taken in known.values())
    print(f"{'folder':<16} {'lines':>8} {'of':>6} {'branches':>9} {'of':>6}")
    for name in sorted(folders, key=lambda name: (name == "all", name)):
        hit, known, taken, branches = folders[name]
        print(f"{name:<16} {share(hit, known):>8} {known:>6} {share(taken, branches):>9} {branches:>6}")


def missing(lines, names):
    for source in sorted(lines):
        if not any(source.startswith(name + "/") for name in names): continue
        left = sorted(number for number, (count, _) in lines[source].items() if not count)
        if left: print(f"{source}: {' '.join(map(str, left))}")


def main(tree, *names):
    lines = read(pathlib.Path(tree).resolve())
    report(lines)
    missing(lines, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
