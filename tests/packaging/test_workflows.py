"""The files for the host of the repository are valid, and the workflows do only what they must."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.first_time import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
#: Jobs that need more than to read the repository.
RIGHTS = {
    "documentation.yml": {"pages", "id-token"},
    "nightly.yml": set(),
    "release.yml": {"id-token", "attestations"},
    "scorecard.yml": {"id-token", "security-events"},
    "tests.yml": set(),
}


def check_schema(schema, *paths):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def zizmor(*arguments):
    program = Path(sysconfig.get_path("scripts")) / "zizmor"
    command = [str(program), "--offline", "--persona=auditor", "--no-progress", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_have_the_form_that_their_readers_expect(schema):
    assert SCHEMAS[schema]
    done = check_schema(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing():
    done = zizmor(GITHUB)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_checks_find_faults(tmp_path):
    text = (GITHUB / "workflows" / "tests.yml").read_text()
    loose = re.sub(r"(actions/checkout)@\w+ # \S+", r"\1@v7", text).replace(
        "persist-credentials: false", "fetch-depth: 1"
    )
    (tmp_path / "loose.yml").write_text(loose)
    done = zizmor(tmp_path / "loose.yml")
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout
    assert "artipacked" in done.stdout
    (tmp_path / "wrong.yml").write_text(text.replace("runs-on:", "run-on:"))
    assert check_schema("vendor.github-workflows", tmp_path / "wrong.yml").returncode != 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_rights_are_few(path):
    text = path.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} does not say which version it is"
    assert "\npermissions: {}\n" in text
    assert set(re.findall(r"^ +([\w-]+): write\b", text, re.MULTILINE)) == RIGHTS[path.name]
    assert "secrets." not in text
    assert "pull_request_target" not in text


def test_the_core_is_tested_on_every_python_of_the_classifiers():
    project = (ROOT / "pyproject.toml").read_text()
    claimed = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    [tested] = re.findall(r"python: \[(.+)\]", (GITHUB / "workflows" / "tests.yml").read_text())
    assert re.findall(r"3\.\d+", tested) == claimed


@pytest.mark.parametrize("name", ["core.txt", "oldest.txt"])
def test_every_line_of_a_list_of_tests_exists(name):
    lines = (ROOT / "tests" / name).read_text().splitlines()
    assert all((ROOT / line.removeprefix("--ignore=")).exists() for line in lines)
