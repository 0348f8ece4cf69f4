"""What the README says beyond its code, which is run with that of the other pages."""

import re

from tests.docs.pages import ROOT

README = ROOT / "README.md"


def test_the_table_of_the_readme_is_that_of_the_example():
    printed = (ROOT / "examples" / "price_of_robustness.txt").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+) \| ([\d.]+) \| (helps|nothing)", README.read_text(), re.MULTILINE)
    assert len(rows) == 6
    for plain, robust, verdict in rows:
        told = [
            block for block in printed.split("\n\n") if _rounds(block, "ERM", plain) and _rounds(block, "GDRO", robust)
        ]
        assert len(told) == 1, (plain, robust)
        assert ("Robustness helps" in told[0]) == (verdict == "helps")


def _rounds(block, model, shown):
    found = re.search(rf"^{model}\s+\S+\s+(\S+)", block, re.MULTILINE)
    return found is not None and abs(float(found[1]) - float(shown)) <= 0.6 * 10.0 ** -len(shown.partition(".")[2])
