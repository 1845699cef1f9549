"""DiffusionScheduler: the order of `bcd-registry tune` as a MetaSchedule task scheduler."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.task_scheduler import PyTaskScheduler

from bcd_registry.model import RecordState, Task

from .database import RegistryDatabase
from .plan import PlannedTask, depths_of, plan_tasks
from .scheduling import Schedule, TaskRun
from .search import latency_of

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched(TaskRun):
    """A task whose search belongs to TVM: what is known of it is what was measured.

    Attributes:
        fastest_s: The fastest median measured in this run, seconds; infinite before.
    """

    fastest_s: float = math.inf

    @property
    def best_s(self) -> float | None:
        """The best latency known, seconds."""
        served = self.record.median_s if self.record and self.record.state is RecordState.PUBLISHED else math.inf
        best = min(self.fastest_s, served)
        return best if math.isfinite(best) else None

    def take(self, latencies_s: Sequence[float]) -> None:
        """Take in a round; one without candidates ends the task."""
        before_s = self.best_s
        self.trials += len(latencies_s)
        self.fastest_s = min([self.fastest_s, *latencies_s])
        if latencies_s:
            self.after_round(len(latencies_s), before_s)
        self.finished = self.finished or not latencies_s


@derived_object
class DiffusionScheduler(PyTaskScheduler):  # type: ignore[misc]
    """Representatives of clusters before their siblings, then whichever task promises to save the most.

    It plans as `bcd-registry tune` does: a task that the registry serves exactly is not measured, one with priors gets fewer
    trials, and the siblings of a cluster that nobody knows wait for their representative. TVM's own schedulers begin every task
    before they take in a single result. This one takes in each round at once, so what a representative measured is in the
    database, and so among the priors, when `DiffusionSearch` begins a sibling.

    It ends when every task had its trials or promises nothing more, at the latest when TVM's own limits are reached. A round is
    as large as `num_trials_per_iter` says, whatever is left of a task's trials: 8 or so is a good choice.

    Args:
        database: The run's database.
        trials: Measurements for a task that is searched from nothing.
    """

    # TVM's PyTaskScheduler.tune has one parameter less than its caller gives arguments: it must not be overridden.

    def __init__(self, database: RegistryDatabase, trials: int = 32, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._database, self._trials, self._clock = database, trials, clock
        self._tasks: list[Any] = []
        self._runs: list[_Watched] = []
        self._schedule = Schedule([])
        self._running: int | None = None
        self._began = 0.0

    def next_task_id(self) -> int:
        """The next task by its number, -1 at the end; the round in flight is taken in before."""
        tasks = list(self._outer().tasks_)
        if len(tasks) != len(self._tasks) or not all(map(_same, tasks, self._tasks)):  # TVM makes them anew for each tuning
            self._begin(tasks)
        self._join(tasks)
        for run, task in zip(self._runs, tasks, strict=True):
            run.finished = run.finished or task.is_terminated
        chosen = self._schedule.next_task()
        if chosen is None:
            return -1
        self._running, self._began = next(i for i, run in enumerate(self._runs) if run is chosen), self._clock()
        return self._running

    def _begin(self, tasks: list[Any]) -> None:
        self._tasks, self._running = tasks, None
        planned = self._plan(tasks)
        self._runs = [_Watched(p, task.ctx.mod, record=p.match.record) for p, task in zip(planned, tasks, strict=True)]
        self._schedule = Schedule(self._runs)
        for p in planned:
            _LOG.info("%s: %s, %d trials; %s", p.task.name, p.match.grade, p.trials, p.match.reason)

    def _plan(self, tasks: Sequence[Any]) -> list[PlannedTask]:
        ours = [Task(str(t.ctx.task_name), self._database.workload_of(t.ctx.mod), max(1, round(t.task_weight))) for t in tasks]
        depths = depths_of(ours, self._trials)
        return plan_tasks(ours, self._database.lookup([task.workload for task in ours], depths), depths)

    def _join(self, tasks: Sequence[Any]) -> None:
        """Take in the round in flight, if there is one."""
        running, self._running = self._running, None
        if running is None:
            return
        in_flight = tasks[running].measure_candidates is not None
        results = self._outer().join_running_task(running) if in_flight else ()
        self._runs[running].seconds += self._clock() - self._began
        self._runs[running].take([latency_of(result) for result in results])


def _same(one: Any, other: Any) -> bool:
    return bool(one.same_as(other))
