"""The paper's experiments, from nothing to the stored curves.

    python -m benchmarks.paper [gdro|mero] [synthetic|cifar]    runs one or all, and prints how long each took

The synthetic runs repeat every multiplier three times. On CIFAR-100 every multiplier runs once, and of each method the
one with the least final worst training value runs twice more. Finished curves are kept by benchopt, so that a run which
was interrupted goes on where it stopped.
"""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import yaml

from benchmarks.figures import collected, tuned

HERE = Path(__file__).parent
PARTS = [(benchmark, data) for data in ("synthetic", "cifar") for benchmark in ("gdro", "mero")]


def benchopt(benchmark: str, config: Path) -> None:
    """Run a configuration."""
    command = [sys.executable, "-m", "benchopt", "run", str(HERE / benchmark), "--config", str(config), "--no-display"]
    subprocess.run(command, check=True)


def repeat_best(benchmark: str, config: Path) -> None:
    """Run each method's best multiplier three times in all."""
    shown, _ = tuned(collected(benchmark, "cifar-100"))
    best = shown.groupby("method")["multiplier"].first()
    settings = yaml.safe_load(config.read_text())
    settings["solver"] = [pattern(name, best) for name in settings["solver"]]
    settings["n-repetitions"] = 3
    chosen = HERE / benchmark / "outputs" / "best.yml"
    chosen.write_text(yaml.safe_dump(settings))
    benchopt(benchmark, chosen)


def pattern(written: str, best: pd.Series) -> dict | str:
    """Return a solver of a configuration with the best multiplier of each of its forms in place of all."""
    name = written.split("[")[0]
    forms = {method: value for method, value in best.items() if method.split("[")[0] == name}
    if not any(forms.values()):
        return written
    key = {"MPVR": "sampling", "AL-SVRE reconstructed": "geometry", "TSA reconstructed": "form"}.get(name)
    if key is None:
        return {name: {"multiplier": list(forms.values())}}
    pairs = [[float(value), method.split("[")[1].rstrip("]")] for method, value in forms.items()]
    return {name: {f"multiplier, {key}": pairs}}


def main(words: list[str]) -> None:
    """Run what was asked for."""
    whole = time.perf_counter()
    for benchmark, data in PARTS:
        if any(word not in (benchmark, data) for word in words):
            continue
        begun, config = time.perf_counter(), HERE / benchmark / f"{data}.yml"
        benchopt(benchmark, config)
        if data == "cifar":
            repeat_best(benchmark, config)
        print(f"{benchmark} on {data}: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)
    print(f"in all: {(time.perf_counter() - whole) / 60:.1f} min")


if __name__ == "__main__":
    main(sys.argv[1:])
