"""The path of someone who comes here for the first time: build, create an environment, install, run the README.

    python -m tests.packaging.first_time

prints how long each step took. The extra is the one that the README names.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SET_IN_TESTS = ("PYTHONPATH", "NUMBA_CACHE_DIR", "VIRTUAL_ENV")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel, by way of the source distribution, and return both."""
    _run(sys.executable, "-m", "build", "--quiet", "--outdir", folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def install(wheel: Path | str, environment: Path) -> Path:
    """Install a wheel in a new environment, and return its interpreter."""
    _run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, wheel)
    return python


def readme_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def _run(*command: object, cwd: Path | None = None) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in _SET_IN_TESTS}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, times = Path(name), {}

        def timed(step: str, work):
            begun = time.perf_counter()
            result = work()
            times[step] = time.perf_counter() - begun
            return result

        wheel, sdist = timed("build wheel and sdist", lambda: build(folder))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB; {sdist.name}: {sdist.stat().st_size / 1e3:.0f} kB")
        python = timed("create environment, install", lambda: install(f"{wheel}[plot]", folder / "environment"))
        blocks = readme_blocks()
        print(
            timed("first example, kernels compiled", lambda: _run(python, "-W", "error", "-c", blocks[0], cwd=folder))
        )
        timed("first example again", lambda: _run(python, "-W", "error", "-c", blocks[0], cwd=folder))
        for block in blocks[1:]:
            timed("the other examples", lambda block=block: _run(python, "-W", "error", "-c", block, cwd=folder))
        for step, seconds in times.items():
            print(f"{step:<32} {seconds:6.1f} s")
        total = sum(seconds for step, seconds in times.items() if "again" not in step and "build" not in step)
        print(f"{'from nothing to all results':<32} {total:6.1f} s")


if __name__ == "__main__":
    main()
