"""Clusters of tasks and the representative of each: the member that is searched first and that its siblings diffuse from.

Three ways to cluster the tasks of a run: `signature` is ours and the registry's; `sketch` (the text of the first sketch) and
`operator` (the task's name without its numbers) are those of the paper's artifact, for comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from bcd_registry.model import Task, Workload, digest_of

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


class Clustering(StrEnum):
    """What makes tasks of one run siblings. The registry's lookup always goes by signature."""

    SIGNATURE = "signature"
    SKETCH = "sketch"
    OPERATOR = "operator"
    NONE = "none"


def clusters_of(tasks: Sequence[Task], clustering: Clustering, sketch_of: Callable[[Task], str]) -> dict[str, str]:
    """The cluster's name of each task, by workload key.

    Args:
        sketch_of: The sketch of a task's first design space; asked for SKETCH only, since it takes the compiler.
    """
    names: Mapping[Clustering, Callable[[Task], str]] = {
        Clustering.SIGNATURE: lambda task: task.workload.cluster,
        Clustering.SKETCH: sketch_of,
        Clustering.OPERATOR: lambda task: digest_of(task.workload.op),
        Clustering.NONE: lambda task: task.workload.key,
    }
    return {task.workload.key: names[clustering](task) for task in tasks}


def group_by_cluster(tasks: Sequence[Task], clusters: Mapping[str, str]) -> dict[str, list[Task]]:
    """Tasks by the name of their cluster, both in the order of first appearance."""
    groups: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[clusters[task.workload.key]].append(task)
    return dict(groups)


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
