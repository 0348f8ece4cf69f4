"""Tables of the stored results, and of the pages that show them."""

from tests.docs.pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def tables(text):
    """Return the tables of a text, each as a list of its rows by column.

    Columns of the same name are told apart by how often it was there before.
    """
    found, lines = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif lines:
            head, _, *body = lines
            keys = [f"{name} {n}" if (n := head[:k].count(name)) else name for k, name in enumerate(head)]
            found.append([dict(zip(keys, cells, strict=True)) for cells in body])
            lines = []
    return found
