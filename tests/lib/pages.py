"""pages.py: reads parts of the documents, for tests that compare them with something else."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BROKERS = ROOT / "docs" / "brokers.md"


def section(path, heading):
    """section returns the text below a heading, up to the next heading of its level or above."""
    level = len(re.match(r"#+", heading)[0])
    return re.split(rf"^#{{1,{level}}} ", path.read_text().split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def items(text):
    """items returns the items of the lists in a text, each as one line."""
    found = re.findall(r"^\* (.*(?:\n  \S.*)*)", text, re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in found]
