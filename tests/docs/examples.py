"""The examples as tests see them: their text, their code, and the record of what they print.

python -m tests.docs.examples             write examples/printed/ anew (takes minutes)
python -m tests.docs.examples plot_wine   of some examples only
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, environment
from tests.timing import HUNG

EXAMPLES = ROOT / "examples"
PRINTED = EXAMPLES / "printed"
#: Every page of the gallery, by name.
GALLERY = {path.stem: path for path in sorted(EXAMPLES.glob("plot_*.py"))}
#: What an example needs beyond the extra `test`: packages, and variables that name folders of data.
PACKAGES = {
    "plot_corrected_trees": ("lightgbm",),
    "plot_last_layer": ("torch",),
    "plot_last_layer_torch": ("torch",),
}
GENERATED = ("plot_regret_or_risk",)
IMAGES = ("plot_cifar100", "plot_last_layer", "plot_last_layer_torch")

_DOCSTRING = re.compile(r'"""\n(.*?)\n"""\n', re.DOTALL)


def prose(source: str) -> str:
    """Return the text of a page in one line: the docstring, and the comments that follow a cell's marker."""
    docstring = _DOCSTRING.match(source)
    assert docstring, "an example begins with a docstring"
    parts, inside = [docstring[1]], False
    for line in source[docstring.end() :].splitlines():
        inside = line.startswith("# %%") or (inside and line.startswith("#"))
        if inside and not line.startswith("# %%") and not re.fullmatch(r"# [-=]+", line):
            parts.append(line.removeprefix("#"))
    return " ".join(" ".join(parts).split())


def printed(name: str) -> str:
    """Return the record of what an example printed."""
    return (PRINTED / f"{name}.txt").read_text()


def run(name: str, folder: Path) -> str:
    """Run an example on one thread, with warnings as errors, and return what it prints."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(GALLERY[name])],
        cwd=folder,
        env={**environment(), **threads},
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def main() -> None:
    """Write the records of all examples, or of those that are named."""
    for name in sys.argv[1:] or GALLERY:
        (PRINTED / f"{name}.txt").write_text(run(name, Path.cwd()))
        print(name, flush=True)


if __name__ == "__main__":
    if "GROUPDRO_DATA" not in os.environ:
        print("GROUPDRO_DATA is not set: tables are downloaded", file=sys.stderr)
    main()
