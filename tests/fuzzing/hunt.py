"""One format's inputs, read by child processes that are watched and started anew when one crashes or hangs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .child import FINDINGS, NAMES, STATE, State

ALL = ("settings", "blob", "trace", "booster", "samples", "snapshot", "spool", "catalog", "bundle", "database")
"""Every format. `trace` to `snapshot` and `database` load TVM or xgboost."""

HANG_S = 30.0
"""An input that takes so long by the clock is given up, with its process."""

_WEIGHTS = {"trace": 3.0, "database": 0.3}
_MOST_CRASHES = 200
_POLL_S = 0.25


@dataclass(slots=True)
class Hunted:
    """What became of the inputs of one format.

    Attributes:
        counts: By the names of `child.NAMES`.
        crashes: Inputs that ended their process.
        hangs: Inputs that had to be given up.
        findings: A line for each input that did what none may do.
    """

    name: str
    counts: dict[str, int] = field(default_factory=dict)
    crashes: int = 0
    hangs: int = 0
    findings: list[str] = field(default_factory=list)

    HEADING: ClassVar[str] = (
        f"{'format':<10}{'inputs':>8}{'accepted':>10}{'refused':>9}{'slowest':>10}"
        f"{'over 1 s':>10}{'raised':>8}{'unverified':>12}{'crashes':>9}{'hangs':>7}"
    )

    @property
    def is_sound(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.crashes or self.hangs or any(self.counts[name] for name in ("slow", "raised", "unverified")))

    def line(self) -> str:
        """The row under `HEADING`."""
        counts = self.counts
        columns = (
            f"{self.name:<10}{counts['inputs'] + self.crashes + self.hangs:>8}",
            f"{counts['accepted']:>10}{counts['refused']:>9}{counts['slowest_us'] / 1e6:>8.2f} s",
            f"{counts['slow']:>10}{counts['raised']:>8}{counts['unverified']:>12}{self.crashes:>9}{self.hangs:>7}",
        )
        return "".join(columns)


def share_of(name: str, n_inputs: int, names: Sequence[str]) -> int:
    """How many of all inputs are of this format."""
    total = sum(_WEIGHTS.get(other, 1.0) for other in names)
    return max(1, round(n_inputs * _WEIGHTS.get(name, 1.0) / total))


def hunt(name: str, n_inputs: int, seed: int) -> Hunted:
    """Read so many inputs of a format."""
    found = Hunted(name)
    with tempfile.TemporaryDirectory(prefix="bcd-fuzzing-") as text:
        folder = Path(text)
        state, first = State(folder / STATE), 0
        while first < n_inputs and found.crashes + found.hangs < _MOST_CRASHES:
            state["at"] = -1
            ended = _watched(name, seed, first, n_inputs, folder, state)
            if ended == "":
                break
            if state["at"] < 0:
                raise RuntimeError(f"{name} cannot be set up: {ended}")
            found.crashes += ended != _HUNG
            found.hangs += ended == _HUNG
            found.findings.append(f"input {state['at']}: {ended}")
            first = state["at"] + 1
        found.counts = {key: state[key] for key in NAMES}
        found.findings += _written(folder / FINDINGS)
    return found


_HUNG = "hung"


def _watched(name: str, seed: int, first: int, end: int, folder: Path, state: State) -> str:
    """Run a child until it ends; empty when it came to its end, else what ended it."""
    command = [sys.executable, "-m", "tests.fuzzing.child", name, str(seed), str(first), str(end), str(folder)]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            if _hangs(process, state):
                return _HUNG
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode == 0:
        return ""
    last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:200]
    ended = signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit code {process.returncode}"
    return f"{ended} {last}".strip()


def _hangs(process: subprocess.Popen[bytes], state: State) -> bool:
    """Wait for the end of the process; true when it stays too long with one input."""
    at, since = state["at"], time.monotonic()
    while True:
        try:
            process.wait(_POLL_S)
            return False
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if state["at"] != at:
                at, since = state["at"], now
            elif now - since > HANG_S and at >= 0:
                return True


def _written(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [f"input {line['number']}: {line['kind']}, {line['seconds']} s: {line['detail']}" for line in lines]
