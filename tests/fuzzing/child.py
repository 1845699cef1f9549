"""Reads mutated inputs of one format in a process that may crash: `python -m tests.fuzzing.child NAME SEED FIRST END FOLDER`.

Before each input its number is written to a file that the parent watches, so that a crash or a hang is known to be its own.
"""

from __future__ import annotations

import json
import mmap
import resource
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bcd_registry.errors import BcdError

from .formats import FORMATS, Format, Unverified

LIMIT_S = 1.0
"""What reading one input may take, in this process's own time."""

EXTRA_BYTES = 2 << 30
"""Address space that reading may take on top of what was there before."""

STATE, FINDINGS = "state", "findings.jsonl"
_FIELDS = struct.Struct("<8q")
NAMES = ("at", "inputs", "accepted", "refused", "slow", "raised", "unverified", "slowest_us")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one input: `accepted`, `refused`, `raised` or `unverified`, and why."""

    kind: str
    detail: str
    seconds: float


class State:
    """Counters in a file; they outlive the process."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_FIELDS.pack(-1, *[0] * 7))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FIELDS.size)

    def __getitem__(self, name: str) -> int:
        return int(_FIELDS.unpack(self._map)[NAMES.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._map, 8 * NAMES.index(name), value)

    def count(self, outcome: Outcome) -> None:
        """One more input."""
        slow = outcome.seconds > LIMIT_S
        for name in ("inputs", outcome.kind, *(["slow"] if slow else [])):
            self[name] += 1
        self["slowest_us"] = max(self["slowest_us"], int(outcome.seconds * 1e6))


def open_format(name: str, folder: Path) -> Format:
    """The format of the name; TVM is loaded only for those of the tuner."""
    if name in FORMATS:
        return FORMATS[name](folder)
    from .tuner_formats import TUNER_FORMATS

    return TUNER_FORMATS[name](folder)


def input_of(found: Format, seed: int, number: int) -> bytes:
    """The input of a number, the same on each run."""
    return found.mutate(np.random.default_rng([seed, number]))


def try_input(found: Format, data: bytes) -> Outcome:
    """Read one input; nothing but an error that a user can act on may come of it."""
    began = time.process_time()
    try:
        found.read(data)
        kind, detail = "accepted", ""
    except BcdError as error:
        kind, detail = "refused", error.message
    except Unverified as error:
        kind, detail = "unverified", str(error)
    except Exception as error:  # noqa: BLE001 - what it finds is the purpose
        kind, detail = "raised", f"{type(error).__name__}: {error}"
    return Outcome(kind, detail[:500], time.process_time() - began)


@contextmanager
def memory_limit(extra_bytes: int) -> Iterator[None]:
    """Refuse more address space than the process has now and so much on top."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def run(name: str, seed: int, first: int, end: int, folder: Path) -> None:
    """Read the inputs from `first` up to `end`."""
    own = folder / f"from-{first}"
    own.mkdir()
    found, state = open_format(name, own), State(folder / STATE)
    with (folder / FINDINGS).open("a", encoding="utf-8") as findings:
        for number in range(first, end):
            state["at"] = number
            data = input_of(found, seed, number)
            with memory_limit(EXTRA_BYTES):
                outcome = try_input(found, data)
            state.count(outcome)
            if outcome.kind in ("raised", "unverified") or outcome.seconds > LIMIT_S:
                kind = "slow" if outcome.kind in ("accepted", "refused") else outcome.kind
                line = {"number": number, "kind": kind, "detail": outcome.detail, "seconds": round(outcome.seconds, 3)}
                findings.write(json.dumps(line) + "\n")
                findings.flush()
    state["at"] = end


if __name__ == "__main__":
    _, format_name, *numbers, place = sys.argv
    given_seed, first_number, end_number = map(int, numbers)
    run(format_name, given_seed, first_number, end_number, Path(place))
