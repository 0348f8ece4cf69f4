"""The pages of the documentation as tests see them: their fences, links and anchors, and how their code is run."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Every page whose code is run.
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("recipes/*.md")))

_OPENING = re.compile(r"^([ >]*)(`{3,}|~{3,})\s*(.*?)\s*$")
_WRITTEN = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?", re.IGNORECASE)


def load_script(*parts: str) -> ModuleType:
    """Import a script or an extension of the documentation, which no package holds."""
    path = DOCS.joinpath(*parts)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language or directive, what is in it, and where."""

    language: str
    text: str
    line: int
    follows: "Fence | None" = None  # the fence before, where only blank lines are between


def fences(text: str, first_line: int = 1) -> list[Fence]:
    """Return the fences of a page in order, those inside directives included."""
    found: list[Fence] = []
    lines, place, last, blank = text.splitlines(), 0, None, False
    while place < len(lines):
        opening = _OPENING.match(lines[place])
        if not opening:
            blank = blank and not lines[place].strip()
            place += 1
            continue
        begun, ticks = place, opening[2]
        place += 1
        while place < len(lines) and not re.match(rf"^[ >]*{re.escape(ticks)}{ticks[0]}*\s*$", lines[place]):
            place += 1
        body = textwrap.dedent("\n".join(lines[begun + 1 : place]))
        last = Fence(opening[3], body, first_line + begun, last if blank else None)
        found.append(last)
        if last.language.startswith("{"):
            found += fences(body, first_line + begun + 1)
        blank = True
        place += 1
    return found


def without_fences(text: str) -> str:
    """Return the text of a page with its fences blanked, of which directives keep what they hold."""
    lines, closing = [], None
    directives: list[str] = []  # ticks of those that are open
    for line in text.splitlines():
        opening, bare = _OPENING.match(line), line.strip(" >")
        ends = closing or (directives[-1] if directives else None)
        if ends and bare.startswith(ends) and not bare.strip(ends[0]):
            if closing is None:
                directives.pop()
            closing = None
            lines.append("")
        elif closing is not None:
            lines.append("")
        elif opening:
            if opening[3].startswith("{"):
                directives.append(opening[2])
            else:
                closing = opening[2]
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as they are written, those of code left out."""
    text = re.sub(r"`[^`]*`", " ", without_fences(text))
    return [found.rstrip(",") for found in _WRITTEN.findall(text)]


def quoted(*expected: str) -> bool:
    """Tell whether some section of some page has all of these numbers, written like this, whatever its sentences."""
    sections = (part for page in PAGES for part in re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE))
    return any(not Counter(expected) - Counter(numbers(section)) for section in sections)


def same_words(printed: str, shown: str) -> bool:
    """Tell whether texts have the same words, numbers to three digits: the last ones depend on the version of BLAS."""
    one, other = printed.split(), shown.split()
    return len(one) == len(other) and all(map(_same_word, one, other))


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(a == b or (_is_real(a) and _is_real(b) and _close(float(a), float(b))) for a, b in pairs)


def _is_real(number: str) -> bool:
    return "." in number or "e" in number.lower()  # whole numbers count something, and must be the same


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=5e-3, abs_tol=1e-12)  # half a unit of the third digit


# ---------------------------------------------------------------------- running

_ENDED = "ended\n"
# Imports what every page needs once. A line with a folder forks a process for a page there, to which every line is a
# block; it answers with what the block printed, so that shell commands can run between two blocks.
_RUNNER = """
import contextlib, io, json, os, sys, traceback
import groupdro, pandas
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what is printed past Python does not mix with the answers

def answer_blocks(folder):
    os.chdir(folder)
    print("begun", file=answers, flush=True)
    namespace = {"__name__": "__main__"}
    while block := json.loads(sys.stdin.readline() or "null"):
        name, code = block
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, name, "exec"), namespace)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)

while line := sys.stdin.readline():
    child = os.fork()
    if not child:
        answer_blocks(json.loads(line))
        sys.exit()
    os.waitpid(child, 0)
    print("ended", file=answers, flush=True)
"""


def environment() -> dict[str, str]:
    """Return the environment of a page's code: this interpreter first on the path, no window for plots."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "MPLBACKEND": "agg"}


class Python:
    """Runs pages one after the other, each in a process with one namespace, in which warnings are errors."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-c", _RUNNER]
        self.process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @contextmanager
    def page(self, folder: Path) -> Iterator[Callable[[str, str], str]]:
        """Begin a page, and return what runs a named block of it and returns what the block printed."""
        answer = ""

        def run(name: str, code: str) -> str:
            nonlocal answer
            self._write([name, code])
            answer = self._read()
            assert answer.startswith("["), f"{name}: the process ended"
            printed, error = json.loads(answer)
            assert error is None, f"{name}:\n{error}"
            return printed

        self._write(str(folder))
        assert self._read() == "begun\n"  # or the first block might be read before the fork
        try:
            yield run
        finally:
            if answer != _ENDED:
                self._write(None)
                assert self._read() == _ENDED

    def _write(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@dataclass(frozen=True)
class Command:
    """A command of a console block, the code with which its page says that it ends, and what it shows."""

    text: str
    code: int = 0
    shown: str = ""


def commands(console: str) -> list[Command]:
    """Return the commands of a console block; lines without a prompt are what they print.

    ``$ echo $?`` tells the code of the command before.
    """
    found: list[tuple[str, list[str]]] = []
    unfinished = False
    for line in console.splitlines():
        if line.startswith("$ ") and not unfinished:
            found.append((line[2:].strip(), []))
        elif unfinished:
            found[-1] = (f"{found[-1][0]} {line.removeprefix('>').strip()}", [])
        elif found:
            found[-1][1].append(line)
            continue
        unfinished = found[-1][0].endswith("\\") if found else False
        if unfinished:
            found[-1] = (found[-1][0].removesuffix("\\").strip(), [])
    out: list[Command] = []
    for text, printed in found:
        if text == "echo $?":
            out[-1] = replace(out[-1], code=int(printed[0]))
        else:
            out.append(Command(text, shown="\n".join(printed)))
    return out
