"""Tiny tensor programs with design spaces, and priors for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, topi
from tvm.s_tir.meta_schedule import TuneContext

from bcd_registry.model import Decision, Grade, Prior, RecordState, TuningRecord, Workload
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.subgraph import workload_of
from bcd_tuner.targets import resolve_target
from bcd_tuner.tasks import canonicalise

TARGET = resolve_target("native", cores=2)


def _tensor(*shape: int) -> Any:
    return te.placeholder(shape, "float32")


def _module(*tensors: Any) -> Any:
    return canonicalise(tvm.IRModule({"main": te.create_prim_func(list(tensors))}))


def matmul(m: int, n: int, k: int) -> Any:
    """Three perfect tiles and an unordered choice in each of three sketches."""
    a, b = _tensor(m, k), _tensor(k, n)
    return _module(a, b, topi.matmul(a, b))


def doubled_matmul(n: int) -> Any:
    """Twice the product, under the arguments of `matmul(n, n, n)`."""
    a, b = _tensor(n, n), _tensor(n, n)
    return _module(a, b, topi.multiply(topi.matmul(a, b), 2.0))


def slow_matmul(n: int, times: int) -> Any:
    """The product by so many times the work, under the arguments of `matmul(n, n, n)`."""
    a, b = _tensor(n, n), _tensor(n, n)
    k, again = te.reduce_axis((0, n)), te.reduce_axis((0, times))
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j] * (1.0 / times), axis=[k, again]))
    return _module(a, b, product)


def relu(*shape: int) -> Any:
    """Nothing to decide."""
    a = _tensor(*shape)
    return _module(a, topi.nn.relu(a))


def softmax(*shape: int) -> Any:
    """Compute locations."""
    a = _tensor(*shape)
    return _module(a, topi.nn.softmax(a))


def total(rows: int, columns: int) -> Any:
    """Few decisions: 20 for two columns, 28 for four."""
    a = _tensor(rows, columns)
    return _module(a, topi.sum(a, axis=1))


def convolution(channels: int, size: int, *, activated: bool = False) -> Any:
    """Seven perfect tiles, a choice and a location; with another epilogue when it is activated."""
    x, w = _tensor(1, 4, size, size), _tensor(channels, 4, 3, 3)
    y = topi.nn.conv2d_nchw(x, w, 1, 1, 1)
    return _module(x, w, topi.nn.relu(y) if activated else y)


def context_of(mod: Any, **options: Any) -> tuple[TuneContext, list[Any]]:
    """A tuning context and the schedules of its design spaces."""
    import_intrinsics("llvm")
    context = TuneContext(
        mod=mod, target=TARGET, space_generator="post-order-apply", task_name="tiny", rand_state=1, num_threads=1, **options
    )
    return context, list(context.generate_design_space())


def prior_for(
    mod: Any, source: Any, sketch: str, decisions: Sequence[Decision], *, grade: Grade = Grade.CLUSTER, run: str = "before"
) -> Prior:
    """A record of `source` as something to diffuse into `mod`."""
    member, workload = workload_of(mod, "member"), workload_of(source, "prior")
    return Prior(record_of(workload, sketch, decisions, run), workload, workload.distance(member), grade)


def record_of(workload: Workload, sketch: str, decisions: Sequence[Decision], run: str) -> TuningRecord:
    """A measured record of 1 ms."""
    return TuningRecord(
        workload_key=workload.key,
        environment_key="e" * 64,
        trace=[[], []],
        sketch=sketch,
        decisions=tuple(decisions),
        run_times_s=(1e-3,),
        trials=16,
        depth=0,
        state=RecordState.MEASURED,
        run_id=run,
    )
