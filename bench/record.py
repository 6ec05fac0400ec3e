"""record: stores measurements in a folder: figures.json with all of them, figures.md with tables, and plots. A run of some
sections replaces only those."""
import json
import pathlib
import textwrap

import plot
from harness import shown

HEAD = """# Figures

Written by `bench/run --plot bench/figures`; [performance.md](../../docs/performance.md) says what
they mean, and [bench/README.md](../README.md) how each is measured. `quick` is a short run: it
shows magnitudes, not percents.
"""


def load(folder):
    try:
        return json.loads((folder / "figures.json").read_text())
    except FileNotFoundError:
        return {"sections": {}, "plots": {}}


def conditions(facts, quick):
    return {"date": facts["date"], "machine": f"{facts['cores']} cores ({facts['cpu']}), {facts['filesystem']}, 4 KiB append and "
            f"fsync {facts['fsync_us']} us, load {facts['load']} at the start", "quick": quick}


def table_row(row):
    value = f"{shown(row['value'], row['unit'])} {row['unit']}" if row["value"] is not None else "cannot be done"
    beside = row["against"] if row["ratio"] is None else f"{row['against']} {row['ratio']:.2f}"
    verdict = "" if row["met"] is None else "met" if row["met"] else "missed"
    what = row["what"].replace("    ", "&nbsp;&nbsp;", 1) if row["what"].startswith(" ") else row["what"]
    return f"| {what} | {value} | {beside} | {row['target']} | {verdict} |"


def tables(sections):
    for name, section in sorted(sections.items()):
        store, _, title = name.partition(" ")
        where = section["where"]
        yield f"\n## {title}, {plot.STORES[store]}\n"
        yield textwrap.fill(f"{where['date']}; {where['machine']}{'; quick' if where['quick'] else ''}.", 100) + "\n"
        yield "| | measured | compared | target | |\n|---|---|---|---|---|"
        yield from map(table_row, section["rows"])


def keep(folder, facts, quick, results, points):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kept, where = load(folder), conditions(facts, quick)
    kept["sections"] |= {name: {"where": where, "rows": rows} for name, rows in results.items()}
    for name in sorted({p["plot"] for p in points}):
        kept["plots"][name] = {"where": where, "points": [p for p in points if p["plot"] == name]}
    (folder / "figures.json").write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "figures.md").write_text(HEAD + "\n".join(tables(kept["sections"])) + "\n")
    for name, what in kept["plots"].items():
        (folder / f"{name}.svg").write_text(plot.svg(name, what["points"], what["where"]["date"]))
