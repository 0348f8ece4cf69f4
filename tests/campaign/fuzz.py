"""Fuzzers of the loaders, guided by coverage.

    python -m tests.campaign.fuzz checkpoint|store [--seconds 60] [--keep FOLDER]

tries files that are derived from originals and from the files in ``tests/campaign/corpus``, and prints how many and
which errors were met that are not the loader's own. Exit status 1 if there are any. Needs atheris. Most mutations are
made between the members of a file and its checksums, so that what is behind them is reached; whatever a run finds
stays in the folder to keep. ``--write-corpus`` writes the originals anew.
"""

import argparse
import hashlib
import importlib
import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.timing import HUNG

TARGETS = ("checkpoint", "store")
CORPUS = Path(__file__).with_name("corpus")
_LARGEST = 20_000  # bytes of a file
#: What is instrumented: all that looks at a file, and none of what is compiled.
_INSTRUMENTED = (
    "groupdro.utils.bundle",
    "groupdro.certificate",
    "groupdro.run.checkpoint",
    "groupdro.run.driver",
    "groupdro.run.run",
    "groupdro.run.packing",
    "groupdro.store.files",
    "groupdro.store.grouped_store",
    "groupdro.store.manifest",
    "groupdro.store.reader",
    "zipfile",
)


# ---------------------------------------------------------------------- what is tried


def originals(target: str) -> dict[str, bytes]:
    """Return a file of each kind; a store as a zip of its directory."""
    from tests.campaign import file_kinds as kinds
    from tests.campaign.file_mutations import zipped

    if target == "checkpoint":
        found = {name: kinds.run_files(name)[max(kinds.run_files(name), key=_age)] for name in kinds.RUNS}
    else:
        found = {name: zipped(list(kinds.store_files(name).items())) for name in kinds.STORES}
    return {f"{target}-{name.replace(' ', '-')}": content for name, content in found.items()}


def _age(name: str) -> str:
    return name if name.startswith("checkpoint") else ""


def try_checkpoint(content: bytes, folder: Path) -> None:
    """Go on from a checkpoint, as the run that it names."""
    from tests.campaign import file_kinds as kinds

    name = next((run for run in kinds.RUNS if _key_of(run) in content), kinds.RUNS[0])
    kinds.write_folder(folder / "run", {"checkpoint-000001-00000001.zip": content})
    kinds.use_run(name, folder / "run")


def _key_of(run: str) -> bytes:
    from groupdro.utils.bundle import parse_bundle

    if run not in _KEYS:
        _KEYS[run] = parse_bundle(originals("checkpoint")[f"checkpoint-{run}"])[0]["key"].encode()
    return _KEYS[run]


_KEYS: dict[str, bytes] = {}


def try_store(content: bytes, folder: Path) -> None:
    """Open a store in full, and read it."""
    from tests.campaign import file_kinds as kinds
    from tests.campaign.file_mutations import members_of

    try:
        files = members_of(content)
    except Exception:
        files = {"manifest.json": content}
    files = {name: blob for name, blob in files.items() if re.fullmatch(r"[\w.]{1,40}", name)}
    kinds.write_folder(folder / "store", files)
    kinds.use_store(kinds.open_store(folder / "store", "full"))


# ---------------------------------------------------------------------- mutations that keep checksums right


def mutate_bundle(content: bytes, rng: random.Random, blind: Callable[[bytes], bytes]) -> bytes:
    """Change the manifest or an array, and let the checksums follow."""
    from tests.campaign.file_mutations import members_of, spoil_array, spoil_json, zipped

    blobs = members_of(content)
    manifest = json.loads(blobs.pop("manifest.json"))
    text = None
    if blobs and rng.random() < 0.4:
        name = rng.choice(sorted(blobs))
        blobs[name] = spoil_array(blobs[name], rng) if rng.random() < 0.5 else blind(blobs[name])
    elif rng.random() < 0.5:
        manifest = spoil_json(manifest, rng)
    else:
        text = blind(json.dumps({key: part for key, part in manifest.items() if key != "sha256"}).encode())
    digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    if text is not None and text.rstrip().endswith(b"}"):
        text = text.rstrip()[:-1] + b', "sha256": ' + json.dumps(digests).encode() + b"}"
    if text is None:
        text = json.dumps({**manifest, "sha256": digests} if isinstance(manifest, dict) else manifest).encode()
    return zipped([("manifest.json", text), *blobs.items()])


def mutate_store(content: bytes, rng: random.Random, blind: Callable[[bytes], bytes]) -> bytes:
    """Change the manifest or another file of a store, and let sizes and checksums follow."""
    from tests.campaign.file_kinds import seal_store
    from tests.campaign.file_mutations import members_of, spoil_array, spoil_json, zipped

    files = members_of(content)
    name = rng.choice(["manifest.json", *files])
    document = json.loads(files["manifest.json"])
    if rng.random() < 0.5:
        if name == "manifest.json":
            document = spoil_json(document, rng)
        else:
            files[name] = spoil_array(files[name], rng)
    else:
        files[name] = blind(files[name])
        if name == "manifest.json":
            document = json.loads(files[name])
    return zipped(list(seal_store(files, document).items()))


def mutator(target: str) -> Callable[[bytes, int, int], bytes]:
    """Return what atheris calls for a new file."""
    import atheris

    change = mutate_store if target == "store" else mutate_bundle

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.85:
            try:
                new = change(content, rng, lambda part: atheris.Mutate(part, 4 * len(part) + 64))
                if len(new) <= most:
                    return new
            except Exception:  # it is no file of the kind any more: then blindly
                pass
        return atheris.Mutate(content, most)

    return mutate


# ---------------------------------------------------------------------- the run


def functions_of(module: Any) -> Iterator[Any]:
    """Yield the functions and methods that a module defines."""
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        for part in vars(thing).values() if inspect.isclass(thing) else (thing,):
            found = getattr(part, "__func__", getattr(part, "fget", getattr(part, "func", part)))
            found = inspect.unwrap(found) if callable(found) else found
            if inspect.isfunction(found) and found.__code__.co_filename == module.__file__:
                yield found


def fuzz(target: str, seconds: int, folder: Path) -> None:
    """Fuzz in this process, which ends with it. Findings are noted as they come."""
    import atheris

    from tests.campaign.file_kinds import RefusedError

    for name in _INSTRUMENTED:
        for function in functions_of(importlib.import_module(name)):
            atheris.instrument_func(function)
    warnings.simplefilter("ignore")
    work = folder / "work"
    for name in ("work", "files", "findings"):
        (folder / name).mkdir(exist_ok=True)
    os.chdir(work)
    for name, content in originals(target).items():
        (folder / "files" / name).write_bytes(content)
    for path in CORPUS.glob(f"{target}-*"):
        shutil.copy(path, folder / "files" / f"corpus-{path.name}")
    attempt = {"checkpoint": try_checkpoint, "store": try_store}[target]
    known: set[Any] = set()

    def once(content: bytes) -> None:
        try:
            attempt(content, work)
        except RefusedError:
            pass
        except Exception as error:
            trace = traceback.extract_tb(error.__traceback__)
            ours = [f for f in trace if f"{os.sep}groupdro{os.sep}" in f.filename] or list(trace)
            where = type(error).__name__, ours[-1].filename, ours[-1].lineno
            if where not in known:
                known.add(where)
                name = hashlib.sha256(content).hexdigest()[:16]
                (folder / "findings" / name).write_bytes(content)
                text = f"{type(error).__name__}: {str(error)[:200]} [{ours[-1].name}:{ours[-1].lineno}]"
                (folder / "findings" / f"{name}.txt").write_text(text)
        if (work / "canary").exists():
            raise AssertionError("code from a file was run")

    arguments = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-max_len={_LARGEST}",
        f"-timeout={HUNG:.0f}",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
        f"-artifact_prefix={folder / 'findings'}{os.sep}",
        str(folder / "files"),
    ]
    atheris.Setup(arguments, once, custom_mutator=mutator(target))
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS, nargs="?")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="folder for the files of the run and its findings")
    parser.add_argument("--write-corpus", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write_corpus:
        for target in TARGETS:
            for name, content in originals(target).items():
                (CORPUS / name).write_bytes(content)
        return 0
    if options.target is None:
        parser.error("name what to fuzz")
    if options.inside:
        fuzz(options.target, options.seconds, options.keep)
        return 0
    fast = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = options.keep or Path(tempfile.mkdtemp(prefix="groupdro-fuzz-", dir=fast))
    (folder / "findings").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.campaign.fuzz", options.target, "--inside"]
    command += ["--seconds", str(options.seconds), "--keep", str(folder.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return report(done.stderr, done.returncode, folder, keep=options.keep is not None)


def report(log: str, status: int, folder: Path, *, keep: bool) -> int:
    """Print what a run found."""
    stats = dict(re.findall(r"stat::(\w+):\s*(\d+)", log))
    covered = re.findall(r"cov: (\d+)", log)
    texts = sorted(path.read_text() for path in (folder / "findings").glob("*.txt"))
    others = [
        path.name for path in (folder / "findings").iterdir() if re.match(r"(crash|timeout|oom|leak)-", path.name)
    ]
    print(
        f"files tried {stats.get('number_of_executed_units', '?')}, a second {stats.get('average_exec_per_sec', '?')}"
    )
    print(f"branches {covered[-1] if covered else '?'}, largest memory {stats.get('peak_rss_mb', '?')} MB")
    print(f"findings {len(texts) + len(others)}" + "".join(f"\n  {text}" for text in [*texts, *others]))
    failed = bool(texts or others or status)
    if status:
        print(f"the process ended with {status}:\n{log[-3000:]}")
    if not (keep or failed):
        shutil.rmtree(folder)
    else:
        print(f"kept in {folder}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
