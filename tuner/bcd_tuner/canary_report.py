"""What a canary says when it ends. Plain values: no TVM, no terminal."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .drift import Machine, RecordVerdict

SCHEMA = 1
"""Version of the JSON that `check --json` prints."""

_BAD = (RecordVerdict.DRIFTED, RecordVerdict.FAILED)
_GOOD = (RecordVerdict.STEADY, RecordVerdict.FASTER)


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What became of one record.

    Attributes:
        name: The task's name in the network.
        weight: How many times the network calls it.
        record: Id of the record.
        stored_ms: Stored median of the winner, or of the untuned program where that is the best known.
        now_ms: The same measured now; None when it could not be.
        factor: Latency now over stored, each beside its untuned program; None when there is nothing to compare.
        interval: 99% interval of `factor`.
        confirmed: It was measured a second time, and the verdict is that of the second.
        reason: Why it drifted, failed or cannot be judged; empty when it holds.
        doubted: Why an earlier canary doubted it; empty when none did.
    """

    name: str
    op: str
    workload_key: str
    weight: int
    record: str
    verdict: RecordVerdict
    stored_ms: float
    now_ms: float | None
    stored_untuned_ms: float | None
    now_untuned_ms: float | None
    factor: float | None
    interval: tuple[float, float] | None
    confirmed: bool
    reason: str
    doubted: str = ""

    @property
    def bad(self) -> bool:
        """Whether it drifted or failed."""
        return self.verdict in _BAD

    @property
    def good(self) -> bool:
        """Whether it is as fast as it was stored, or faster."""
        return self.verdict in _GOOD


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """The outcome of `check`.

    Attributes:
        n_known: Published records of the network's tasks, of which `records` were measured again.
        records: The costliest for the network first.
        machine: None when no program could be measured.
        marked: Whether the registry was told of everything that was found; False where it is only read.
        wall_s: Seconds from the command's start to its end.
        notes: Warnings for people, one line each.
    """

    network: str
    version: str
    target: str
    seed: int
    n_known: int
    records: tuple[RecordCheck, ...]
    machine: Machine | None
    marked: bool
    wall_s: float
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no record drifted or failed."""
        return not any(record.bad for record in self.records)

    def as_json(self) -> dict[str, Any]:
        """The object that `check --json` prints."""
        return {"schema": SCHEMA, "holds": self.holds, **dataclasses.asdict(self)}
