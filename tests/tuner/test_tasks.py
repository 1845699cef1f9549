"""Lowering: tasks in a stable order, programs that compute what the network does, and layouts folded away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.s_tir.schedule import Trace

from bcd_registry.model import NetworkSpec
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.networks import ImportedNetwork, InputSpec, import_network, make_inputs, reference_outputs
from bcd_tuner.tasks import LoweredNetwork, finish, flush_denormals, fold_constant_views, label_of, lower
from tests.tuner.small_networks import CLS, V4, V6, conv_network, lowered, network, softmax_network, target, weights

Arrays = list[NDArray[Any]]


def _run(mod: Any, inputs: Arrays) -> Arrays:
    """Outputs of a finished network."""
    machine = relax.VirtualMachine(tvm.compile(mod, target=target()), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(x) for x in inputs))
    return [result.numpy()] if hasattr(result, "numpy") else [part.numpy() for part in result]


def _call(mod: Any, inputs: Arrays, out: NDArray[Any]) -> NDArray[Any]:
    """The output of one TIR function; the buffer holds what `out` holds before."""
    tensors = [tvm.runtime.tensor(x) for x in (*inputs, out)]
    tvm.compile(mod, target=target())["main"](*tensors)
    return np.asarray(tensors[-1].numpy())


def _schedules(mod: Any, seed: int = 1) -> Iterator[Schedule]:
    """One random schedule of each design space, postprocessed."""
    import_intrinsics("llvm")
    context = TuneContext(
        mod=mod,
        target=target(),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        rand_state=seed,
        num_threads=1,
    )
    for space in context.generate_design_space():
        schedule = Schedule(mod, seed=seed)
        Trace(space.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        if all(postproc.apply(schedule) for postproc in context.space_generator.postprocs):
            yield schedule


def _scheduled(found: LoweredNetwork, every: int = 1) -> Any:
    """The network with a random schedule for every n-th task, applied as MetaSchedule does."""
    database = MemoryDatabase()
    for task in found.tasks[::every]:
        *_, schedule = _schedules(task.mod)
        info = ArgInfo.from_prim_func(task.mod["main"])
        database.commit_tuning_record(
            TuningRecord(schedule.trace, database.commit_workload(task.mod), [1.0], found.target, info)
        )
    with found.target, database, tvm.transform.PassContext(opt_level=3):
        return relax.transform.MetaScheduleApplyDatabase()(found.mod)


def _import(source: str, *shape: int) -> ImportedNetwork:
    return import_network(NetworkSpec("ocr", "ocr", "1", source, shapes={"x": shape}))


def _two_convolutions() -> ImportedNetwork:
    """Two calls of one workload, then another one."""

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        for _ in range(2):
            x = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, weights(8, 8, 3, 3), padding=1))))
        return builder.emit(relax.op.nn.conv2d(x, weights(4, 8, 1, 1)))

    return network(build, [InputSpec("x", (1, 8, 10, 10), "float32")])


def test_a_workload_that_is_called_twice_is_one_task() -> None:
    found = lowered(_two_convolutions())
    assert [(t.task.workload.op, t.task.weight) for t in found.tasks] == [("conv2d+relu", 2), ("conv2d", 1)]
    assert found.inputs == (InputSpec("x", (1, 8, 10, 10), "float32"),)


def test_a_task_is_structurally_equal_to_its_function() -> None:
    found = lowered(_two_convolutions())
    for task in found.tasks:
        function = found.mod[task.task.name].with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
        assert tvm_ffi.structural_equal(task.mod["main"], function)


def test_names_in_tasks_are_numbers() -> None:
    (task,) = lowered(conv_network()).tasks
    blocks = [name for name in ("pad_temp", "conv2d_nchw", "T_add", "compute", "lv") if name in task.mod.script()]
    assert blocks == []
    assert 'T.sblock("block_0")' in task.mod.script()


@pytest.mark.parametrize("source", [V4.format("det"), V6.format("det")])
def test_every_task_of_a_real_network_has_its_own_key_and_order(source: str) -> None:
    one, other = (lower(_import(source, 1, 3, 64, 64), target()) for _ in range(2))
    assert [t.task for t in one.tasks] == [t.task for t in other.tasks]
    assert len({t.task.workload.key for t in one.tasks}) == len(one.tasks)
    assert len({t.task.workload.cluster for t in one.tasks}) < len(one.tasks) / 2


def test_a_next_version_shares_tasks_with_the_last() -> None:
    old, new = (lower(_import(s.format("det"), 1, 3, 64, 64), target()).tasks for s in (V4, V6))
    keys, clusters = ({t.task.workload.key for t in old}, {t.task.workload.cluster for t in old})
    exact = sum(t.task.workload.key in keys for t in new)
    known = sum(t.task.workload.cluster in clusters for t in new)
    assert len(new) == 79
    assert (exact, known) == (29, 47)


def test_an_untuned_network_computes_what_onnxruntime_does() -> None:
    imported = _import(V6.format("det"), 1, 3, 64, 64)
    found = lower(imported, target())
    inputs = make_inputs(imported, seed=0)
    outputs = _run(finish(found.mod, found.target), inputs)
    expected = reference_outputs(imported, inputs)
    assert expected is not None
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, atol=1e-4)


@pytest.mark.slow
def test_a_scheduled_network_computes_what_onnxruntime_does() -> None:
    imported = _import(CLS, 1, 3, 48, 64)
    found = lower(imported, target())
    inputs = make_inputs(imported, seed=0)
    outputs = _run(finish(_scheduled(found, every=4), found.target), inputs)
    expected = reference_outputs(imported, inputs)
    assert expected is not None
    np.testing.assert_allclose(outputs[0], expected[0], atol=1e-4)


def test_rewritten_layouts_are_folded_into_the_constants() -> None:
    imported = conv_network(channels=16, filters=32)
    found = lowered(imported)
    applied = _scheduled(found)
    assert "layout_rewrite_preproc" in applied.script()
    finished = finish(applied, found.target)
    assert "layout_rewrite_preproc" not in finished.script()
    names = [var.name_hint for var in finished.functions]
    assert sum("prepacked" in name for name in names) == 1
    assert not any("weight_prepack" in name for name in names if "prepacked" not in name)
    (call,) = [b.value for block in finished["main"].body.blocks for b in block.bindings if "call_tir" in str(b.value)]
    assert "prepacked" in call.args[0].name_hint
    inputs = make_inputs(imported, seed=0)
    np.testing.assert_allclose(_run(finished, inputs)[0], _run(finish(found.mod, found.target), inputs)[0], atol=1e-4)


def _padded_convolution() -> ImportedNetwork:
    """A convolution, a relu and a padding at the end of both axes."""

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, weights(8, 8, 3, 3), padding=1))))
        return builder.emit(relax.op.nn.pad(y, [0, 0, 0, 0, 0, 1, 0, 1]))

    return network(build, [InputSpec("x", (1, 8, 10, 10), "float32")])


def _transposed_convolution() -> ImportedNetwork:
    """A transposed convolution with a bias: its weight is turned round before it is used."""

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        y = builder.emit(relax.op.nn.conv2d_transpose(x, weights(12, 1, 2, 2), strides=2))
        return builder.emit(relax.op.add(y, weights(1, 1, 1, 1)))

    return network(build, [InputSpec("x", (1, 12, 8, 8), "float32")])


@pytest.mark.parametrize("build", [conv_network, softmax_network, _padded_convolution, _transposed_convolution])
def test_schedules_compute_what_the_untuned_program_does(build: Any) -> None:
    rng = np.random.default_rng(0)
    for task in lowered(build()).tasks:
        shapes = [tuple(int(dim) for dim in p.ty.shape) for p in task.mod["main"].params]
        inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes[:-1]]
        out = np.full(shapes[-1], 77, "float32")
        expected = _call(task.mod, inputs, out)
        for schedule in _schedules(task.mod):
            np.testing.assert_allclose(_call(schedule.mod, inputs, out), expected, atol=1e-3)


def test_an_opaque_operator_runs_as_it_is() -> None:
    def build(builder: relax.BlockBuilder, x: Any, i: Any) -> Any:
        moved = builder.emit(relax.op.scatter_elements(x, i, weights(4, 3), axis=1))
        return builder.emit(relax.op.matmul(moved, weights(50, 6)))

    small = network(build, [InputSpec("x", (4, 50), "float32"), InputSpec("i", (4, 3), "int64")])
    found = lowered(small)
    assert [t.task.workload.op for t in found.tasks] == ["matmul"]
    x, i = np.ones((4, 50), "float32"), np.tile(np.arange(3), (4, 1))
    moved = x.copy()
    moved[:, :3] = weights(4, 3).value.numpy()
    (output,) = _run(finish(_scheduled(found), found.target), [x, i])
    np.testing.assert_allclose(output, moved @ weights(50, 6).value.numpy(), atol=1e-4)


def test_constants_are_reshaped_without_a_compiler() -> None:
    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        bias = builder.emit(relax.op.reshape(weights(6), (1, 6)))
        column = builder.emit(relax.op.expand_dims(weights(4), [1]))
        return builder.emit(relax.op.add(builder.emit(relax.op.add(x, bias)), column))

    small = network(build, [InputSpec("x", (4, 6), "float32")])
    folded = fold_constant_views(small.mod)
    assert "reshape" not in folded.script()
    assert "expand_dims" not in folded.script()
    x = np.ones((4, 6), "float32")
    found = lowered(small)
    expected = x + weights(6).value.numpy() + weights(4).value.numpy()[:, None]
    np.testing.assert_allclose(_run(finish(found.mod, found.target), [x])[0], expected, rtol=1e-6)


def test_erf_is_vectorizable_and_right() -> None:
    erf = network(lambda b, x: b.emit(relax.op.erf(x)), [InputSpec("x", (4096,), "float32")])
    low = lower(erf, target())
    assert "T.erf" not in low.mod.script()
    machine = relax.VirtualMachine(tvm.compile(finish(low.mod, target()), target=target()), tvm.cpu())
    x = np.linspace(-6, 6, 4096, dtype=np.float32)
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, [math.erf(value) for value in x], atol=1e-6, rtol=0)


def test_constants_without_a_normal_float_become_zero() -> None:
    values = np.array([1e-40, -1e-44, 1e-37, 0.0, 2.5], dtype=np.float32)
    small = network(lambda b, x: b.emit(relax.op.add(x, relax.const(values))), [InputSpec("x", (5,), "float32")])
    found: list[NDArray[Any]] = []
    flushed = flush_denormals(small.mod)["main"]
    relax.analysis.post_order_visit(
        flushed, lambda e: found.append(e.value.numpy()) if isinstance(e, tvm.ir.GenericConst) else None
    )
    np.testing.assert_array_equal(found, [np.array([0, 0, 1e-37, 0, 2.5], dtype=np.float32)])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float64"])
def test_a_reshaped_constant_keeps_its_dtype(dtype: str) -> None:
    constant = relax.const(np.ones((2, 3), dtype), dtype=dtype)
    small = network(lambda b, _: b.emit(relax.op.reshape(constant, (3, 2))), [InputSpec("x", (1,), "float32")])
    folded = fold_constant_views(small.mod)
    assert "reshape" not in folded.script()
    result = folded["main"].body.body
    assert str(result.ty) == f'R.Tensor((3, 2), dtype="{dtype}")'
    assert str(result.value.numpy().dtype) == dtype


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("fused_conv2d1_add_multiply_add1_add2_maximum_minimum", "conv2d+add+multiply+maximum+minimum"),
        ("fused_conv2d_transpose1_add51_tir_sigmoid1", "conv2d_transpose+add+sigmoid"),
        ("max_pool2d1", "max_pool2d"),
        ("fused_log1p3_erf", "log1p+erf"),
        ("mean101", "mean"),
    ],
)
def test_labels_are_operators_without_numbers(name: str, label: str) -> None:
    (task,) = lowered(softmax_network()).tasks
    assert label_of(name, task.mod["main"]) == label
