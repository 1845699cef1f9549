"""Changes to bytes and to JSON that a disk, an editor or somebody hostile might make; each is drawn from a generator."""

from __future__ import annotations

import copy
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Json = Any
Generator = np.random.Generator

_DEEP = "\ue000deep\ue000"
_DEPTHS = (50, 900, 5000, 100_000)
_TOKENS = (
    *(b"", b"\0", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\n", b'"', b"}", b"]", b",", b"null", b"NaN", b"-Infinity"),
    *(b"1e999", b"-1", b"18446744073709551616", b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b'"\\ud800"', b"true"),
    *(b"../../etc/passwd", b"%s%n", b"[" * 2000, b'{"a":' * 2000, b"#" * 3000, b" " * 20_000, b"[" * 50_000 + b"]" * 50_000),
)
_VALUES: tuple[Json, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "x" * 10_000, "\0", "\u2028", "../../etc/passwd", "0" * 64, "g" * 64),
    *([], {}, [[]], [None], {"": None}, ["a"] * 1000, "\ud800", _DEEP, [_DEEP], {"a": _DEEP}),
)
_STEPS = (-1, 1, 2, 1000, 2**31, 2**62)


def mutate_bytes(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to four changes: bits, cuts, repeats, tokens, pieces of another seed."""
    for _ in range(int(rng.integers(1, 5))):
        data = _BYTES[int(rng.integers(len(_BYTES)))](rng, data, others)
    return data


def mutate_json(rng: Generator, value: Json) -> bytes:
    """The text of a JSON value with one to three nodes changed; now and then with changed bytes as well."""
    value = copy.deepcopy(value)
    for _ in range(int(rng.integers(1, 4))):
        value = _changed(rng, value)
    text = _dumped(rng, value)
    return mutate_bytes(rng, text, [text]) if rng.random() < 0.05 else text


def mutate_archive(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    """A zip file with one of its members changed, renamed, doubled, left out or compressed out of all proportion."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = int(rng.integers(len(members)))
    name, content = members[place]
    how = int(rng.integers(6))
    if how == 0:
        del members[place]
    elif how == 1:
        members[place] = (str(rng.choice(["../" + name, "/" + name, name * 30, "", name.upper(), "\u202e" + name])), content)
    elif how == 2:
        members.append((name, content[::-1]))
    elif how == 3:
        members[place] = (name, content + b"\0" * int(rng.choice([1, 4096, 1 << 26])))
    else:
        members[place] = (name, mutate_bytes(rng, content, [other for _, other in members]))
    stream = io.BytesIO()
    method = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(name or "x", content)
    packed = stream.getvalue()
    return mutate_bytes(rng, packed, others) if rng.random() < 0.2 else packed


def _value(rng: Generator) -> Json:
    """A hostile value, not shared with any other."""
    return copy.deepcopy(one_of(rng, _VALUES))


def one_of(rng: Generator, values: Sequence[Any]) -> Any:
    """One of the values, as it is: numpy's own choice makes arrays of them."""
    return values[int(rng.integers(len(values)))]


def _flip(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _set(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _range(rng, data)
    return data[:start] + bytes([int(one_of(rng, (0, 1, 0x7F, 0x80, 0xFF)))]) * (end - start) + data[end:]


def _cut(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _range(rng, data)
    return data[:start] + data[end:] if rng.random() < 0.7 else data[:start]


def _repeat(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _range(rng, data)
    return data[:start] + data[start:end] * int(one_of(rng, (2, 2, 3, 100))) + data[end:]


def _insert(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _range(rng, data)
    token: bytes = one_of(rng, _TOKENS)
    return data[:start] + token + data[start if rng.random() < 0.5 else end :]


def _splice(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    other: bytes = one_of(rng, others) if others else data
    (start, end), (first, last) = _range(rng, data), _range(rng, other)
    return data[:start] + other[first:last] + data[end:]


def _number(rng: Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    """A whole number of the file's own kinds, at any place: lengths, offsets and counts are such."""
    size: int = one_of(rng, (1, 2, 4, 8))
    start = int(rng.integers(len(data) + 1))
    value: int = one_of(rng, (0, 1, 2**7, 2**15, 2**31, 2**32, 2**63, 2**64 - 1)) % 256**size
    number = value.to_bytes(size, "big")
    return data[:start] + (number if rng.random() < 0.5 else number[::-1]) + data[start + size :]


_BYTES: Sequence[Callable[[Generator, bytes, Sequence[bytes]], bytes]] = (
    *(_flip, _flip, _set, _cut, _repeat, _insert, _insert, _splice, _number),
)


def _range(rng: Generator, data: bytes) -> tuple[int, int]:
    start = int(rng.integers(len(data) + 1))
    length = int(one_of(rng, (1, 2, 4, 8, 32, 256, 4096)))
    return start, min(len(data), start + int(rng.integers(1, length + 1)))


def _changed(rng: Generator, value: Json) -> Json:
    """One node changed, any of them."""
    places = list(_places(value))
    if not places:
        return _value(rng)
    holder, key = one_of(rng, places)
    how = int(rng.integers(8))
    if how <= 2:
        holder[key] = _value(rng)
    elif how == 3:
        other, name = one_of(rng, places)
        holder[key] = copy.deepcopy(other[name])
    elif how == 4:
        del holder[key]
    elif how == 5:
        _double(rng, holder, key)
    else:
        holder[key] = _near(rng, holder[key])
    return value


def _double(rng: Generator, holder: Json, key: Any) -> None:
    """A list's element many times; an object's value under another name as well."""
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * int(one_of(rng, (1, 1, 5, 3000)))
    else:
        holder[str(one_of(rng, (key + "x", key.upper(), "", "\0", "__class__")))] = copy.deepcopy(holder[key])


def _near(rng: Generator, value: Json) -> Json:
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + int(one_of(rng, _STEPS)) if rng.random() < 0.8 else -value
    if isinstance(value, float):
        return value * float(one_of(rng, (-1.0, 0.0, 1e-300, 1e300, 2.0)))
    if isinstance(value, str):
        return mutate_bytes(rng, value.encode(errors="surrogatepass"), [b"block_0", b"main"]).decode(errors="replace")
    if isinstance(value, list):
        return value[::-1]
    return [value]


def _places(value: Json) -> Any:
    """Holder and key of every node below the value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from _places(child)


def _dumped(rng: Generator, value: Json) -> bytes:
    """As JSON, with what cannot be nested in Python nested in the text."""
    depth = int(one_of(rng, _DEPTHS))
    deep = str(one_of(rng, ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth)))
    text = json.dumps(value, ensure_ascii=bool(rng.random() < 0.7))
    for spelled in (json.dumps(_DEEP), f'"{_DEEP}"'):
        text = text.replace(spelled, deep)
    return text.encode(errors="surrogatepass")
