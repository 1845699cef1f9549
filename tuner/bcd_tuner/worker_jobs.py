"""What worker processes do for measuring: build a module into a shared object, run it, time it. No state but caches."""

from __future__ import annotations

import functools
import json
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd_tuner.light_import import import_intrinsics

Array = NDArray[Any]
ArgInfo = tuple[str, tuple[int, ...]]
"""dtype and shape of one argument."""

_MAX_NUMBER = 1_000_000
_REPEAT_BUDGET_S = 0.3
_UNBOUNDED_INTS = 100
_PERIOD = 65_521
"""Random floats repeat after so many, since drawing millions takes longer than measuring; a prime, so that no rows agree."""
_SIDECAR = "module.json"
_GOOD = 1.25


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a program is timed.

    Attributes:
        repeat: Timed samples; fewer when the program is slow, at least one.
        min_repeat_ms: A sample is the mean over as many runs as fill this time.
        cutoff_s: A program whose first run takes longer is not run again; its one time is reported.
        best_s: The time to beat. A program whose first sample is far above it gets no further samples; one that beats it gets
            as many again, since the fastest of many candidates owes something to luck.
    """

    repeat: int
    min_repeat_ms: float
    cutoff_s: float | None = None
    best_s: float | None = None


def preload(target_kind: str) -> None:
    """Imports the compiler and the intrinsics of one kind of target."""
    import tvm.s_tir.meta_schedule  # noqa: F401

    import_intrinsics(target_kind)


def build(module_json: str, target_json: str, strip_layout_rewrite: bool, folder: str) -> str:
    """Compiles a module and returns the path of a file that `load` takes.

    Linking the object with `ld` alone takes 4 ms, a compiler driver or a tar archive 70 to 150 ms; without a
    linker the runner compiles LLVM's text just in time.

    Args:
        strip_layout_rewrite: Drop the blocks that lay weights out anew, as in a network they run only once.
        folder: A new folder for this module alone.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    module = tvm.ir.load_json(module_json)
    bounds = _integer_bounds(module)
    if strip_layout_rewrite:
        module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    library = tvm.tirx.build(module, target=_target(target_json))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    sidecar = {"entry": _entry(module), "bounds": bounds}
    (target / _SIDECAR).write_text(json.dumps(sidecar), encoding="utf-8")
    return _write(library, target)


def run(artifact: str, args_info: Sequence[ArgInfo], evaluation: Evaluation) -> tuple[float, ...]:
    """Times an artifact on made-up arguments; seconds of one run, one figure a sample."""
    entry, function = load(artifact)
    bounds = read_bounds(artifact)
    arguments = to_tensors(make_arguments(args_info, bounds, np.random.default_rng(0)))
    return timed(entry, function, arguments, evaluation)


def load(artifact: str) -> tuple[Any, str]:
    """The loaded module and the name of its function."""
    import tvm

    return tvm.runtime.load_module(artifact), str(_read_sidecar(artifact)["entry"])


def read_bounds(artifact: str) -> dict[int, int] | None:
    """Exclusive bounds of the integer arguments by position; None when they are not known."""
    bounds = _read_sidecar(artifact)["bounds"]
    return None if bounds is None else {int(k): int(v) for k, v in bounds.items()}


def timed(module: Any, function: str, arguments: Sequence[Any], evaluation: Evaluation) -> tuple[float, ...]:
    """Seconds of one run, a figure a sample.

    Raises:
        ValueError: A time is not a positive number.
    """
    once_s = first_runs_s(module[function], arguments, evaluation.cutoff_s)
    if evaluation.cutoff_s is not None and once_s > evaluation.cutoff_s:
        return _checked((once_s,))
    repeat = max(1, min(evaluation.repeat, int(_REPEAT_BUDGET_S / max(once_s, 1e-9))))
    number = runs_per_sample(once_s, evaluation.min_repeat_ms)
    times, best_s = samples(module, function, arguments, number, 1), evaluation.best_s
    if repeat == 1 or (best_s is not None and times[0] > _GOOD * best_s):
        return times
    times += samples(module, function, arguments, number, repeat - 1)
    if best_s is not None and statistics.median(times) < best_s:
        times += samples(module, function, arguments, number, repeat)
    return times


def first_runs_s(call: Any, arguments: Sequence[Any], cutoff_s: float | None) -> float:
    """Seconds of the faster of two runs: the first also starts threads and touches memory. Hopeless ones run once."""
    first = once_s(call, arguments)
    if cutoff_s is not None and first > 4 * cutoff_s:
        return first
    return min(first, once_s(call, arguments))


def runs_per_sample(once_s: float, min_repeat_ms: float) -> int:
    """Runs that fill a sample."""
    return max(1, min(_MAX_NUMBER, math.ceil(min_repeat_ms * 1e-3 / max(once_s, 1e-9))))


def samples(module: Any, function: str, arguments: Sequence[Any], number: int, repeat: int) -> tuple[float, ...]:
    """`repeat` samples of the mean over `number` runs, seconds."""
    import tvm

    evaluator = module.time_evaluator(function, tvm.cpu(0), number=number, repeat=repeat, min_repeat_ms=0)
    return _checked(tuple(float(t) for t in evaluator(*arguments).results))


def make_arguments(args_info: Sequence[ArgInfo], bounds: Mapping[int, int] | None, rng: np.random.Generator) -> list[Array]:
    """Valid arguments: floats from a normal distribution, integers below their bounds.

    Integers that index nothing are small; when nothing is known of them (`bounds` is None) they are 0 or 1.
    """
    return [_make(dtype, shape, bounds, i, rng) for i, (dtype, shape) in enumerate(args_info)]


def to_tensors(arrays: Sequence[Array]) -> list[Any]:
    """Copies of the arrays on the CPU device."""
    import tvm

    return [tvm.runtime.tensor(array) for array in arrays]


def _make(dtype: str, shape: tuple[int, ...], bounds: Mapping[int, int] | None, i: int, rng: np.random.Generator) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.startswith(("int", "uint")):
        kind = np.dtype(dtype)
        high = 2 if bounds is None else bounds.get(i, _UNBOUNDED_INTS)
        return rng.integers(0, max(1, min(high, int(np.iinfo(kind).max) + 1)), shape, dtype=np.int64).astype(kind)
    period = rng.standard_normal(min(_PERIOD, math.prod(shape)), dtype=np.float32)
    return np.resize(period, shape).astype(numpy_dtype(dtype))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of an array for a TVM dtype; the narrow floats come from ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
        return narrow


def once_s(call: Any, arguments: Sequence[Any]) -> float:
    """Wall seconds of one run."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def _checked(times: tuple[float, ...]) -> tuple[float, ...]:
    if not times or not all(math.isfinite(t) and t > 0 for t in times):
        raise ValueError(f"run times are not positive numbers: {times}")
    return times


def _integer_bounds(module: Any) -> dict[int, int] | None:
    try:
        from bcd_tuner.subgraph import integer_bounds

        return {int(k): int(v) for k, v in integer_bounds(module).items()}
    except Exception:  # noqa: BLE001 -- a module that cannot be analysed is still measured, on zeros and ones
        return None


def _entry(module: Any) -> str:
    names = [str(variable.name_hint) for variable in module.get_global_vars()]
    return names[0] if len(names) == 1 else "main"


def _write(library: Any, folder: Path) -> str:
    linker = _linker()
    if linker is None:
        library.write_to_file(str(folder / "module.ll"), "ll")
        return str(folder / "module.ll")
    made, shared = folder / "module.o", folder / "module.so"
    library.write_to_file(str(made), "o")
    subprocess.run([linker, "-shared", "-o", str(shared), str(made)], check=True, capture_output=True)
    made.unlink()
    return str(shared)


@functools.cache
def _linker() -> str | None:
    return shutil.which("ld") or shutil.which("ld.lld")


@functools.cache
def _target(target_json: str) -> Any:
    import tvm

    return tvm.target.Target(json.loads(target_json))


@functools.lru_cache(maxsize=8)
def _read_sidecar(artifact: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(artifact).with_name(_SIDECAR).read_text(encoding="utf-8"))
    return content
