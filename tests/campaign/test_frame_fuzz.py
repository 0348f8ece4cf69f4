"""The fuzzers: their corpus is refused or used, their mutations pass the checksums, and they find what is broken."""

import os
import random
import subprocess
import sys

import pytest

from tests.campaign import fuzz
from tests.campaign.file_kinds import RefusedError
from tests.campaign.file_mutations import damage, members_of

CORPUS = sorted(path.name for path in fuzz.CORPUS.iterdir())
TRY = {"checkpoint": fuzz.try_checkpoint, "store": fuzz.try_store}


def test_the_corpus_is_small():
    assert 0 < len(CORPUS) <= 30
    assert all((fuzz.CORPUS / name).stat().st_size < 10_000 for name in CORPUS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CORPUS)
def test_every_file_of_the_corpus_is_refused_or_used(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        TRY[name.partition("-")[0]]((fuzz.CORPUS / name).read_bytes(), tmp_path)
    except RefusedError:
        assert "forged" in name or name.startswith("checkpoint"), "an original is refused"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_mutations_keep_checksums_right(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = next(iter(fuzz.originals(target).values()))
    mutate = fuzz.mutate_store if target == "store" else fuzz.mutate_bundle
    reached, words = 0, ("is damaged", "CRC-32", "match its checksum", "bytes instead of")
    for seed in range(60):
        rng = random.Random(seed)
        try:
            content = mutate(original, rng, lambda part, rng=rng: damage(part, rng))
        except Exception:  # what blind changes left is no JSON: the fuzzer takes another way then
            continue
        assert members_of(content)
        try:
            TRY[target](content, tmp_path)
            reached += 1
        except RefusedError as refusal:
            reached += not any(word in str(refusal) for word in words)
    assert reached > 30


BROKEN = """
import sys
import groupdro.run.checkpoint as checkpoint
from tests.campaign import fuzz

checkpoint.check = lambda holds, why: None  # errors of any kind come through
fuzz.fuzz("checkpoint", 20, fuzz.Path(sys.argv[1]))
"""


@pytest.mark.long
def test_a_broken_loader_is_found(tmp_path):
    pytest.importorskip("atheris")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)], capture_output=True, text=True, errors="replace", env=environment
    )
    assert fuzz.report(done.stderr, done.returncode, tmp_path, keep=True) == 1
    assert any(path.suffix == ".txt" for path in (tmp_path / "findings").iterdir())
