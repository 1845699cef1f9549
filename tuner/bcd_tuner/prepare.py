"""Network -> tasks -> lookups -> plan: everything before the first measurement, the same for `plan` and `tune`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.target import Target

from bcd_registry.errors import CorruptBlob, NotFound
from bcd_registry.model import Environment, Grade, Match, NetworkSpec, NetworkVersion, Task, Workload
from bcd_registry.staleness import environment_key

from .clustering import Clustering, clusters_of
from .networks import ImportedNetwork, import_network
from .plan import UNTUNED_SKETCH, PlannedTask, depths_of, plan_tasks
from .replay import replay
from .space import read_space
from .tasks import LoweredNetwork, lower

_FRESH = "the registry was not asked (--fresh)"


class Lookups(Protocol):
    """What planning asks of a registry; a lock may answer in its place."""

    def lookup(self, workloads: Sequence[Workload], environment: Environment, depths: Mapping[str, int]) -> list[Match]:
        """One match for each workload, in order; the records in it carry their traces."""

    def quarantine(self, ids: Sequence[str], reason: str) -> None:
        """Serve the records no more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A network that is ready to be tuned.

    Attributes:
        planned: One for each task, in the order of `lowered.tasks`.
        reused: Schedules of what needs no search by workload key, replayed on this network's own modules.
        planner: Plans some of the tasks again.
    """

    network: ImportedNetwork
    lowered: LoweredNetwork
    planned: tuple[PlannedTask, ...]
    reused: dict[str, Schedule]
    planner: Planner

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


@dataclass(frozen=True, slots=True)
class Planner:
    """Looks tasks up and plans them: all of them at the start, and those of one cluster again when another run worked on it."""

    lowered: LoweredNetwork
    registry: Lookups
    environment: Environment
    depths: Mapping[str, int]
    clusters: Mapping[str, str]

    def plan(self, tasks: Sequence[Task], reused: dict[str, Schedule], *, fresh: bool = False) -> list[PlannedTask]:
        """What to do with the tasks; a schedule that does not replay is quarantined, and its task looked up again.

        So is a prior of another environment, most often of another release of TVM, that does not replay on its own workload.

        Args:
            reused: Takes the schedules of what needs no search, by workload key.
            fresh: Ask the registry for nothing.
        """
        if fresh:
            return self._planned(tasks, [_cold(task) for task in tasks])
        replayed: set[str] = set()
        while True:
            workloads = [task.workload for task in tasks]
            planned = self._planned(tasks, self.registry.lookup(workloads, self.environment, self.depths))
            broken = [*self._replay(planned, reused), *self._replay_priors(planned, replayed)]
            if not broken:
                return planned
            for record_id, reason in broken:
                with contextlib.suppress(NotFound):  # removed meanwhile
                    self.registry.quarantine([record_id], reason)

    def _planned(self, tasks: Sequence[Task], matches: Sequence[Match]) -> list[PlannedTask]:
        return plan_tasks(tasks, matches, self.depths, self.clusters, environment_key(self.environment))

    def _replay(self, planned: Sequence[PlannedTask], reused: dict[str, Schedule]) -> list[tuple[str, str]]:
        """Fill `reused`; the ids of records that do not replay, each with the reason."""
        modules = {item.task.workload.key: item.mod for item in self.lowered.tasks}
        broken = []
        for item in planned:
            key, record = item.task.workload.key, item.match.record or item.finished
            if record is None or key in reused or record.sketch == UNTUNED_SKETCH:
                continue
            try:
                reused[key] = replay(modules[key], record.trace)
            except CorruptBlob as error:
                broken.append((record.id, error.message))
        return broken

    def _replay_priors(self, planned: Sequence[PlannedTask], replayed: set[str]) -> list[tuple[str, str]]:
        """Add the ids of own priors of other environments that replay to `replayed`; the others, each with the reason."""
        modules = {item.task.workload.key: item.mod for item in self.lowered.tasks}
        here = environment_key(self.environment)
        broken = []
        for item in planned:
            own = [p.record for p in item.priors if p.record.workload_key == item.task.workload.key]
            for record in own:
                if record.environment_key == here or record.id in replayed:
                    continue
                try:
                    replay(modules[record.workload_key], record.trace)
                    replayed.add(record.id)
                except CorruptBlob as error:
                    broken.append((record.id, error.message))
        return broken


def prepare(
    network: ImportedNetwork,
    lowered: LoweredNetwork,
    registry: Lookups,
    environment: Environment,
    *,
    trials: int,
    fresh: bool,
    clustering: Clustering = Clustering.SIGNATURE,
) -> Prepared:
    """Look every task up and plan it."""
    tasks = [item.task for item in lowered.tasks]
    clusters = clusters_of(tasks, clustering, lambda task: _first_sketch(lowered, task))
    planner = Planner(lowered, registry, environment, depths_of(tasks, trials), clusters)
    reused: dict[str, Schedule] = {}
    return Prepared(network, lowered, tuple(planner.plan(tasks, reused, fresh=fresh)), reused, planner)


def version_of(network: ImportedNetwork, tasks: Sequence[Task]) -> NetworkVersion:
    """The network as the catalog and locks know it."""
    spec = network.spec
    shapes = {i.name: i.shape for i in network.inputs}
    return NetworkVersion(spec.name, spec.version, spec.source, network.digest, shapes, tuple(tasks))


def _first_sketch(lowered: LoweredNetwork, task: Task) -> str:
    module = next(item.mod for item in lowered.tasks if item.task is task)
    context = TuneContext(mod=module, target=lowered.target, space_generator="post-order-apply", num_threads=1)
    return read_space(context.generate_design_space()[0]).sketch


def _cold(task: Task) -> Match:
    return Match(task.workload, Grade.COLD, None, (), _FRESH)


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
