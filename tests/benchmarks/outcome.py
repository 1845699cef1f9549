"""The end of every mode, the same for each: winners checked and timed in turns, the network compiled and timed end to end."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bcd_tuner import plan
from bcd_tuner.checking import Case, compare_many, measure_modules
from bcd_tuner.compile import Call, CompiledNetwork, check_network, compile_both, spread, time_in_turns
from bcd_tuner.environment import cpu_model
from bcd_tuner.networks import ImportedNetwork, make_inputs, onnxruntime_call
from bcd_tuner.targets import usable_cores
from bcd_tuner.tasks import LoweredNetwork, TaskModule
from bcd_tuner.worker_process import JobError
from bcd_tuner.workers import WarmPool

from .results import Job, Runs

_ATTEMPTS = 3
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnxruntime", "torch", "transformers", "xgboost")


@dataclass(slots=True)
class Winners:
    """What is used for each task, by workload key.

    Attributes:
        schedules: Tasks that are not in it stay untuned.
        latency_s: Of the schedule, or of the untuned program where that stays.
    """

    schedules: dict[str, Any] = field(default_factory=dict)
    latency_s: dict[str, float] = field(default_factory=dict)
    untuned_s: dict[str, float] = field(default_factory=dict)
    n_wrong: int = 0

    def estimates_ms(self, tasks: Sequence[TaskModule]) -> tuple[float, float]:
        """Weighted sums over the tasks: untuned, and as they are used."""
        weights = {item.task.workload.key: item.task.weight for item in tasks}
        return (
            sum(weights[key] * latency for key, latency in self.untuned_s.items()) * 1e3,
            sum(weights[key] * latency for key, latency in self.latency_s.items()) * 1e3,
        )


def measure_untuned(pool: WarmPool, tasks: Sequence[TaskModule]) -> dict[str, float]:
    """Median seconds of every untuned task, by workload key.

    Raises:
        JobError: One cannot be measured.
    """
    found = {}
    for item, times in zip(tasks, measure_modules(pool, [item.mod for item in tasks]), strict=True):
        if isinstance(times, JobError):
            raise times
        found[item.task.workload.key] = statistics.median(times)
    return found


def check_in_turns(
    pool: WarmPool,
    tasks: Sequence[TaskModule],
    ranked: Mapping[str, Sequence[Any]],
    untuned_s: Mapping[str, float],
    *,
    seed: int,
    measured: bool = True,
) -> Winners:
    """The product's own check: outputs against the untuned program's, then both timed in turns.

    Args:
        ranked: Schedules by workload key, best first; the next is tried when one fails.
        untuned_s: Of the tasks that nothing is compared for.
        measured: Whether a schedule that is slower than the untuned program is given up. A guess is not: nobody measured it.
    """
    winners = Winners(latency_s=dict(untuned_s), untuned_s=dict(untuned_s))
    waiting = {item.task.workload.key: list(ranked.get(item.task.workload.key, ()))[:_ATTEMPTS] for item in tasks}
    modules = {item.task.workload.key: item.mod for item in tasks}
    while batch := {key: left.pop(0) for key, left in waiting.items() if left}:
        comparisons = compare_many(pool, [Case(modules[key], s.mod) for key, s in batch.items()], seed=seed)
        for (key, schedule), comparison in zip(batch.items(), comparisons, strict=True):
            if not comparison.equal:
                winners.n_wrong += 1
                continue
            untuned, tuned = statistics.median(comparison.reference_s), statistics.median(comparison.tuned_s)
            winners.untuned_s[key] = winners.latency_s[key] = untuned
            if tuned <= untuned or not measured:
                winners.schedules[key], winners.latency_s[key] = schedule, tuned
                waiting[key].clear()
    return winners


def end_to_end(
    job: Job, network: ImportedNetwork, lowered: LoweredNetwork, schedules: Mapping[str, Any], threads: int
) -> tuple[bool, dict[str, Runs], str]:
    """Whether the tuned network computes what the untuned one does, its runs and the others', and a remark."""
    untuned, tuned = compile_both(lowered, schedules)
    inputs = make_inputs(network, job.seed)
    runnable = dataclasses.replace(network, onnx_bytes=Path(job.onnx).read_bytes()) if job.onnx else network
    found = check_network(untuned, tuned, inputs, onnxruntime_call(runnable, inputs, threads))
    runs = {"untuned": found.untuned_s, "tuned": found.tuned_s, "onnxruntime": found.onnxruntime_s}
    if job.torch:
        runs["torch"] = _torch_runs(job.torch, tuned, inputs, threads)
    wrong_import = f"the import differs from onnxruntime: {found.imported_error}" if found.imported_error else ""
    remarks = "; ".join(r for r in ("" if found.equal else found.worst, wrong_import) if r)
    return found.equal, {name: summary(times) for name, times in runs.items() if times}, remarks


def _torch_runs(name: str, tuned: CompiledNetwork, inputs: Sequence[Any], threads: int) -> tuple[float, ...]:
    """Runs of eager PyTorch, in turns with the tuned network: on all threads or on one, whichever is faster."""
    from .torch_networks import eager_call

    runs = []
    for n_threads in dict.fromkeys((threads, 1)):
        calls: list[Call] = [tuned.bind(inputs), eager_call(name, inputs, n_threads)]
        runs.append(time_in_turns(calls)[1])
    return min(runs, key=statistics.median)


def summary(times_s: Sequence[float]) -> Runs:
    """Median and spread in milliseconds."""
    low, high = spread(times_s)
    return Runs(statistics.median(times_s) * 1e3, low * 1e3, high * 1e3)


def facts() -> dict[str, Any]:
    """Versions and the machine, without its name."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "system": f"{platform.system()} {os.uname().machine}",
        "python": platform.python_version(),
        "versions": versions,
    }


@contextlib.contextmanager
def light_share(share: float) -> Iterator[None]:
    """The share of the trials for tasks outside the 90%: the benchmark's budgets differ by network, the product's do not."""
    before = plan._LIGHT_SHARE
    plan._LIGHT_SHARE = share
    try:
        yield
    finally:
        plan._LIGHT_SHARE = before
