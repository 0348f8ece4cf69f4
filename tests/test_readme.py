import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def run(script):
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(text):
    """Return the words of a table, numbers to three digits: the last ones depend on the version of BLAS."""
    return [f"{float(word):.3g}" if re.fullmatch(r"-?[\d.e+-]+", word) else word for word in text.split()]


def test_the_first_example_prints_what_the_readme_says():
    assert cells(run(blocks("python")[0])) == cells(blocks("text")[0])


def test_the_other_examples_run():
    for script in blocks("python")[1:]:
        run(script)


def test_the_table_of_the_readme_is_that_of_the_example():
    printed = (README.parent / "examples" / "price_of_robustness.txt").read_text()
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
