"""Files that were damaged, and files that were forged: refused, or read as what they are, and never run.

Every batch is tried in a process of its own that is watched: a death by signal, a wait without end, or memory far
beyond the size of the files are failures, and name the file's seed.
"""

import json
import random
from collections import Counter
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np

from tests.campaign import file_kinds as kinds
from tests.campaign.file_kinds import RefusedError, put_in_place, write_folder
from tests.campaign.file_mutations import damage, forge_npz, spoil_array, spoil_json
from tests.campaign.frame import Check, Tally
from tests.campaign.watched import Case, run_watched

__all__ = ["CHECKS"]

_BATCH = 2500


# ---------------------------------------------------------------------- checkpoints


def damaged_checkpoint(rng: random.Random, folder: Path) -> str:
    """Resume from a damaged checkpoint: it is read as it was, or the run starts over."""
    name = rng.choice(kinds.RUNS)
    file, content = kinds.run_file(name)
    write_folder(folder / "run", {file: content})
    path = folder / "run" / file
    if rng.random() < 0.1:
        put_in_place(path, rng, folder / "aside")
    else:
        path.write_bytes(damage(content, rng))
    result, expected = kinds.resume(name, folder / "run"), kinds.run_answer(name)
    assert result.lower_bound <= expected.upper_bound, "its lower bound is too high"
    assert expected.lower_bound <= result.upper_bound, "its upper bound is too low"
    return "right answer"


def forged_checkpoint(rng: random.Random, folder: Path) -> str:
    """Resume from a checkpoint that someone forged."""
    name = rng.choice(kinds.RUNS)
    file, content = kinds.run_file(name)
    write_folder(folder / "run", {file: forge_npz(content, rng)})
    with np.errstate(all="ignore"):
        kinds.use_run(name, folder / "run")
    return "used"


# ---------------------------------------------------------------------- stores


def damaged_store(rng: random.Random, folder: Path) -> str:
    """Open a store of which files were damaged, in both ways."""
    name, place = rng.choice(kinds.STORES), folder / "store"
    write_folder(place, kinds.store_files(name))
    for _ in range(rng.choice((1, 1, 1, 2))):
        _damage_store(place, rng, folder)
    refused = 0
    for verify in ("small", "full"):
        try:
            store = kinds.open_store(place, verify)
            if verify == "small":
                kinds.verify_store(store)
            assert kinds.read_store(store) == kinds.store_content(name), "it was checked in full, and is another store"
        except RefusedError:
            refused += 1
    assert refused != 1, "one way to check in full refuses what the other takes"
    if refused:
        raise RefusedError("both times")
    return "unharmed"


def _damage_store(place: Path, rng: random.Random, folder: Path) -> None:
    names = sorted(path.name for path in place.iterdir())
    path, other = place / rng.choice(names), place / rng.choice(names)
    if not (path.is_file() and other.is_file()) or path.is_symlink() or other.is_symlink():
        return
    deed = rng.randrange(12)
    if deed == 0:
        put_in_place(path, rng, folder / "aside")
    elif deed == 1:  # files that took each other's place
        blob = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(blob)
    elif deed == 2:
        path.rename(place / rng.choice(("x", "Z.npy", "notes.txt", other.name)))
    elif deed == 3:
        (place / rng.choice(("notes.txt", "Y.npy", ".hidden", "weight.npy"))).write_bytes(rng.randbytes(9))
    elif deed == 4 and path.suffix == ".npy":  # the size stays
        blob = path.read_bytes()
        path.write_bytes(damage(blob, rng)[: len(blob)].ljust(len(blob), b"\0"))
    else:
        path.write_bytes(damage(path.read_bytes(), rng))


def forged_store(rng: random.Random, folder: Path) -> str:
    """Open a store that someone forged, checked in full, and read it."""
    files, document = dict(kinds.store_files(rng.choice(kinds.STORES))), None
    deed = rng.randrange(3)
    if deed != 0:
        document = spoil_json(json.loads(files["manifest.json"]), rng)
    if deed != 1:
        spoilt = rng.choice([file for file in files if file != "manifest.json"])
        files[spoilt] = (_other_numbers if rng.random() < 0.6 else spoil_array)(files[spoilt], rng)
    try:
        files = kinds.seal_store(files, document)
    except (TypeError, RecursionError):
        files["manifest.json"] = b'{"files":' * 1100
    write_folder(folder / "store", files)
    for verify in ("small", "full"):
        store = kinds.open_store(folder / "store", verify)
        if verify == "small":
            kinds.verify_store(store)
        kinds.use_store(store)
    return "used"


def _other_numbers(blob: bytes, rng: random.Random) -> bytes:
    """Change some numbers of an array, or, now and then, of its header."""
    width = rng.choice((4, 8))
    numbers = (-1, 0, 1, 2, 3, 4, 5, 29, 30, 31, 10**6, 2**31 - 1, 2**62)
    floats = (float("nan"), float("inf"), -1.0, 1e308, 0.0)
    header = 0 if rng.random() < 0.1 else 128
    for _ in range(rng.choice((1, 1, 3))):
        if len(blob) < header + width:
            break
        at = header + width * rng.randrange((len(blob) - header) // width)
        number = np.array(rng.choice(numbers + floats))
        with np.errstate(all="ignore"):
            new = number.astype(rng.choice(("<i8", "<f8")) if width == 8 else rng.choice(("<i4", "<f4"))).tobytes()
        blob = blob[:at] + new + blob[at + width :]
    return blob if rng.random() < 0.9 else blob + blob[:width]


# ---------------------------------------------------------------------- checks


class Files:
    """Tries files of one kind, in batches."""

    def __init__(self, case: Case):
        self.case = case

    def __call__(self, count: int, seed: int, jobs: int) -> Tally:
        tally, outcomes, growth = Tally(), Counter[str](), 0.0
        seeds = range(seed * 10**8, seed * 10**8 + count)
        batches = [list(seeds[at : at + _BATCH]) for at in range(0, count, _BATCH)]
        with ThreadPool(jobs) as pool:
            for part, became, grown in pool.imap_unordered(lambda batch: run_watched(self.case, batch), batches):
                tally.add(part)
                outcomes += became
                growth = max(growth, grown)
        tally.figures = [f"{what} {number:,}" for what, number in outcomes.most_common()] + [f"+{growth:.0f} MB"]
        return tally


def checkpoint_files(rng: random.Random, folder: Path) -> str:
    """Try a directory of checkpoints."""
    return _either(damaged_checkpoint, forged_checkpoint, 0.6, rng, folder)


def store_files(rng: random.Random, folder: Path) -> str:
    """Try a store."""
    return _either(damaged_store, forged_store, 0.6, rng, folder)


def _either(damaged: Case, forged: Case, share: float, rng: random.Random, folder: Path) -> str:
    kind, case = ("damaged", damaged) if rng.random() < share else ("forged", forged)
    try:
        return f"{kind}, {case(rng, folder)}"
    except RefusedError as refusal:
        refusal.kind = f"{kind}, "
        raise
    except Exception as error:
        error.args = (f"{kind}: {error}",)
        raise


_PROMISE = (
    "damaged files are refused by an error of their own or read to the same last bit; files forged with checksums that "
    "fit are refused or consistent; no code is run, nothing crashes, memory and time are bounded"
)

CHECKS = [
    Check("checkpoint files", _PROMISE, Files(checkpoint_files), full=25_000, ci=40),
    Check("store files", _PROMISE, Files(store_files), full=25_000, ci=100),
]
