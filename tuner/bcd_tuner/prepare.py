"""Network -> tasks -> lookups -> plan: everything before the first measurement, the same for `plan` and `tune`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.target import Target

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Environment, Grade, Match, NetworkSpec, Task
from bcd_registry.registry import Registry

from .clustering import Clustering, clusters_of
from .networks import ImportedNetwork, import_network
from .plan import UNTUNED_SKETCH, PlannedTask, depths_of, plan_tasks
from .replay import replay
from .space import read_space
from .tasks import LoweredNetwork, lower

_FRESH = "the registry was not asked (--fresh)"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A network that is ready to be tuned.

    Attributes:
        planned: One for each task, in the order of `lowered.tasks`.
        reused: Schedules of the exact matches by workload key, replayed on this network's own modules.
    """

    network: ImportedNetwork
    lowered: LoweredNetwork
    planned: tuple[PlannedTask, ...]
    reused: dict[str, Schedule]

    @property
    def tasks(self) -> list[Task]:
        """The tasks alone."""
        return [item.task for item in self.lowered.tasks]

    def module(self, workload_key: str) -> Any:
        """The module of a task."""
        return next(item.mod for item in self.lowered.tasks if item.task.workload.key == workload_key)


def read_and_lower(
    spec: NetworkSpec, target: Target, say: Callable[[str, str], None], *, keep_layout: bool = False
) -> tuple[ImportedNetwork, LoweredNetwork]:
    """Read the network and take out its tasks; `say` gets a phase and a line for people."""
    say("read", f"reading {spec.source}")
    network = import_network(spec)
    say("lower", "lowering to tensor programs")
    return network, lower(network, target, keep_layout=keep_layout)


def prepare(
    network: ImportedNetwork,
    lowered: LoweredNetwork,
    registry: Registry,
    environment: Environment,
    *,
    trials: int,
    fresh: bool,
    clustering: Clustering = Clustering.SIGNATURE,
) -> Prepared:
    """Look every task up and plan it; an exact match that does not replay is quarantined and looked up again."""
    tasks = [item.task for item in lowered.tasks]
    depths = depths_of(tasks, trials)
    reused: dict[str, Schedule] = {}

    def ask() -> list[Match]:
        return registry.lookup([task.workload for task in tasks], environment, depths)

    matches = [_cold(task) for task in tasks] if fresh else ask()
    while not fresh and (broken := _replay_exact(matches, lowered, reused)):
        for record_id, reason in broken:
            registry.quarantine([record_id], reason)
        matches = ask()
    clusters = clusters_of(tasks, clustering, lambda task: _first_sketch(lowered, task))
    return Prepared(network, lowered, tuple(plan_tasks(tasks, matches, depths, clusters)), reused)


def _first_sketch(lowered: LoweredNetwork, task: Task) -> str:
    module = next(item.mod for item in lowered.tasks if item.task is task)
    context = TuneContext(mod=module, target=lowered.target, space_generator="post-order-apply", num_threads=1)
    return read_space(context.generate_design_space()[0]).sketch


def _cold(task: Task) -> Match:
    return Match(task.workload, Grade.COLD, None, (), _FRESH)


def _replay_exact(matches: Sequence[Match], lowered: LoweredNetwork, reused: dict[str, Schedule]) -> list[tuple[str, str]]:
    """Fill `reused`; the ids of records that do not replay, each with the reason."""
    broken = []
    for match, item in zip(matches, lowered.tasks, strict=True):
        key = match.workload.key
        if match.record is None or key in reused or match.record.sketch == UNTUNED_SKETCH:
            continue
        try:
            reused[key] = replay(item.mod, match.record.trace)
        except CorruptBlob as error:
            broken.append((match.record.id, error.message))
    return broken


def saved_trials(planned: Sequence[PlannedTask]) -> list[int]:
    """For each task, what a registry that knows nothing would have granted in addition.

    A reused task saves no more than its search took, which may have come to the end of a small space.
    """
    cold = [(p.match.record, c.trials) for p, c in zip(planned, as_cold(planned), strict=True)]
    likely = [min(trials, record.trials) if record else trials for record, trials in cold]
    return [n - p.trials for n, p in zip(likely, planned, strict=True)]


def as_cold(planned: Sequence[PlannedTask]) -> list[PlannedTask]:
    """The same tasks as a registry that knows nothing would plan them: what savings are counted against."""
    tasks = [p.task for p in planned]
    depths = {p.task.workload.key: p.depth for p in planned}
    return plan_tasks(tasks, [_cold(task) for task in tasks], depths, {p.task.workload.key: p.cluster for p in planned})
