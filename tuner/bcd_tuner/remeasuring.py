"""Schedules that somebody else measured: built and checked here against the untuned program, and timed beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tvm.ir import IRModule

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import RecordState, TuningRecord

from .checking import Case, compare_many
from .replay import replay
from .worker_checks import Comparison
from .workers import WarmPool

ATTEMPTS = 3
"""Schedules of a workload that are tried: its fastest, as they were measured elsewhere."""

_REPEATS = 5
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """A schedule with the times that somebody else measured.

    Attributes:
        mod: The program, under canonical names.
        record: What would be published, in the environment of this machine; its trace was seen to replay in another process.
        prior: The id of the record under which the registry keeps it with the times of elsewhere.
    """

    mod: IRModule
    record: TuningRecord
    prior: str


@dataclass(slots=True)
class Remeasured:
    """What became of claims.

    Attributes:
        checked: Records with the times of this machine: their output is the untuned program's, and they are not slower.
        wrong: Claims that do not compute what they should, with the reason.
        n_slower: Schedules that are slower here than the untuned program.
    """

    checked: list[TuningRecord] = field(default_factory=list)
    wrong: list[tuple[Claim, str]] = field(default_factory=list)
    n_slower: int = 0


def remeasure(claims: Sequence[Claim], pool: WarmPool, step: Callable[[], None], *, seed: int = 0) -> Remeasured:
    """Check the claims of each workload, the fastest first, until one passes; three at most.

    Args:
        step: Called before each batch of programs.
        seed: Of the inputs.
    """
    found = Remeasured()
    waiting = _by_workload(claims)
    while turns := [claims.pop(0) for claims in waiting.values() if claims]:
        for batch in _batches(turns):
            step()
            for claim, comparison in zip(batch, _compare(batch, pool, seed), strict=True):
                if _take(claim, comparison, found):
                    waiting[claim.record.workload_key].clear()
    return found


def _by_workload(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    grouped: dict[str, list[Claim]] = {}
    for claim in sorted(claims, key=lambda claim: (claim.record.median_s, claim.record.id)):
        grouped.setdefault(claim.record.workload_key, []).append(claim)
    return {key: group[:ATTEMPTS] for key, group in grouped.items()}


def _batches(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    for begin in range(0, len(claims), _BATCH):
        yield claims[begin : begin + _BATCH]


def _compare(batch: Sequence[Claim], pool: WarmPool, seed: int) -> Iterator[Comparison]:
    cases: list[Case | str] = []
    for claim in batch:
        try:
            cases.append(Case(claim.mod, replay(claim.mod, claim.record.trace).mod))
        except CorruptBlob as error:
            cases.append(error.message)
    compared = iter(compare_many(pool, [case for case in cases if isinstance(case, Case)], seed=seed, repeats=_REPEATS))
    for case in cases:
        yield Comparison(False, error=case) if isinstance(case, str) else next(compared)


def _take(claim: Claim, comparison: Comparison, found: Remeasured) -> bool:
    """Whether the claim holds; it is taken into what was found."""
    if not comparison.equal:
        found.wrong.append((claim, f"it failed its check: {comparison.error}"))
        return False
    untuned_s = statistics.median(comparison.reference_s)
    if statistics.median(comparison.tuned_s) > untuned_s:
        found.n_slower += 1
        return False
    record = claim.record.with_state(RecordState.CHECKED, run_times_s=comparison.tuned_s, untuned_s=untuned_s)
    found.checked.append(record)
    return True
