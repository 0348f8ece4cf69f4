"""Ways to spoil a file: by accident, where checksums stay behind, and on purpose, where they are made to fit."""

import copy
import io
import json
import math
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

__all__ = [
    "CANARY",
    "damage",
    "forge_npz",
    "members_of",
    "payload",
    "spoil_array",
    "spoil_json",
    "to_npy",
    "to_text",
    "zipped",
]

CANARY = "canary"  # a file that only code from a forged file would make, in the working directory

Blobs = dict[str, bytes]


# ---------------------------------------------------------------------- accidents


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return bytes that differ from those given in one to three ways, all of them blind."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(_ACCIDENTS)(content, rng)
    return content


def _flip_bits(content: bytes, rng: random.Random) -> bytes:
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 64, 1000)) if spoilt else 0):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _drop_the_beginning(content: bytes, rng: random.Random) -> bytes:
    return content[rng.randrange(len(content) + 1) :]


def _extend(content: bytes, rng: random.Random) -> bytes:
    more = rng.choice((rng.randbytes(rng.randrange(1, 200)), bytes(rng.randrange(1, 5000)), content))
    return content + more if rng.random() < 0.7 else more + content


def _block(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.choice((1, 8, 64, 512, 4096)))


def _zero(content: bytes, rng: random.Random) -> bytes:
    start, stop = _block(content, rng)
    return content[:start] + bytes(stop - start) + content[stop:]


def _double(content: bytes, rng: random.Random) -> bytes:
    start, stop = _block(content, rng)
    return content[:stop] + content[start:]


def _cut_out(content: bytes, rng: random.Random) -> bytes:
    start, stop = _block(content, rng)
    return content[:start] + content[stop:]


def _swap(content: bytes, rng: random.Random) -> bytes:
    (a, b), (c, d) = sorted((_block(content, rng), _block(content, rng)))
    b = min(b, c)
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    """Put a telling number where one may be: a size, an offset, a length, a type."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(content) - width))
    number = rng.choice((0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, len(content)))
    return content[:at] + (number % 2 ** (8 * width)).to_bytes(width, "little") + content[at + width :]


_ACCIDENTS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip_bits, _flip_bits, _flip_bits, _truncate, _drop_the_beginning, _extend, _zero, _double, _cut_out, _swap,
    _overwrite,
)  # fmt: skip


# ---------------------------------------------------------------------- JSON by someone who knows the format


class _Code:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (CANARY, "w")


def payload() -> bytes:
    """Return a pickle that makes the canary when it is loaded."""
    return pickle.dumps(_Code())


def _nested(depth: int, rng: random.Random) -> Any:
    value: Any = rng.choice((0, "x", []))
    for _ in range(depth):
        value = rng.choice(([value], {"tuple": [value]}, {"list": [value]}, {"mapping": {"x": value}}))
    return value


_HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 10**12, -(10**12), 2**31, 2**63, -(2**63) - 1, 10**300,
    0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf"),
    "", "x", "a0", "nan", "../x", "/etc/passwd", "\0", "\ud800", "\u00e9" * 50, "x" * 3000, "<f8", "|O", "object",
    "__class__", "csr", "dense", "float32",
    [], {}, [[]], [0], [None, "a", 1], list(range(200)), [0.1] * 7, {"": 0},
    {"array": "a0"}, {"array": "zz"}, {"value": 1}, {"value": None}, {"list": []}, {"mapping": {}},
    {"tuple": [1, "a"]}, {"datetime": "2020-01-01T00:00:00"}, {"date": "?"}, {"mapping": [["a", 1.0]]},
)  # fmt: skip


def _hostile_value(rng: random.Random) -> Any:
    if rng.random() < 0.05:
        return _nested(rng.choice((5, 100, rng.randrange(900, 1100))), rng)
    return copy.deepcopy(rng.choice(_HOSTILE)) if rng.random() < 0.9 else rng.randrange(-(2**70), 2**70)


def _places(document: Any) -> list[tuple[Any, ...]]:
    """Return the way to each value; a list of its own in place of recursion, for documents that are deep."""
    places, left = [], [((), document)]
    while left:
        at, value = left.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        new = [((*at, key), part) for key, part in inner] if len(at) < 50 else []
        places += [place for place, _ in new]
        left += new
    return places


def _parent(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return None


def spoil_json(document: Any, rng: random.Random) -> Any:
    """Return a copy of a document with a few values of it replaced, removed, repeated, exchanged or added."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(document)
        if not places:
            return document
        # Short places first: what matters most is at the top, and lists of numbers are long.
        place = min((rng.choice(places) for _ in range(rng.choice((1, 2, 3)))), key=len)
        parent, key = _parent(document, place), place[-1]
        deed = rng.randrange(10)
        if deed <= 4:
            parent[key] = _hostile_value(rng)
        elif deed == 5:
            del parent[key]
        elif deed == 6:
            other = rng.choice(places)
            parent[key] = _copied(_parent(document, other)[other[-1]])
        elif deed == 7 and isinstance(parent, dict):
            parent[rng.choice(("unknown", "__class__", "", "sha256", "observe", "a" * 500))] = _hostile_value(rng)
        elif deed == 8 and isinstance(parent, list):
            parent.insert(key, _copied(parent[key]))
        elif isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            number = parent[key]
            parent[key] = rng.choice((number + 1, -number, number * 2, number // 2, str(number), [number]))
        else:
            parent[key] = [parent[key]] * rng.choice((0, 1, 2))
    return document


def to_text(document: Any, rng: random.Random) -> bytes:
    """Return JSON, now and then with a key twice, odd numbers or another encoding."""
    text = json.dumps(document)
    deed = rng.randrange(40)
    if deed == 0 and text.startswith("{") and len(text) > 2:
        first = next(iter(document))
        text = rng.choice((f"{{{json.dumps(first)}: 0, {text[1:]}", f"{text[:-1]}, {json.dumps(first)}: 0}}"))
    if deed == 1:
        text = text.replace("1", rng.choice(("1e999", "-0", "1" * 5000, "0x1", "1_0", "01")), 1)
    if deed == 2:
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")))
    if deed == 3:
        return damage(text.encode(), rng)
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------- arrays

_TYPES = ("<f8", "<f4", "<i8", "|b1")
_WRONG_SHAPES: tuple[Any, ...] = (
    (10**12,), (10**6, 10**6, 10**6), (2**62, 4), (-1,), (-3, -5), (0, 10**18), (), (0,), (1,), (2,), (3,), (5,),
    (2, 3), (3, 2), (1, 1, 1, 1), (1,) * 40, (True,), (1.5,), ("a",), (2**70,), (0, 0), (100, 100),
)  # fmt: skip
_SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (2,), (3,), (5,), (7,), (2, 3), (3, 2), (0, 0), (0, 7), (4, 7),
)  # fmt: skip
_WRONG_TYPES: tuple[Any, ...] = (
    "|O", "O", "|V8", "|V1000000000", ">f8", "<c16", "<U1000000000", "<M8[ns]", "", "i4,f8", "(1000000,)<f8",
    [("a", "<f8")], [("a", "|O"), ("b", "<i8")], ("<f8", (10**9,)), 5, None, "f" * 3000,
)  # fmt: skip


def to_npy(header: str, body: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return a file of an array with any header."""
    text = header.encode("latin1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = struct.pack("<H", min(len(text), 0xFFFF)) if version == (1, 0) else struct.pack("<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + body


def _header(shape: Any, descr: Any = "<f8", fortran: Any = False) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape!r}, }}"


_WRONG_HEADERS = (
    "", "{}", "[]", "1", "{'descr': '<f8'}", _header((1,)) + "x", "__import__('os')", f"open({CANARY!r}, 'w')",
    "(" * 3000, "-" * 3000 + "1", "[" * 200 + "]" * 200, _header("3,"), _header((3,), fortran=1),
    _header((3,), fortran=True),
    "{'descr': '<f8', 'fortran_order': False, 'shape': (3L,), }", "{**{}}", "f'{1}'", "\\", "'\\N{x}'", "1if 1else 2",
)  # fmt: skip


def _numbers(kind: str, count: int, rng: random.Random) -> bytes:
    if kind == "<i8":
        pool: tuple[Any, ...] = (0, 1, -1, 2, 5, 10**6, 2**31, -(2**31), 2**63 - 1, -(2**63))
        return struct.pack(f"<{count}q", *(rng.choice(pool) for _ in range(count)))
    if kind == "|b1":
        return rng.randbytes(count)
    pool = (
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1e-300,
        1e300,
        -1e300,
        float("nan"),
        float("inf"),
        -float("inf"),
        rng.gauss(0, 1),
    )
    if kind == "<f4":
        pool = tuple(number for number in pool if not 1e38 < abs(number) < float("inf"))
    return struct.pack(f"<{count}{'d' if kind == '<f8' else 'f'}", *(rng.choice(pool) for _ in range(count)))


def spoil_array(blob: bytes, rng: random.Random) -> bytes:
    """Return a file of an array that is another one, or none."""
    deed, head, body = rng.randrange(8), blob[:128], blob[128:]
    if deed == 0:  # a shape that is not that of the content
        return to_npy(_header(rng.choice(_WRONG_SHAPES)), body)
    if deed == 1:  # another array, with a content that fits
        kind, shape = rng.choice(_TYPES), rng.choice(_SHAPES)
        return to_npy(_header(shape, kind), _numbers(kind, math.prod(shape), rng))
    if deed == 2:  # other numbers
        return head + _numbers("<f8", len(body) // 8, rng) + body[len(body) // 8 * 8 :]
    if deed == 3 and len(body) >= 8:  # another number
        at = 8 * rng.randrange(len(body) // 8)
        return head + body[:at] + _numbers(rng.choice(("<f8", "<i8")), 1, rng) + body[at + 8 :]
    if deed == 4:  # types that hold code, or are none
        return to_npy(_header(rng.choice(((1,), (3,), ())), rng.choice(_WRONG_TYPES)), payload())
    if deed == 5:
        return to_npy(rng.choice(_WRONG_HEADERS), body)
    if deed == 6:
        return to_npy(_header((len(body) // 8,)), body, rng.choice(((2, 0), (3, 0), (0, 0), (255, 255))))
    return rng.choice((b"", payload(), blob[:6], damage(blob, rng)))


# ---------------------------------------------------------------------- zip files


def members_of(content: bytes) -> Blobs:
    """Return the members of a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip with members of any names, the same one more than once if asked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, blob in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            archive.NameToInfo.pop(name, None)  # or a warning would be given for names that are there twice
            archive.writestr(info, blob)
    return buffer.getvalue()


def _overlapping(n_members: int, core: bytes) -> bytes:
    """Return a zip of stored members each of which holds all that follow it: a square of the file when it is read."""
    names = [f"a{k}.npy".encode() for k in range(n_members)]
    body, entries = core, []
    for name in reversed(names):
        crc = zlib.crc32(body)
        local = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", 20, 0, 0, 0, 33, crc, len(body), len(body), len(name), 0) + name
        entries.append((name, crc, len(body)))
        body = local + body
    total, directory = len(body), b""
    offset = 0
    for name, crc, size in reversed(entries):
        directory += struct.pack(
            "<4sHHHHHHLLLHHHHHLL", b"PK\1\2", 20, 20, 0, 0, 0, 33, crc, size, size, len(name), 0, 0, 0, 0, 0, offset
        ) + name  # fmt: skip
        offset += 30 + len(name)
    return body + directory + struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, n_members, n_members, len(directory), total, 0)


_WRONG_NAMES = (
    "../x.npy", "/tmp/x.npy", "C:\\x.npy", "x.npy", "a0.npy", "a" * 1000 + ".npy", "\u00e9.npy", ".npy",
    "manifest.json.npy",
)  # fmt: skip


def forge_npz(content: bytes, rng: random.Random) -> bytes:
    """Return an .npz file with something hostile in it, whose checksums fit."""
    blobs = members_of(content)
    deed = rng.randrange(8)
    if deed <= 4:
        for name in rng.sample(sorted(blobs), rng.choice((1, 1, 2))):
            blobs[name] = spoil_array(blobs[name], rng)
    if deed == 5:
        name = rng.choice(sorted(blobs))
        other = rng.choice(_WRONG_NAMES)
        blobs[other] = blobs.pop(name) if rng.random() < 0.5 else blobs[name]
    if deed == 6:
        del blobs[rng.choice(sorted(blobs))]
    members = list(blobs.items())
    return _odd_zip(members, rng) if deed == 7 else zipped(members)


def _odd_zip(members: list[tuple[str, bytes]], rng: random.Random) -> bytes:
    deed = rng.randrange(8)
    if deed == 0:
        return zipped(members, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
    if deed == 1:  # a bomb: a thousand times as large when unpacked
        return zipped([*members[:1], ("coef_.npy", bytes(3 * 10**6))], zipfile.ZIP_DEFLATED)
    if deed == 2:  # a name twice
        return zipped([*members, (rng.choice(members)[0], rng.choice(members)[1])])
    if deed == 3:
        return zipped([*members, (rng.choice(("evil.pkl", "../evil.npy", "/evil", "folder/", "x" * 60000)), payload())])
    if deed == 4:
        return _overlapping(rng.choice((2, 10, 60)), zipped(members))
    if deed == 5:  # sizes that are lies
        content, lie = bytearray(zipped(members)), rng.choice((0, 1, 10**6, 2**31, 2**32 - 2, 2**32 - 1))
        at = content.rfind(b"PK\1\2")
        for field in rng.sample((20, 24, 42), rng.choice((1, 2))):
            content[at + field : at + field + 4] = struct.pack("<L", lie)
        return bytes(content)
    if deed == 6:  # an end record that is a lie: members, size and place of the directory
        content, at = bytearray(zipped(members)), rng.choice((8, 10, 12, 14, 16, 18, 20)) - 22
        content[at : at + 2] = struct.pack("<H", rng.choice((0, 1, 2, 1000, 0xFFFF)))
        return bytes(content)
    return zipped(list(reversed(members)))
