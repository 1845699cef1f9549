from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, topi

from bcd_tuner.layouts import channels_last
from bcd_tuner.networks import ImportedNetwork, InputSpec, make_inputs
from bcd_tuner.tasks import finish, lower
from tests.tuner.small_networks import network, target, weights

IMAGE = InputSpec("x", (1, 4, 10, 12), "float32")


def _two_convolutions(between: Any) -> ImportedNetwork:
    """A convolution, something that keeps the shape, and a convolution."""

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        y = builder.emit(relax.op.nn.conv2d(x, weights(8, 4, 3, 3), padding=1))
        return builder.emit(relax.op.nn.conv2d(between(builder, y), weights(6, 8, 1, 1)))

    return network(build, [IMAGE])


def _hard_swish(builder: relax.BlockBuilder, y: Any) -> Any:
    """As ONNX models have it: constants of one element, and bounds that the importer wrote as functions."""
    shifted = builder.emit(relax.op.add(y, relax.const(np.array([3.0], dtype=np.float32))))
    low = builder.emit_te(topi.maximum, shifted, relax.const(0.0, "float32"))
    high = builder.emit_te(topi.minimum, low, relax.const(6.0, "float32"))
    return builder.emit(relax.op.multiply(y, builder.emit(relax.op.divide(high, relax.const(6.0, "float32")))))


BETWEEN = {
    "nothing": lambda builder, y: y,
    "relu": lambda builder, y: builder.emit(relax.op.nn.relu(y)),
    "clip": lambda builder, y: builder.emit(relax.op.clip(y, 0.0, 1.0)),
    "hard swish": _hard_swish,
    "a scalar of four dimensions": lambda builder, y: builder.emit(
        relax.op.multiply(y, relax.const(np.full((1, 1, 1, 1), 2.0, dtype=np.float32)))
    ),
    "channel weights": lambda builder, y: builder.emit(relax.op.multiply(y, weights(1, 8, 1, 1))),
    "the mean of the image": lambda builder, y: builder.emit(
        relax.op.subtract(y, builder.emit(relax.op.mean(y, axis=[2, 3], keepdims=True)))
    ),
}


def _run(found: ImportedNetwork, *, keep_layout: bool) -> Any:
    lowered = lower(found, target(), keep_layout=keep_layout)
    executable = tvm.compile(finish(lowered.mod, lowered.target), target=target())
    inputs = [tvm.runtime.tensor(x) for x in make_inputs(found, seed=0)]
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs).numpy()


@pytest.mark.parametrize("between", BETWEEN)
def test_only_inputs_and_outputs_are_turned_and_nothing_else_changes(between: str) -> None:
    found = _two_convolutions(BETWEEN[between])
    text = channels_last(found.mod)["main"].script()
    assert text.count("permute_dims") == 2
    assert text.count('data_layout="NHWC"') == 2
    np.testing.assert_allclose(_run(found, keep_layout=False), _run(found, keep_layout=True), rtol=1e-4, atol=1e-4)


def test_a_transposed_convolution_keeps_the_layout_that_tvm_can_lower() -> None:
    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        y = builder.emit(relax.op.nn.conv2d(x, weights(8, 4, 3, 3), padding=1))
        return builder.emit(relax.op.nn.conv2d_transpose(y, weights(8, 4, 2, 2), strides=2))

    found = network(build, [IMAGE])
    np.testing.assert_allclose(_run(found, keep_layout=False), _run(found, keep_layout=True), rtol=1e-4, atol=1e-4)


def test_a_bound_that_is_not_a_scalar_stays_a_function() -> None:
    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        return builder.emit_te(topi.maximum, x, weights(1, 4, 10, 12))

    found = network(build, [IMAGE])
    assert "call_tir" in channels_last(found.mod)["main"].script()


def test_a_network_without_convolutions_stays_as_it_is() -> None:
    found = network(lambda builder, x: builder.emit(relax.op.nn.softmax(x)), [InputSpec("x", (4, 8), "float32")])
    assert "permute_dims" not in channels_last(found.mod)["main"].script()
