"""Whether stored latencies still hold: the test that a canary judges by. Nothing is measured here.

Everything is in logarithms, since noise multiplies. For a record, w and u are the log ratios of its winner's and of its untuned
program's median latency, now over stored. From them come

    d = w - u    what the winner lost beside its untuned program, which is timed in turns with it: what slows both cancels
    a = w - m    what it lost beside the machine, which moved by m, the median u of everything that is checked

A record has drifted when *both* are above log(TOLERATED) by more than noise explains (an intersection-union test, never less
strict than either of the two). A stored untuned latency that was disturbed moves d alone, a machine that is slow moves neither.
m is taken over untuned programs, so that winners which drifted are not judged by themselves; where there is none, over winners.

Noise has two parts. The log median of n runs has the standard error 1.2533 s / sqrt(n), with s the scatter of their logarithms
(1.4826 times the median absolute deviation; at least the median scatter of everything in the check, since that of five runs is
often far too small by chance). And sessions differ by more than runs within one: the log ratio of one program between two
sessions has the standard deviation SESSION_NOISE, or what the untuned programs of this check show, when there are five at least
and that is more; a run of either may differ by CALL_NOISE_S.

p-values are normal and corrected by Holm over the records of the check at LEVEL, so the chance of any false alarm in a check is
below 1%, however many records it has. A caller measures what has drifted a second time before it believes it, which lowers the
rate further; what was wrong with the stored latency it cannot lower, so SESSION_NOISE has to cover that.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

LEVEL = 0.01
"""Chance of any false alarm in one check, before the second measurement."""

TOLERATED = 1.1
"""A winner that lost no more than this factor has not drifted, however sure we are: its schedule is still worth reusing."""

VISIBLE = 1.5
"""A record of which not even this drift would be seen is too noisy to be judged."""

SESSION_NOISE = 0.03
"""Standard deviation of the log ratio of one program's latency in two sessions, at the least.

`tests/benchmarks/canary_noise.py` measures it.
"""

CALL_NOISE_S = 1e-7
"""What one run differs by between two sessions in any case, seconds: it makes programs of a microsecond hard to judge."""

_INTERVAL = 0.99
_MEDIAN_ERROR = 1.2533
_TO_DEVIATION = 1.4826
_LEAST_GAUGES = 5
_MOST = 0.75
_LARGEST = 700.0

Floats = NDArray[np.float64]


class RecordVerdict(enum.StrEnum):
    """What became of a record.

    UNTUNED is for records that say that the untuned program is the best: there is no schedule to doubt, only a gauge of the
    machine. FAILED is not for this module to say: the record does not replay, or computes something else.
    """

    STEADY = "steady"
    DRIFTED = "drifted"
    FASTER = "faster"
    UNCLEAR = "cannot tell"
    UNTUNED = "untuned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Remeasured:
    """The latencies of one record, stored and now, seconds.

    Attributes:
        stored_s: Run times of the winner as stored; empty when the untuned program is the best known.
        now_s: The same now, timed in turns with `untuned_now_s`.
        untuned_stored_s: Stored median of the untuned program; None when it was not measured.
        untuned_now_s: Run times of the untuned program now.
    """

    stored_s: tuple[float, ...]
    now_s: tuple[float, ...]
    untuned_stored_s: float | None
    untuned_now_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the times of one record say.

    Attributes:
        factor: Latency now over stored, each beside its untuned program; None when there is nothing to compare.
        low: Lower end of the 99% interval of `factor`.
        high: Its upper end.
    """

    verdict: RecordVerdict
    factor: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What all programs of a check say of the machine.

    Attributes:
        factor: Median latency now over stored.
        low: Lower end of the 99% interval of `factor`.
        high: Its upper end.
        moved: Whether the whole interval is outside what is tolerated.
        n_programs: Programs that `factor` is the median of.
        tuned_factor: What nearly all winners lost or gained beside their untuned programs; 1 unless they moved alike. Records
            are then judged beside it: what all of them share is the machine's doing, such as cores that others use.
    """

    factor: float
    low: float
    high: float
    moved: bool
    n_programs: int
    tuned_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class _Shift:
    """A log ratio and its variance; that of sessions joins last."""

    value: float
    variance: float


def judge(measured: Sequence[Remeasured], slowed: float = 1.0) -> tuple[Machine | None, list[Finding]]:
    """The machine (None when no program tells of it), and a finding for each record. DRIFTED ones are to be measured twice.

    To judge again, give all records once more, with the second times of those that were measured twice: m and the noise are
    those of the whole check.

    Args:
        slowed: What other processes may have slowed programs by that use all cores; so much more is tolerated.
    """
    limit = math.log(TOLERATED * slowed)
    pooled = _pooled_scatter(measured)
    winners, untuned = [_winner(m, pooled) for m in measured], [_untuned(m, pooled) for m in measured]
    gauges = [u for u in untuned if u is not None]
    known = gauges or [w for w in winners if w is not None]
    session = _session_variance(gauges)
    machine = _shift_of(known, session)
    beside = [_minus(w, u, 2 * session) if w and u else None for w, u in zip(winners, untuned, strict=True)]
    alone = [_minus(w, machine, session) if w and (gauges or len(known) >= _LEAST_GAUGES) else None for w in winners]
    common = _common([d for d in beside if d is not None], limit)
    judged = [_both(d, a, common) for d, a in zip(beside, alone, strict=True)]
    findings = _findings(judged, [not m.stored_s for m in measured], limit)
    return _as_machine(machine, len(known), _exp(common.value)), findings


def _pooled_scatter(measured: Sequence[Remeasured]) -> float:
    sets = [times for m in measured for times in (m.stored_s, m.now_s, m.untuned_now_s) if len(times) > 2]
    return statistics.median(_scatter(times) for times in sets) if sets else 0.0


def _scatter(times: Sequence[float]) -> float:
    """Robust standard deviation of the logarithms; 0 for fewer than two."""
    logs = np.log(np.asarray(times, dtype=np.float64))
    return float(_TO_DEVIATION * np.median(np.abs(logs - np.median(logs))))


def _winner(m: Remeasured, pooled: float) -> _Shift | None:
    if not m.stored_s or not m.now_s:
        return None
    sampling = _of_median(m.now_s, pooled) + _of_median(m.stored_s, pooled)
    return _log_ratio(statistics.median(m.now_s), statistics.median(m.stored_s), sampling)


def _untuned(m: Remeasured, pooled: float) -> _Shift | None:
    stored_s = m.untuned_stored_s
    if stored_s is None or not 0.0 < stored_s < math.inf or not m.untuned_now_s:
        return None
    of_stored = _error(max(pooled, _scatter(m.untuned_now_s)), max(1, len(m.stored_s)))
    return _log_ratio(statistics.median(m.untuned_now_s), stored_s, _of_median(m.untuned_now_s, pooled) + of_stored)


def _log_ratio(now_s: float, stored_s: float, sampling: float) -> _Shift:
    """With what is known of its variance before sessions are compared."""
    return _Shift(math.log(now_s) - math.log(stored_s), sampling + min(1.0, CALL_NOISE_S / min(now_s, stored_s)) ** 2)


def _of_median(times: Sequence[float], pooled: float) -> float:
    return _error(max(pooled, _scatter(times)), len(times))


def _error(scatter: float, n: int) -> float:
    """Variance of the log median of n runs."""
    return scatter**2 if n == 1 else (_MEDIAN_ERROR * scatter) ** 2 / n


def _session_variance(gauges: Sequence[_Shift]) -> float:
    """Of one program's log ratio between two sessions: what its scatter over programs is beyond what is known of each."""
    floor = SESSION_NOISE**2
    if len(gauges) < _LEAST_GAUGES:
        return floor
    middle = statistics.median(g.value for g in gauges)
    return max(floor, statistics.median((_TO_DEVIATION * (g.value - middle)) ** 2 - g.variance for g in gauges))


def _shift_of(known: Sequence[_Shift], session: float) -> _Shift:
    """The median log ratio; with two or more the variance of a median."""
    if not known:
        return _Shift(0.0, math.inf)
    one = session + statistics.median(k.variance for k in known)
    return _Shift(statistics.median(k.value for k in known), one * min(1.0, _MEDIAN_ERROR**2 / len(known)))


def _minus(a: _Shift, b: _Shift, session: float) -> _Shift:
    return _Shift(a.value - b.value, a.variance + b.variance + session)


def _common(beside: Sequence[_Shift], limit: float) -> _Shift:
    """What the winners share when three of four, and five at least, moved the same way by more than is tolerated."""
    values: Floats = np.array([d.value for d in beside], dtype=np.float64)
    if len(values) < _LEAST_GAUGES or max(np.mean(values > limit), np.mean(values < -limit)) < _MOST:
        return _Shift(0.0, 0.0)
    median = float(np.median(values))
    scatter = _TO_DEVIATION * float(np.median(np.abs(values - median)))
    return _Shift(median, max(0.0, scatter**2 - statistics.median(d.variance for d in beside)))


def _both(beside: _Shift | None, alone: _Shift | None, common: _Shift) -> tuple[_Shift, ...]:
    """What a record is judged by: both, or what there is of them, less what all winners share."""
    return tuple(_Shift(s.value - common.value, s.variance + common.variance) for s in (beside, alone) if s is not None)


def _findings(judged: Sequence[tuple[_Shift, ...]], is_untuned: Sequence[bool], limit: float) -> list[Finding]:
    n = sum(1 for shifts in judged if shifts)
    drifted, faster = (_rejected([_p_value(shifts, sign, limit) for shifts in judged], n) for sign in (1, -1))
    findings = []
    for i, shifts in enumerate(judged):
        if not shifts:
            findings.append(Finding(RecordVerdict.UNTUNED if is_untuned[i] else RecordVerdict.UNCLEAR))
            continue
        known = RecordVerdict.DRIFTED if drifted[i] else RecordVerdict.FASTER if faster[i] else None
        verdict = known or (RecordVerdict.STEADY if _sees_enough(shifts, n, limit) else RecordVerdict.UNCLEAR)
        findings.append(Finding(verdict, *_interval(shifts[0])))
    return findings


def _p_value(shifts: Sequence[_Shift], sign: int, limit: float) -> float:
    """Of moving by no more than is tolerated: the largest over the shifts, since all of them must show it."""
    return max((float(ndtr((limit - sign * s.value) / math.sqrt(s.variance))) for s in shifts), default=1.0)


def _rejected(p_values: Sequence[float], n: int) -> list[bool]:
    """Holm's procedure over n records."""
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if rank >= n or p_values[i] > LEVEL / (n - rank):
            break
        rejected[i] = True
    return rejected


def _sees_enough(shifts: Sequence[_Shift], n: int, limit: float) -> bool:
    needed = max(math.sqrt(s.variance) for s in shifts) * -float(ndtri(LEVEL / n))
    return limit + needed <= math.log(VISIBLE)


def _interval(shift: _Shift) -> tuple[float, float, float]:
    half = float(ndtri(0.5 + _INTERVAL / 2)) * math.sqrt(shift.variance)
    return _exp(shift.value), _exp(shift.value - half), _exp(shift.value + half)


def _exp(value: float) -> float:
    """Finite, whatever somebody stored."""
    return math.exp(min(value, _LARGEST))


def _as_machine(shift: _Shift, n_programs: int, tuned_factor: float) -> Machine | None:
    if not n_programs:
        return None
    factor, low, high = _interval(shift)
    return Machine(factor, low, high, low > TOLERATED or high < 1 / TOLERATED, n_programs, tuned_factor)
