"""Clusters of tasks and the representative of each: the member that is searched first and that its siblings diffuse from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bcd_registry.model import Task, Workload

_UNTUNED_FLOPS_PER_S = 3e9
_UNTUNED_BYTES_PER_S = 4e9
_CALL_S = 1e-6
_FAR = 8.0


def expected_untuned_s(workload: Workload) -> float:
    """Rough seconds of the untuned program, from its operations and bytes alone, so that it is the same on every run.

    The rates are those of one core running code that nobody scheduled; only the ratios between tasks matter.
    """
    compute, memory = workload.flops / _UNTUNED_FLOPS_PER_S, workload.bytes_moved / _UNTUNED_BYTES_PER_S
    return max(compute, memory) + _CALL_S


def group_by_cluster(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    """Tasks by cluster signature, both in the order of first appearance."""
    clusters: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        clusters[task.workload.cluster].append(task)
    return dict(clusters)


def representative(members: Sequence[Task]) -> Task:
    """The member that is nearest to the costly ones: least sum of distances in log-extents, weighted by expected cost."""

    def pull(candidate: Task) -> float:
        return sum(
            task.weight * expected_untuned_s(task.workload) * min(_FAR, candidate.workload.distance(task.workload))
            for task in members
        )

    return min(members, key=lambda task: (pull(task), -task.weight * task.workload.flops, task.workload.key))


def heavy_tasks(tasks: Sequence[Task], share: float = 0.9) -> set[str]:
    """Workload keys of the tasks that make up `share` of the expected untuned time, costliest first."""
    costs = {task.workload.key: task.weight * expected_untuned_s(task.workload) for task in tasks}
    left = share * math.fsum(costs.values())
    heavy: set[str] = set()
    for key in sorted(costs, key=lambda k: (-costs[k], k)):
        if left <= 0.0:
            break
        heavy.add(key)
        left -= costs[key]
    return heavy
