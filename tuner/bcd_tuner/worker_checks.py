"""What the run worker does to check a winner: the same inputs through two programs, then both timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bcd_tuner import worker_jobs
from bcd_tuner.worker_jobs import ArgInfo, Array

TOLERANCES: Mapping[str, float] = {"float64": 1e-7, "float32": 5e-4, "float16": 5e-2, "bfloat16": 1e-1}
"""Largest difference of a float output, in units of its own magnitude or of the buffer's root mean square, if larger.

A schedule may add in any order. Adding n random terms rounds away about sqrt(n) half units in the last place; these are
four standard deviations of that for 10^6 terms (float32) and 10^3 (float16, bfloat16). A term left out shows as
1 / sqrt(n), which is larger.
"""
_DEFAULT_TOLERANCE = 2e-1
_MOSTLY = 0.5
_SLOW_S = 0.02


@dataclass(frozen=True, slots=True)
class Comparison:
    """A tuned program against the untuned one.

    Attributes:
        equal: Same outputs within the tolerance of their dtypes; integers exactly.
        max_abs_error: Largest difference of any output element.
        max_rel_error: The same relative to the element or the buffer's root mean square, floats only.
        reference_s: Seconds of one run of the untuned program, a figure a repeat; empty when outputs differ.
        tuned_s: The same of the tuned program, measured in turns with it.
        error: Why there is no comparison, or what differs; empty when equal.
    """

    equal: bool
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    reference_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Programs:
    """Artifacts to compare, built from one workload.

    Attributes:
        tuned: Takes the same arguments as the reference.
        timed: The tuned program as it is measured, with weights in its own layout; may be `tuned` itself.
        args_info: Arguments of `reference` and `tuned`.
        timed_args_info: Arguments of `timed`.
    """

    reference: str
    tuned: str
    timed: str
    args_info: tuple[ArgInfo, ...]
    timed_args_info: tuple[ArgInfo, ...]


def compare(programs: Programs, seed: int, repeats: int, min_repeat_ms: float) -> Comparison:
    """Runs both programs on the same inputs; equal ones are timed in turns."""
    rng = np.random.default_rng(seed)
    bounds = worker_jobs.read_bounds(programs.reference)
    arguments = worker_jobs.make_arguments(programs.args_info, bounds, rng)
    expected, found = _outputs(programs.reference, arguments), _outputs(programs.tuned, arguments)
    if _mostly_nan(expected, arguments):  # a root or a logarithm of negative numbers: nothing was compared
        arguments = [np.abs(a) if a.dtype.kind not in "biu" else a for a in arguments]
        expected, found = _outputs(programs.reference, arguments), _outputs(programs.tuned, arguments)
    result = difference(expected, found)
    if not result.equal:
        return result
    timed_arguments = worker_jobs.make_arguments(programs.timed_args_info, bounds, rng)
    reference_s, tuned_s = _in_turns(
        [(programs.reference, arguments), (programs.timed, timed_arguments)], repeats, min_repeat_ms
    )
    return Comparison(True, result.max_abs_error, result.max_rel_error, reference_s, tuned_s)


def difference(expected: Sequence[Array], found: Sequence[Array]) -> Comparison:
    """How far two lists of buffers differ; not-a-number at the same place in both counts as equal."""
    max_abs = max_rel = 0.0
    errors = []
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        abs_error, rel_error = _errors(a, b)
        exact = a.dtype.kind in "biu"
        tolerance = 0.0 if exact else TOLERANCES.get(str(a.dtype), _DEFAULT_TOLERANCE)
        if not (abs_error if exact else rel_error) <= tolerance:
            errors.append(f"argument {i} ({a.dtype}) differs by {abs_error:.3g}, relative {rel_error:.3g}")
        max_abs, max_rel = max(max_abs, abs_error), max(max_rel, 0.0 if exact else rel_error)
    return Comparison(not errors, max_abs, max_rel, error="; ".join(errors))


def _errors(expected: Array, found: Array) -> tuple[float, float]:
    """Largest absolute and relative difference; infinite where only one is finite."""
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.abs(a - b))
        gap[~np.isfinite(gap)] = np.inf
        finite = a[np.isfinite(a)]
        scale = np.sqrt(np.mean(np.square(finite))) if finite.size else 0.0
        relative = np.where(same, 0.0, gap / np.maximum(np.abs(a), scale))
        relative[np.isnan(relative)] = np.inf
    return float(gap.max(initial=0.0)), float(relative.max(initial=0.0))


def _outputs(artifact: str, arguments: Sequence[Array]) -> list[Array]:
    """All buffers after a run: outputs are not told from inputs, which stay as they are."""
    module, function = worker_jobs.load(artifact)
    tensors = worker_jobs.to_tensors(arguments)
    module[function](*tensors)
    return [tensor.numpy() for tensor in tensors]


def _mostly_nan(after: Sequence[Array], before: Sequence[Array]) -> bool:
    """Whether most of what a program wrote is not a number."""
    floats = [(a.astype(np.float64), b) for a, b in zip(after, before, strict=True) if a.dtype.kind not in "biu"]
    written = [a for a, b in floats if not np.array_equal(a, b.astype(np.float64))]
    return any(float(np.mean(np.isnan(a))) > _MOSTLY for a in written)


def _in_turns(programs: Sequence[tuple[str, Sequence[Array]]], repeats: int, min_repeat_ms: float) -> list[tuple[float, ...]]:
    """Samples of several programs, seconds of one run; every repeat begins with another program."""
    loaded = [(*worker_jobs.load(artifact), worker_jobs.to_tensors(arguments)) for artifact, arguments in programs]
    once_s = [worker_jobs.first_runs_s(module[function], tensors, None) for module, function, tensors in loaded]
    times: list[list[float]] = [[] for _ in programs]
    for repeat in range(repeats):
        order = range(len(programs)) if repeat % 2 == 0 else reversed(range(len(programs)))
        for i in order:
            times[i].append(_sample_s(*loaded[i], once_s[i], min_repeat_ms))
    return [tuple(t) for t in times]


def _sample_s(module: Any, function: str, tensors: Sequence[Any], once_s: float, min_repeat_ms: float) -> float:
    if once_s > _SLOW_S:
        return worker_jobs.once_s(module[function], tensors)
    return worker_jobs.samples(module, function, tensors, worker_jobs.runs_per_sample(once_s, min_repeat_ms), 1)[0]
