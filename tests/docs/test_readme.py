"""What the README says beyond its code, which is run with that of the other pages."""

import re

from tests.docs.pages import ROOT

README = ROOT / "README.md"


def test_the_table_of_the_readme_is_that_of_the_example():
    printed = (ROOT / "examples" / "price_of_robustness.txt").read_text()
    rows = re.findall(r"^\| [^|]+ \|" + 3 * r" ([\d.]+) \|" + " (helps|nothing)", README.read_text(), re.MULTILINE)
    assert len(rows) == 6
    for plain, robust, chosen, verdict in rows:
        told = [
            block for block in printed.split("\n\n") if _rounds(block, "ERM", plain) and _rounds(block, "GDRO", robust)
        ]
        assert len(told) == 1, (plain, robust)
        assert _rounds(told[0], "CV choice", chosen)
        assert ("Robustness helps" in told[0]) == (verdict == "helps")
    bike = printed.split("\nbike: ")[1]
    for words in ("from 4.65 to 3.801, by 18.3%", "by 3.3% (", "the average by +37.4%"):
        assert words in bike


def test_the_risks_with_the_hour_as_a_feature_are_those_of_the_example():
    printed = (ROOT / "examples" / "bike_with_hour.txt").read_text()
    worst = dict(re.findall(r"^(\S.*?) {2,}[\d.]+ +([\d.]+)", printed, re.MULTILINE))
    assert len(worst) == 5
    ridge, robust, trees = (
        f"{float(worst[f'{kind}, with the hour']):.2f}" for kind in ("ridge", "GDRO", "boosted trees")
    )
    readme, index = (" ".join(path.read_text().split()) for path in (README, ROOT / "docs" / "index.md"))
    assert f"the worst hour's risk is {ridge} for plain ridge regression" in readme
    assert float(worst["ridge, with the hour"]) < float(worst["GDRO, without the hour"])
    assert f"{robust} for GDRO, and {trees} for boosted trees" in readme
    assert f"with one column per hour, plain ridge regression has {ridge} and GDRO {robust}" in index
    # The same rows as in the table of the README.
    for kind, plain in (("ridge", "ERM"), ("GDRO", "GDRO")):
        table = (ROOT / "examples" / "price_of_robustness.txt").read_text().split("\nbike: ")[1]
        assert _rounds(table, plain, f"{float(worst[f'{kind}, without the hour']):.2f}")


def _rounds(block, model, shown):
    found = re.search(rf"^{model}\s+\S+\s+(\S+)", block, re.MULTILINE)
    return found is not None and abs(float(found[1]) - float(shown)) <= 0.6 * 10.0 ** -len(shown.partition(".")[2])
