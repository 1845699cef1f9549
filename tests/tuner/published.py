"""A tiny network whose records are measured but not searched for: what a registry holds after a tune, in seconds."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.s_tir.meta_schedule import TuneContext

from bcd_registry.model import Decision, Environment, Json, NetworkSpec, NetworkVersion, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_tuner.checking import Case, compare_many, measure_modules
from bcd_tuner.environment import current_environment
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.plan import UNTUNED_SKETCH
from bcd_tuner.prepare import read_and_lower
from bcd_tuner.replay import trace_as_json
from bcd_tuner.search import TaskSearch
from bcd_tuner.targets import resolve_target
from bcd_tuner.tasks import LoweredNetwork
from bcd_tuner.workers import WarmPool
from tests.tuner.test_session import write_network

DEPTH = 1 << 20
"""Deeper than any command asks."""

_CANDIDATES = 3


@dataclass(frozen=True)
class Published:
    """A network, and records that were just measured for it.

    Attributes:
        records: The fastest of a few random schedules of each task, in the tasks' order; a task that computes nothing stays
            untuned, since what takes a microsecond is all noise.
    """

    spec: NetworkSpec
    environment: Environment
    lowered: LoweredNetwork
    network: NetworkVersion
    records: tuple[TuningRecord, ...]

    def fill(self, registry: Registry, *records: TuningRecord) -> None:
        """Publish the records, or those given in place of their own."""
        changed = {record.workload_key: record for record in records}
        registry.put_environment(self.environment)
        registry.register_network(self.network)
        registry.publish([changed.get(record.workload_key, record) for record in self.records])

    def of_op(self, op: str) -> TuningRecord:
        """The first record of a task whose label begins so."""
        keys = [item.task.workload.key for item in self.lowered.tasks if item.task.workload.op.startswith(op)]
        return next(record for record in self.records if record.workload_key in keys)


def measure_network(folder: Path, *, name: str = "tiny", version: str = "v1") -> Published:
    """Write a network of three tasks, and measure some schedule of each in turns with the untuned program."""
    spec = NetworkSpec(name, name, version, str(write_network(folder / f"{name}.onnx", channels=8, classes=10)), trials=4)
    target = resolve_target(spec.target)
    import_intrinsics(target.kind.name)
    imported, lowered = read_and_lower(spec, target, lambda phase, message: None)
    with WarmPool(target) as pool:
        environment = current_environment(target, pool.measurement)
        key = environment_key(environment)
        records = tuple(_measured(item.mod, item.task.workload, key, target, pool) for item in lowered.tasks)
    shapes = {i.name: i.shape for i in imported.inputs}
    tasks = tuple(item.task for item in lowered.tasks)
    network = NetworkVersion(spec.name, spec.version, spec.source, imported.digest, shapes, tasks)
    return Published(spec, environment, lowered, network, records)


def planted(record: TuningRecord, share: float = 1e-6) -> TuningRecord:
    """The record as if its winner had been so much faster when it was stored: by more than other processes explain."""
    return dataclasses.replace(record, run_times_s=tuple(share * t for t in record.run_times_s))


def _measured(mod: Any, workload: Workload, environment: str, target: Any, pool: WarmPool) -> TuningRecord:
    if not workload.flops:
        [times] = measure_modules(pool, [mod])
        assert isinstance(times, tuple)
        return _record(workload, environment, [], UNTUNED_SKETCH, (), times)
    context = TuneContext(mod=mod, target=target, space_generator="post-order-apply", rand_state=1, num_threads=1)
    spaces = list(context.generate_design_space())
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    candidates = search.next_round(_CANDIDATES, lambda candidates: None)
    compared = compare_many(pool, [Case(mod, c.schedule.mod) for c in candidates], seed=0)
    passed = [(c, found) for c, found in zip(candidates, compared, strict=True) if found.equal]
    best, found = min(passed, key=lambda pair: statistics.median(pair[1].tuned_s))
    trace = trace_as_json(best.schedule)
    record = _record(workload, environment, trace, best.sketch, best.decisions, found.tuned_s)
    return dataclasses.replace(record, untuned_s=statistics.median(found.reference_s))


def _record(
    workload: Workload,
    environment: str,
    trace: Json,
    sketch: str,
    decisions: tuple[Decision, ...],
    run_times_s: tuple[float, ...],
) -> TuningRecord:
    return TuningRecord(
        workload_key=workload.key,
        environment_key=environment,
        trace=trace,
        sketch=sketch,
        decisions=decisions,
        run_times_s=run_times_s,
        trials=_CANDIDATES,
        depth=DEPTH,
        state=RecordState.CHECKED,
        run_id="run-1",
        created_at=1.7e9,
    )
