"""Lookups become work: what is reused, what is diffused, what is searched, and how many trials each gets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd_registry.model import Grade, Match, Prior, PriorSource, RecordState, RunSummary, Task, TuningRecord

from .clustering import expected_untuned_s, group_by_cluster, heavy_tasks, representative
from .report import Plan, TaskPlan

UNTUNED_SKETCH = "untuned"
"""The sketch of a record that says: searched, and nothing was faster than the untuned program."""

_SHARE_OF_DEPTH: Mapping[Grade, float] = {
    Grade.EXACT: 0.0,
    Grade.STALE: 0.25,
    Grade.CLUSTER: 0.5,
    Grade.ANCHOR: 0.75,
    Grade.COLD: 1.0,
}
_LIGHT_SHARE = 0.25
_LEAST_DEPTH = 4
_LEAST_TRIALS = 2
_MOST_DOUBLINGS = 2


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task with what the registry knows and what the run will do.

    Attributes:
        depth: Trials that a search from nothing would get; what EXACT is judged by.
        trials: Trials granted.
        waits_for: Workload key of the representative whose result is diffused into this one; None to begin at once.
        cluster: Name of its cluster in this run: the signature unless another clustering was asked for.
        finished: What another run found in this environment, in a search at least as deep that came to its end but is not
            published: it is checked as this run's own, without a trial.
        environment_key: The environment of this run: what was spent in another was not spent here.
    """

    task: Task
    match: Match
    depth: int
    trials: int
    prior: PriorSource
    waits_for: str | None
    cluster: str
    finished: TuningRecord | None = None
    environment_key: str = ""

    @property
    def spent(self) -> int:
        """Trials that earlier runs spent on this very workload in a search that did not come to its end."""
        return _spent(self.match, self.environment_key)

    def trials_if_misled(self, waste: float) -> int:
        """Trials once its priors misled: a search from nothing, and at most the share `waste` of one on top."""
        return max(self.trials, math.ceil((1.0 + waste) * self.depth))

    @property
    def priors(self) -> tuple[Prior, ...]:
        """Records that can be diffused from: those that say "untuned" have nothing to give."""
        return tuple(p for p in self.match.priors if p.record.sketch != UNTUNED_SKETCH)


def depths_of(tasks: Sequence[Task], trials: int) -> dict[str, int]:
    """Trials for each task if it were searched from nothing, by workload key.

    Those that make up 90% of the expected untuned time get `trials`, and twice or four times as many where one's share is about
    twice or four times the mean of theirs. The others get a quarter. The expectation is made from operation counts, so the same
    network gets the same depths on every run and machine.
    """
    heavy = heavy_tasks(tasks)
    costs = {t.workload.key: t.weight * expected_untuned_s(t.workload) for t in tasks}
    mean = math.fsum(costs[key] for key in heavy) / max(1, len(heavy))
    light = min(trials, max(_LEAST_DEPTH, math.ceil(trials * _LIGHT_SHARE)))
    return {key: trials * _times_deeper(cost / mean) if key in heavy else light for key, cost in costs.items()}


def _times_deeper(share: float) -> int:
    """The power of two nearest to a task's share of the mean: coarse, so that another version of the network asks the same."""
    return 1 << min(_MOST_DOUBLINGS, max(0, round(math.log2(share))))


def plan_tasks(
    tasks: Sequence[Task],
    matches: Sequence[Match],
    depths: Mapping[str, int],
    clusters: Mapping[str, str] | None = None,
    environment_key: str = "",
) -> list[PlannedTask]:
    """Grant trials by grade, and let the siblings of a cold cluster wait for their representative.

    Args:
        clusters: The name of each task's cluster by workload key; by default its signature.
        environment_key: The environment of this run, in which a finished search of another run counts as its own.
    """
    names = clusters or {task.workload.key: task.workload.cluster for task in tasks}
    planned = [
        _plan_known(task, match, depths[task.workload.key], names[task.workload.key], environment_key)
        for task, match in zip(tasks, matches, strict=True)
    ]
    cold = [p.task for p in planned if p.match.grade in (Grade.COLD, Grade.ANCHOR)]
    leaders = {name: representative(members).workload.key for name, members in group_by_cluster(cold, names).items()}
    return [_plan_sibling(p, leaders.get(p.cluster)) for p in planned]


def _plan_known(task: Task, match: Match, depth: int, cluster: str, environment_key: str) -> PlannedTask:
    if match.grade is Grade.STALE and (finished := _finished(match, depth, environment_key)) is not None:
        return PlannedTask(task, match, depth, 0, PriorSource.REGISTRY, None, cluster, finished, environment_key)
    trials = max(_LEAST_TRIALS, math.ceil(depth * _SHARE_OF_DEPTH[match.grade]))
    if match.grade is Grade.EXACT:
        trials = 0
    elif (spent := _spent(match, environment_key)) and not _came_to_its_end(match, depth):
        trials = max(1, depth - spent)  # one is enough to measure the best of an earlier run again
    planned = PlannedTask(
        task, match, depth, min(depth, trials), PriorSource.REGISTRY, None, cluster, environment_key=environment_key
    )
    useful = match.grade is Grade.EXACT or planned.priors
    return planned if useful else dataclasses.replace(planned, prior=PriorSource.NONE)


def _finished(match: Match, depth: int, environment_key: str) -> TuningRecord | None:
    """The best of what a finished search of this very workload found that no run has published, in the environment."""
    found = [p.record for p in match.priors if p.record.workload_key == match.workload.key]
    unpublished = [r for r in found if r.state in (RecordState.MEASURED, RecordState.CHECKED) and r.depth >= depth > 0]
    return min((r for r in unpublished if r.environment_key == environment_key), key=lambda r: r.median_s, default=None)


def _spent(match: Match, environment_key: str) -> int:
    """Trials that an unfinished search of this very workload spent already in the environment, or in any when it is empty."""
    own = [p.record for p in match.priors if p.grade is Grade.STALE and p.record.workload_key == match.workload.key]
    here = [r for r in own if environment_key in ("", r.environment_key)]
    return max((r.trials for r in here if r.depth == 0 or r.state is RecordState.MEASURED), default=0)


def _came_to_its_end(match: Match, depth: int) -> bool:
    """Whether a search of this very workload did, whose result is doubted now: nothing is left to go on with."""
    own = (p.record for p in match.priors if p.record.workload_key == match.workload.key)
    return any(r.state is RecordState.PUBLISHED and r.depth >= depth for r in own)


def _plan_sibling(planned: PlannedTask, leader: str | None) -> PlannedTask:
    if leader is None or leader == planned.task.workload.key or planned.match.grade not in (Grade.COLD, Grade.ANCHOR):
        return planned
    trials = min(planned.depth, max(_LEAST_TRIALS, math.ceil(planned.depth * _SHARE_OF_DEPTH[Grade.CLUSTER])))
    source = planned.prior if planned.priors else PriorSource.RUN
    return dataclasses.replace(planned, trials=trials, prior=source, waits_for=leader)


def seconds_a_trial(runs: Sequence[RunSummary]) -> tuple[float | None, str]:
    """What a trial cost in earlier runs, seconds, and where the figure comes from."""
    costly = [run for run in runs if run.trials >= 8]
    if not costly:
        return None, "no earlier run to go by"
    trials, seconds = sum(r.trials for r in costly), sum(r.tuning_s for r in costly)
    names = sorted({f"{r.network} {r.version}".strip() for r in costly})
    return seconds / trials, f"{seconds / trials:.2f} s a trial over {trials} trials of {', '.join(names)}"


def expectation(network: str, version: str, target: str, planned: Sequence[PlannedTask], runs: Sequence[RunSummary]) -> Plan:
    """The plan as people and scripts see it."""
    cost, basis = seconds_a_trial(runs)
    rows = tuple(
        TaskPlan(
            name=p.task.name,
            op=p.task.workload.op,
            workload_key=p.task.workload.key,
            cluster=p.task.workload.cluster,
            weight=p.task.weight,
            grade=p.match.grade,
            prior=p.prior,
            trials=p.trials,
            seconds=None if cost is None else cost * p.trials,
            known_ms=p.match.record.median_s * 1e3 if p.match.record else None,
            note=p.match.reason,
        )
        for p in planned
    )
    return Plan(network, version, target, rows, cost, basis)
