"""Which task comes next: representatives before their siblings, then whichever promises to save the most."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bcd_registry.model import Grade, PriorSource, RecordState, TuningRecord

from .clustering import expected_untuned_s
from .plan import PlannedTask
from .search import Candidate, TaskSearch

_FIRST_PROMISE: Mapping[Grade, float] = {
    Grade.EXACT: 0.0,
    Grade.STALE: 0.15,
    Grade.CLUSTER: 0.9,
    Grade.ANCHOR: 0.9,
    Grade.COLD: 0.9,
}
_SECOND_PROMISE: Mapping[Grade, float] = {
    Grade.EXACT: 0.0,
    Grade.STALE: 0.1,
    Grade.CLUSTER: 0.2,
    Grade.ANCHOR: 0.3,
    Grade.COLD: 0.4,
}
ROUND = 8
"""Candidates measured in a round at most."""

_FIRST_ROUND = 2
_LEAST_PROMISE = 0.01
_FLAT = 2e-4
"""Share of the network's estimated latency below which a round is not worth its time."""

_WASTE = 0.2
"""Trials that misleading priors may cost, as a share of the depth."""

_NOISE = 0.05
_HOPELESS = 0.25
_SIBLING_SHARE = 0.5
_SLOW = 0.35
_IN_REACH = 0.4
_LEAST_PEERS = 4


@dataclass(slots=True)
class TaskRun:
    """A task in the run: what was planned, and what has become of it.

    Attributes:
        mod: The task's module, one PrimFunc named main.
        search: None before its first round, and for a task that is reused.
        trials: Trials used in this run.
        seconds: Tuning seconds used in this run.
        untuned_s: Measured latency of the untuned program, seconds.
        promise: Share of its latency that the next round is expected to save.
        granted: Trials that it may use.
        dry: Rounds in a row that saved next to nothing.
        exhausted: Its space holds nothing more.
        finished: Nothing more is to be searched: the trials are spent, the space is exhausted or the curve is flat.
        refuted: The registry was told that its priors misled.
        record: The record that is used at the end; None for the untuned program.
        checked: Its output equals the untuned program's.
        adopted: What another run found and this one checks; None when it is searched or reused.
        settled: The registry was told that its search came to its end.
    """

    planned: PlannedTask
    mod: Any
    search: TaskSearch | None = None
    context: Any = None
    trials: int = 0
    seconds: float = 0.0
    untuned_s: float | None = None
    promise: float = 0.0
    granted: int = field(init=False)
    dry: int = 0
    exhausted: bool = False
    finished: bool = False
    refuted: bool = False
    record: TuningRecord | None = None
    checked: bool = False
    adopted: Candidate | None = None
    settled: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with what was planned."""
        self.granted = self.planned.trials

    def plan_again(self, planned: PlannedTask) -> None:
        """Take another plan, before the first round."""
        self.planned, self.granted, self.finished = planned, planned.trials, planned.trials == 0
        self.promise = _FIRST_PROMISE[planned.match.grade]

    @property
    def key(self) -> str:
        """The workload key."""
        return self.planned.task.workload.key

    @property
    def weight(self) -> int:
        """How many times the network calls it."""
        return self.planned.task.weight

    @property
    def left(self) -> int:
        """Trials granted and not used."""
        return 0 if self.finished else max(0, self.granted - self.trials)

    @property
    def confirms(self) -> bool:
        """Whether its next round is the first, and only has to confirm a prior."""
        return self.trials == 0 and self.planned.prior is not PriorSource.NONE

    @property
    def next_round(self) -> int:
        """Trials of the next round: one that confirms a prior is small."""
        return min(_FIRST_ROUND if self.confirms else ROUND, self.left)

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate of this run, or what it adopted."""
        return self.search.best if self.search else self.adopted

    @property
    def best_s(self) -> float | None:
        """The best latency known, seconds: measured in this run, or reused, or untuned."""
        known = [self.untuned_s, self.best.latency_s if self.best else None]
        if self.record is not None and self.record.state is RecordState.PUBLISHED:
            known.append(self.record.median_s)
        return min((latency for latency in known if latency is not None), default=None)

    @property
    def known_s(self) -> float | None:
        """The best latency that earlier runs measured for this workload, seconds."""
        own = [p.record.median_s for p in self.planned.priors if p.record.workload_key == self.key]
        return min(own, default=None)

    def after_round(self, n_trials: int, before_s: float | None) -> None:
        """Adapt the promise: what is left after the first round depends on the grade, later on what the last round saved.

        Args:
            n_trials: Trials of the round.
            before_s: The best latency known before it, seconds; None when there was none.
        """
        after_s = self.best_s
        saved = 1.0 - after_s / before_s if before_s and after_s else None
        self.dry = 0 if after_s and (saved is None or saved > _NOISE) else self.dry + 1
        if self.trials == n_trials:
            grade = Grade.CLUSTER if self.planned.waits_for else self.planned.match.grade
            self.promise = _SECOND_PROMISE[grade] * (_HOPELESS if self.dry else 1.0)
        else:
            self.promise = max(_LEAST_PROMISE, 0.5 * (saved or 0.0) + 0.3 * self.promise)
        if self.search is not None and self.search.misled:
            self.granted = self.planned.trials_if_misled(_WASTE)
        self.finished = self.finished or self.exhausted or self.trials >= self.granted


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the measurements so far say of all tasks together.

    Attributes:
        scale: Measured over expected latency of the untuned programs: the machine's own speed.
        good: By main operator, best over expected untuned latency of the best third of its tasks, those reused included, as far
            as their latencies are known. The third is one of their expected time: what small ones lose to the start of threads
            says nothing of the others.
    """

    scale: float
    good: Mapping[str, float]

    def slack(self, run: TaskRun) -> float:
        """Share of its latency that goes if it becomes as fast for its size as those; 0 when unknown."""
        good, best_s = self.good.get(_main_operator(run)), run.best_s
        return 0.0 if good is None or best_s is None else max(0.0, 1.0 - good * _expected_s(run) / best_s)


class Schedule:
    """The order of the rounds of one run. Not safe to share between threads."""

    def __init__(self, runs: Sequence[TaskRun]) -> None:
        """Start with what the operation counts promise, since nothing was measured yet."""
        self._runs = list(runs)
        self._by_key = {run.key: run for run in runs}
        for run in runs:
            run.plan_again(run.planned)

    def next_task(self, allowed: Callable[[TaskRun], bool] | None = None) -> TaskRun | None:
        """The runnable task with the largest expected saving of the network's latency for a second; None when there is none.

        Tasks with a prior to confirm come before all others: it takes seconds, saves most of what there is to save, and what
        they cost is a guess until then.

        Args:
            allowed: Asked of one after the other, best first, until it says yes; None says it of all.
        """
        standing = self._standing()
        self._grant_slow(standing)
        self._stop_flat(standing)
        ready = [run for run in self._runs if run.left and not self._waits(run)]
        ready.sort(key=lambda run: (run.confirms, self._gain(run, standing) / self._cost_s(run)), reverse=True)
        return next((run for run in ready if allowed is None or (run.left and allowed(run))), None)

    def pace_s(self, run: TaskRun) -> float | None:
        """Seconds that a trial of the task takes: its own so far, else the run's; None before the first."""
        own = [run] if run.trials and run.seconds else self._runs
        trials = sum(r.trials for r in own)
        return sum(r.seconds for r in own) / trials if trials else None

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds of the trials that are left; None before the first."""
        paces = [(run.left, self.pace_s(run)) for run in self._runs if run.left]
        return sum(left * pace for left, pace in paces if pace is not None) if any(p for _, p in paces) or not paces else None

    @property
    def trials_left(self) -> int:
        """Trials that the run may still use."""
        return sum(run.left for run in self._runs)

    def _grant_slow(self, standing: _Standing) -> None:
        """A task that spent its trials and is far slower for its size than its peers gets those of a search from nothing."""
        for run in self._runs:
            spent = run.finished and not run.exhausted and run.granted <= run.trials < run.planned.depth
            if spent and run.trials and standing.slack(run) > _SLOW:
                run.notes.append(f"slow for its size: {run.planned.depth - run.granted} trials more than planned")
                run.granted, run.finished, run.settled = run.planned.depth, False, False

    def _stop_flat(self, standing: _Standing) -> None:
        """Tasks that had their say and whose next round promises next to nothing for the network are finished."""
        total = sum(_latency(run, standing.scale) for run in self._runs)
        for run in self._runs:
            if run.left and run.trials and self._gain(run, standing) < _FLAT * total:
                run.notes.append(f"stopped after {run.trials} of {run.granted} trials: more would not be seen in the network")
                run.finished = True

    def _waits(self, run: TaskRun) -> bool:
        leader = self._by_key.get(run.planned.waits_for or "")
        return leader is not None and not leader.finished

    def _gain(self, run: TaskRun, standing: _Standing) -> float:
        followers = [r for r in self._runs if r.planned.waits_for == run.key and not r.finished]
        return _saving(run, standing) + _SIBLING_SHARE * sum(_saving(r, standing) for r in followers)

    def _cost_s(self, run: TaskRun) -> float:
        """Expected seconds of the task's next round."""
        return run.next_round * (self.pace_s(run) or 1.0)

    def _standing(self) -> _Standing:
        ratios = [r.untuned_s / _expected_s(r) for r in self._runs if r.untuned_s]
        sized: dict[str, list[tuple[float, float]]] = {}
        for run in self._runs:
            if (best_s := run.best_s) is not None:
                expected_s = _expected_s(run)
                sized.setdefault(_main_operator(run), []).append((best_s / expected_s, run.weight * expected_s))
        good = {operator: _best_third(peers) for operator, peers in sized.items() if len(peers) >= _LEAST_PEERS}
        return _Standing(statistics.median(ratios) if ratios else 1.0, good)


def _best_third(sized: Sequence[tuple[float, float]]) -> float:
    """The ratio within which the best third is; a third of the costs, which are the second of each pair."""
    ranked = sorted(sized)
    costs = list(itertools.accumulate(cost for _, cost in ranked))
    return next(ratio for (ratio, _), cost in zip(ranked, costs, strict=True) if cost >= costs[-1] / 3)


def _saving(run: TaskRun, standing: _Standing) -> float:
    """Expected seconds that the next round saves: by its own curve, and by what its peers show to be in reach."""
    promise = max(run.promise, _IN_REACH * 0.5**run.dry * standing.slack(run)) if run.trials else run.promise
    return _latency(run, standing.scale) * promise


def _main_operator(run: TaskRun) -> str:
    return run.planned.task.workload.op.partition("+")[0]


def _expected_s(run: TaskRun) -> float:
    return expected_untuned_s(run.planned.task.workload)


def _latency(run: TaskRun, scale: float) -> float:
    """Seconds of the network that go to the task now, as far as they are known."""
    return run.weight * (run.best_s or run.known_s or _expected_s(run) * scale)
