"""The nearest of many workloads, all measured at once. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .model import Grade, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CLOSE = 1e-9
"""Octaves. Distances that are closer are computed one by one: their last bits depend on how they are added up."""


def distance(workload: Workload, other: Workload, grade: Grade) -> float:
    """Between the whole workloads in a cluster, between the main blocks where only those are the same."""
    return workload.anchor_distance(other) if grade is Grade.ANCHOR else workload.distance(other)


class Neighbours:
    """Workloads of one cluster, or with one anchor, in the order of their `distance` to any other."""

    def __init__(self, workloads: Iterable[Workload], grade: Grade) -> None:
        """Nothing is computed yet.

        Args:
            grade: ANCHOR compares main blocks, any other whole workloads.
        """
        self._grade = grade
        self._by_rank: dict[int, list[Workload]] = {}
        self._logs: dict[int, NDArray[np.float64]] = {}
        for workload in workloads:
            self._by_rank.setdefault(len(self._extents(workload)), []).append(workload)

    def by_distance(self, workload: Workload) -> Iterator[Workload]:
        """All of them, nearest first and equals by key: those with another number of loops, infinitely far, come last."""
        rank = len(self._extents(workload))
        if rank in self._by_rank:
            yield from self._of_rank(workload, rank)
        others = (group for other, group in self._by_rank.items() if other != rank)
        yield from sorted(itertools.chain.from_iterable(others), key=lambda other: other.key)

    def _of_rank(self, workload: Workload, rank: int) -> Iterator[Workload]:
        import numpy as np

        group = self._by_rank[rank]
        if rank not in self._logs:
            self._logs[rank] = np.log2(np.array([self._extents(other) for other in group], dtype=np.float64))
        own = np.log2(np.array(self._extents(workload), dtype=np.float64))
        distances = np.sqrt(np.square(self._logs[rank] - own).sum(axis=1) / max(rank, 1))
        order = np.argsort(distances)
        steps = np.flatnonzero(np.diff(distances[order]) > _CLOSE) + 1
        for begin, end in itertools.pairwise([0, *steps.tolist(), len(group)]):
            equals = [group[place] for place in order[begin:end]]
            yield from equals if len(equals) == 1 else sorted(equals, key=lambda other: self._order(workload, other))

    def _order(self, workload: Workload, other: Workload) -> tuple[float, str]:
        return distance(workload, other, self._grade), other.key

    def _extents(self, workload: Workload) -> tuple[int, ...]:
        return workload.anchor_extents if self._grade is Grade.ANCHOR else workload.extents
