"""What a search found, task by task, as it finds it: the tuning curve and the winners."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bcd_tuner.tasks import TaskModule

from .results import Point

KEPT = 3
"""Winners of a task that are worth a check, as many as the product tries."""

Found = tuple[float, Any]
"""Latency in seconds, infinite for a failure, and the schedule."""


class Ledger:
    """The best of every task so far.

    Attributes:
        best_s: Best measured latency by workload key; only tasks of which something was measured.
        curve: The untuned network, then a point for each round.
    """

    def __init__(
        self, tasks: Sequence[TaskModule], untuned_s: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.untuned_s = dict(untuned_s)
        self.best_s: dict[str, float] = {}
        self.n_failed = 0
        self._weights = {item.task.workload.key: item.task.weight for item in tasks}
        self._ranked: dict[str, list[Found]] = {}
        self._clock, self._began = clock, clock()
        self.curve: list[Point] = [(0.0, 0, self.estimate_ms())]

    def begin(self) -> None:
        """Start the clock."""
        self._began = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since `begin`."""
        return self._clock() - self._began

    def estimate_ms(self) -> float:
        """Weighted sum of the latencies in use: the untuned one until something faster was measured."""
        seconds = (w * min(self.untuned_s[k], self.best_s.get(k, math.inf)) for k, w in self._weights.items())
        return sum(seconds) * 1e3

    def note(self, key: str | None, found: Sequence[Found], n_trials: int) -> None:
        """Take in a round.

        Args:
            key: The workload; None or an unknown one for a task that the others do not count.
            n_trials: Candidates measured since the last call, failures included.
        """
        self.n_failed += n_trials - sum(math.isfinite(latency) for latency, _ in found)
        if key in self._weights:
            good = [*self._ranked.get(key, ()), *((s, x) for s, x in found if math.isfinite(s))]
            self._ranked[key] = sorted(good, key=lambda pair: pair[0])[:KEPT]
            if good:
                self.best_s[key] = self._ranked[key][0][0]
        self.curve.append((self.elapsed_s, self.curve[-1][1] + n_trials, self.estimate_ms()))
        seconds, trials, estimate_ms = self.curve[-1]
        print(f"{seconds:.0f} s, {trials} trials, {estimate_ms:.4g} ms", flush=True)  # for the log

    def winners(self) -> dict[str, list[Any]]:
        """Schedules by workload key, fastest first."""
        return {key: [schedule for _, schedule in ranked] for key, ranked in self._ranked.items() if ranked}
