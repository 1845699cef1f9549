"""A network with what is published for its tasks: what `compile`, `bench`, `lock` and `gate` begin with. No trial is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm.s_tir import Schedule

from bcd_registry.frozen import FrozenLookup
from bcd_registry.lock import Lock, make_lock
from bcd_registry.model import Environment, Grade, Json, NetworkSpec, NetworkVersion
from bcd_registry.registry import Registry

from .clustering import expected_untuned_s
from .environment import current_environment
from .light_import import import_intrinsics
from .networks import ImportedNetwork
from .plan import UNTUNED_SKETCH, PlannedTask, depths_of
from .prepare import Lookups, Planner, read_and_lower, version_of
from .report import ProgressEvent, ProgressSink
from .targets import resolve_target, usable_cores, use_threads
from .tasks import LoweredNetwork
from .workers import WarmPool

Say = Callable[[str, str], None]
"""Takes a phase and a line for people."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a network is tuned.

    Attributes:
        n_exact: Tasks with a published record of this environment; one that says "untuned is best" counts.
        of_time: Share of the untuned time in them, estimated from operation counts.
    """

    n_tasks: int
    n_exact: int
    of_time: float

    @property
    def n_untuned(self) -> int:
        """Tasks for which nothing is published."""
        return self.n_tasks - self.n_exact

    @property
    def of_tasks(self) -> float:
        """Share of the tasks."""
        return self.n_exact / self.n_tasks if self.n_tasks else 1.0

    def as_json(self) -> dict[str, Json]:
        """Plain JSON; shares from 0 to 1."""
        return {"tasks": self.n_tasks, "exact": self.n_exact, "of_tasks": self.of_tasks, "of_time": self.of_time}


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """A lowered network and the schedules to compile it with.

    Attributes:
        planned: One for each task, in the order of the network's tasks.
        schedules: By workload key; what has no schedule stays untuned.
        threads: What it runs on in this process.
    """

    network: ImportedNetwork
    lowered: LoweredNetwork
    environment: Environment
    planned: tuple[PlannedTask, ...]
    schedules: Mapping[str, Schedule]
    threads: int

    @property
    def spec(self) -> NetworkSpec:
        """What the user named."""
        return self.network.spec

    @property
    def version(self) -> NetworkVersion:
        """The network as locks know it."""
        return version_of(self.network, [p.task for p in self.planned])

    @property
    def not_exact(self) -> list[PlannedTask]:
        """Tasks for which nothing is published, the costliest first."""
        left = [p for p in self.planned if p.match.record is None]
        return sorted(left, key=lambda p: -_cost_s(p))

    @property
    def coverage(self) -> Coverage:
        """How much of it is tuned."""
        whole = math.fsum(map(_cost_s, self.planned))
        exact = [p for p in self.planned if p.match.grade is Grade.EXACT]
        return Coverage(len(self.planned), len(exact), math.fsum(map(_cost_s, exact)) / whole if whole else 1.0)

    def lock(self) -> Lock:
        """What it is compiled with, to be written down."""
        return make_lock(self.version, [p.match for p in self.planned], self.environment)


def read_published(
    spec: NetworkSpec, registry: Registry, say: Say, *, trials: int = 0, lock: Lock | None = None
) -> PublishedNetwork:
    """Read and lower a network, and look its tasks up.

    Args:
        trials: Count a record only when a search with so many trials a task came to its end; 0 takes any published one.
        lock: Take exactly the records that it names instead.

    Raises:
        ConfigError: The target or a shape is wrong.
        NetworkError: The network cannot be read.
        RegistryError: The registry cannot be used.
        FrozenMismatch: What the lock names cannot be used.
    """
    target = resolve_target(spec.target)
    threads = use_threads(int(target.attrs.get("num-cores", usable_cores())))
    import_intrinsics(target.kind.name)
    network, lowered = read_and_lower(spec, target, say)
    environment = current_environment(target, WarmPool.default_measurement())
    tasks = [item.task for item in lowered.tasks]
    say("lookup", f"looking up {len(tasks)} tasks")
    lookups: Lookups = FrozenLookup(registry, lock, version_of(network, tasks)) if lock else registry
    clusters = {task.workload.key: task.workload.cluster for task in tasks}
    replayed: dict[str, Schedule] = {}
    planned = Planner(lowered, lookups, environment, depths_of(tasks, trials), clusters).plan(tasks, replayed)
    records = {p.task.workload.key: p.match.record for p in planned}
    schedules = {key: replayed[key] for key, r in records.items() if r is not None and r.sketch != UNTUNED_SKETCH}
    return PublishedNetwork(network, lowered, environment, tuple(planned), schedules, threads)


def sayer(progress: ProgressSink) -> Say:
    """Tells a sink each step with the seconds since now."""
    began = time.monotonic()

    def say(phase: str, message: str) -> None:
        progress(ProgressEvent(phase, message, elapsed_s=time.monotonic() - began))

    return say


def _cost_s(planned: PlannedTask) -> float:
    return planned.task.weight * expected_untuned_s(planned.task.workload)
