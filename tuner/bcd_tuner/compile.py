"""Schedules applied to a network, compiled, verified against the untuned program, and timed beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord

from bcd_registry.errors import MeasureError

from .targets import untuned_target
from .tasks import LoweredNetwork, finish
from .worker_checks import difference

_TARGET_S = 1.0
_MIN_RUNS, _MAX_RUNS = 7, 300
_WARM_UP_S = 0.3
_SLOWER = 1.03
"""A tuned network is slower when its 10th percentile is above the untuned one's by more than this: less is noise."""

_TIMINGS = 3
"""Timings before a network is called slower: another process can make any one of them wrong."""

_IMPORT_TOLERANCE = 1e-4
"""Absolute difference from onnxruntime below which an import is right: outputs near zero have no meaningful relative one."""

Arrays = Sequence[NDArray[Any]]
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class CompiledNetwork:
    """A network that runs on this machine's CPU."""

    executable: Any
    machine: relax.VirtualMachine

    def __call__(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Outputs in order, as numpy arrays."""
        outputs = self.machine["main"](*(tvm.runtime.tensor(x) for x in inputs))
        return (
            [o.numpy() for o in outputs] if hasattr(outputs, "__len__") and not hasattr(outputs, "numpy") else [outputs.numpy()]
        )

    def bind(self, inputs: Arrays) -> Call:
        """A call on inputs that are already on the device, for timing."""
        function, tensors = self.machine["main"], [tvm.runtime.tensor(x) for x in inputs]
        return lambda: function(*tensors)


@dataclass(frozen=True, slots=True)
class NetworkCheck:
    """A tuned network beside the untuned one, on the same inputs in the same minutes.

    Attributes:
        equal: Every output is within the tolerance of its dtype.
        worst: The largest difference, for people.
        untuned_s: Seconds of each run; the runs of the three alternate.
        onnxruntime_s: Empty when it is not there.
        imported_error: How the untuned network differs from onnxruntime; empty when it does not, None when nobody knows.
    """

    equal: bool
    worst: str
    untuned_s: tuple[float, ...]
    tuned_s: tuple[float, ...]
    onnxruntime_s: tuple[float, ...]
    imported_error: str | None

    @property
    def slower(self) -> bool:
        """Whether the tuned network is slower than the untuned one by more than noise."""
        return _slower(self.untuned_s, self.tuned_s)


def apply_schedules(lowered: LoweredNetwork, schedules: Mapping[str, Schedule]) -> Any:
    """The network's module with the tasks of the given workload keys scheduled.

    Without any it is returned as it is: TVM's pass takes a second for each function that it finds no schedule for.
    """
    if not schedules:
        return lowered.mod
    database = MemoryDatabase()
    for item in lowered.tasks:
        schedule = schedules.get(item.task.workload.key)
        if schedule is not None:
            workload = database.commit_workload(item.mod)
            arguments = ArgInfo.from_entry_func(item.mod, remove_preproc=True)
            database.commit_tuning_record(TuningRecord(schedule.trace, workload, [1.0], lowered.target, arguments))
    with lowered.target, database, tvm.transform.PassContext(opt_level=3):
        return relax.transform.MetaScheduleApplyDatabase()(lowered.mod)


def compile_network(lowered: LoweredNetwork, schedules: Mapping[str, Schedule]) -> CompiledNetwork:
    """Apply, fold the weights' layouts, compile.

    Raises:
        MeasureError: TVM cannot compile it.
    """
    try:
        mod = finish(apply_schedules(lowered, schedules), lowered.target)
        executable = tvm.compile(mod, target=lowered.target if schedules else untuned_target(lowered.target))
    except Exception as error:  # the compiler's errors have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
        raise MeasureError(f"the network does not compile: {reason}", hint="try another --target, or smaller shapes") from error
    return CompiledNetwork(executable, relax.VirtualMachine(executable, tvm.cpu()))


def compile_both(lowered: LoweredNetwork, schedules: Mapping[str, Schedule]) -> tuple[CompiledNetwork, CompiledNetwork]:
    """The untuned and the tuned network, compiled side by side on two threads."""
    with ThreadPoolExecutor(2) as executor:
        untuned = executor.submit(compile_network, lowered, {})
        tuned = executor.submit(compile_network, lowered, schedules) if schedules else untuned
        return untuned.result(), tuned.result()


def check_network(untuned: CompiledNetwork, tuned: CompiledNetwork, inputs: Arrays, onnxruntime: Call | None) -> NetworkCheck:
    """Compare the outputs with each other and with onnxruntime's, then time all of them in turns."""
    expected = untuned(inputs)
    outputs = difference(expected, tuned(inputs))
    as_onnxruntime = import_difference(onnxruntime(), expected) if onnxruntime else None
    calls = [untuned.bind(inputs), tuned.bind(inputs), *([onnxruntime] if onnxruntime else [])]
    times = time_in_turns(calls)
    for _ in range(_TIMINGS - 1):
        if _slower(times[0], times[1]):
            times = time_in_turns(calls)
    worst = outputs.error or f"largest difference {outputs.max_abs_error:.2g}"
    return NetworkCheck(outputs.equal, worst, times[0], times[1], times[2] if onnxruntime else (), as_onnxruntime)


def import_difference(onnxruntime: Sequence[Any], expected: Arrays) -> str:
    """How the untuned network's outputs differ from onnxruntime's; empty when they do not."""
    found = difference([np.asarray(output) for output in onnxruntime], expected)
    return "" if found.max_abs_error <= _IMPORT_TOLERANCE else found.error


def _slower(untuned_s: Sequence[float], tuned_s: Sequence[float]) -> bool:
    """By the fast runs of both: other processes disturb a program on all cores more than one that mostly uses one."""
    return spread(tuned_s)[0] > _SLOWER * spread(untuned_s)[0]


def time_in_turns(calls: Sequence[Call], target_s: float = _TARGET_S, turns: int | None = None) -> list[tuple[float, ...]]:
    """Seconds of each run of each call. They take turns run by run, so that whatever disturbs one disturbs all.

    Each gets a warm-up, then `turns`, by default as many as fit into `target_s` for each call, at least 7.
    """
    once = [_warm_up(call) for call in calls]
    n_turns = turns or max(_MIN_RUNS, min(_MAX_RUNS, math.ceil(target_s * len(calls) / sum(once))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(n_turns):
        for call, runs in zip(calls, times, strict=True):
            call()  # the others' data have filled the caches; a deployed network runs after itself
            began = time.perf_counter()
            call()
            runs.append(time.perf_counter() - began)
    return [tuple(runs) for runs in times]


def _warm_up(call: Call) -> float:
    began, runs = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < _WARM_UP_S or runs < 2:
        call()
        runs += 1
    return spent / runs


def spread(runs: Sequence[float]) -> tuple[float, float]:
    """10th and 90th percentile."""
    low, high = np.percentile(np.asarray(runs), [10, 90])
    return float(low), float(high)
