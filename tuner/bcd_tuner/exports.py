"""The results of a network, written for stock TVM."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bcd_registry.errors import NotFound
from bcd_registry.model import Json, NetworkSpec
from bcd_registry.registry import Registry

from .environment import current_environment
from .interchange import require_free, write_database
from .light_import import import_intrinsics
from .prepare import prepare, read_and_lower
from .report import ProgressEvent, ProgressSink
from .targets import resolve_target
from .workers import WarmPool


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written.

    Attributes:
        n_tasks: Tasks of the network.
        n_schedules: Those whose published schedule was written.
        n_untuned: Those whose published result is the untuned program: there is nothing to write.
        missing: The others, by the label of the task and why there is no result.
    """

    n_tasks: int
    n_schedules: int
    n_untuned: int
    missing: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {
            "tasks": self.n_tasks,
            "schedules": self.n_schedules,
            "untuned": self.n_untuned,
            "missing": [{"op": op, "reason": reason} for op, reason in self.missing],
        }


def export_database(spec: NetworkSpec, registry: Registry, folder: Path, progress: ProgressSink) -> ExportReport:
    """Write the published schedules of the network's tasks, as they would be served here, into a `JSONDatabase` folder.

    The programs are those of `tasks.lower`: after the same lowering stock `MetaScheduleApplyDatabase` finds them.

    Raises:
        ConfigError: The target or a shape is wrong, or the folder holds such files already.
        NetworkError: The network cannot be read.
        NotFound: No task has a published schedule.
        RegistryError: The registry cannot be used.
    """
    require_free(folder)
    began = time.monotonic()

    def say(phase: str, message: str) -> None:
        progress(ProgressEvent(phase, message, elapsed_s=time.monotonic() - began))

    target = resolve_target(spec.target)
    import_intrinsics(target.kind.name)
    network, lowered = read_and_lower(spec, target, say)
    environment = current_environment(target, WarmPool.default_measurement())
    say("lookup", f"looking up {len(lowered.tasks)} tasks")
    prepared = prepare(network, lowered, registry, environment, trials=0, fresh=False)
    results = {p.task.workload.key: p.match.record for p in prepared.planned if p.match.record is not None}
    scheduled = [item for item in lowered.tasks if item.task.workload.key in results.keys() & prepared.reused.keys()]
    missing = tuple((p.task.workload.op, p.match.reason) for p in prepared.planned if p.match.record is None)
    if not scheduled:
        why = f": of {missing[0][0]} there is {missing[0][1]}" if missing else ""
        raise NotFound(f"the registry serves no schedule for {spec.label} here{why}", hint="`bcd-registry tune` finds some")
    keys = [item.task.workload.key for item in scheduled]
    write_database(
        folder,
        target,
        [(item.mod, prepared.reused[key], results[key].run_times_s) for item, key in zip(scheduled, keys, strict=True)],
    )
    return ExportReport(
        n_tasks=len(lowered.tasks),
        n_schedules=len(scheduled),
        n_untuned=len(results) - len(scheduled),
        missing=missing,
    )
