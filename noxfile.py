#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.2.9"]
# ///
"""One word per task: `nox -s lint`, `nox -s tests`, `nox -s docs` and so on; `nox -l` lists them."""

from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"


def _install(session: nox.Session, group: str = "dev") -> None:
    session.install("-c", "constraints.txt", "-e", ".", "--group", group)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, code, types, spelling and workflows."""
    _install(session)
    session.run("pre-commit", "run", "--all-files", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- are passed to pytest."""
    _install(session)
    session.run("pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Run the tests, and measure which lines and branches they reach."""
    _install(session)
    session.run("pytest", "-n", "auto", "--dist", "worksteal", "--cov", "--cov-report=term", *session.posargs)
    total = session.run("coverage", "report", "--format=total", silent=True, success_codes=[0, 2])
    Path("benchmarks/results/coverage.txt").write_text(f"{total.strip()}\n")


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the site without running the gallery."""
    _install(session)
    session.run("sphinx-build", "-W", "--keep-going", "-n", "-D", "plot_gallery=0", "docs", "docs/_build/html")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the wheel and the sdist, and check what the package index will show."""
    session.install("-c", "constraints.txt", "build", "twine")
    session.run("python", "-m", "build")
    session.run("twine", "check", "--strict", "dist/*")


@nox.session(default=False)
def history(session: nox.Session) -> None:
    """Time a dozen fits on two commits, `-- BEFORE AFTER`, and print both."""
    before, after = session.posargs
    session.install("asv", "virtualenv")
    session.run("asv", "machine", "--yes")
    for commit in (before, after):
        session.run("asv", "run", f"{commit}^!", env={"OPENBLAS_NUM_THREADS": "1"})
    session.run("asv", "compare", "--no-only-changed", before, after)


@nox.session(default=False)
def review(session: nox.Session) -> None:
    """Review the repository by the guide of Scientific Python."""
    session.install("sp-repo-review[cli]")
    session.run("sp-repo-review", ".")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Write uv.lock, and its part for Linux and Python 3.11 as constraints.txt; `-- --upgrade` for newer versions."""
    session.install("uv")
    index, pins = ("--default-index", "https://pypi.org/simple"), session.create_tmp() + "/pins.txt"
    session.run("uv", "lock", *index, *session.posargs)
    everything = ("--all-extras", "--all-groups", "--no-emit-project", "--no-hashes")
    session.run("uv", "export", "-q", "--frozen", *everything, "-o", pins)
    options = ("--no-deps", "--python-version", "3.11.9", "--no-annotate", "--no-header", "-o", "constraints.txt")
    session.run("uv", "pip", "compile", "-q", *index, *options, pins)


if __name__ == "__main__":
    nox.main()
