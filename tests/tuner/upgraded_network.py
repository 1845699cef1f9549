"""A small convolutional network with several kinds of tasks, for an upgrade to bring over: it filled the golden registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bcd_registry.model import NetworkSpec

TARGET = '{"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}'
"""A CPU that every machine of the tests is at least: records of another one would be of no use."""

TRIALS = 16
SEED = 1


def spec_of(source: Path | str, *, trials: int = TRIALS) -> NetworkSpec:
    """The network as the golden registry names it."""
    return NetworkSpec("upgraded", "upgraded", "1", str(source), target=TARGET, trials=trials)


def write_network(path: Path) -> Path:
    """Plain, pointwise and depthwise convolutions, a pooling, matrix products and a softmax."""
    rng = np.random.default_rng(3)
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    nodes = [
        helper.make_node("Conv", ["x", weight("w1", 16, 3, 3, 3), weight("b1", 16)], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", weight("w2", 16, 1, 3, 3)], ["c"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", weight("w3", 32, 16, 1, 1), weight("b3", 32)], ["e"]),
        helper.make_node("HardSwish", ["e"], ["f"]),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", weight("w4", 32 * 64, 64), weight("b4", 64)], ["i"]),
        helper.make_node("Relu", ["i"], ["j"]),
        helper.make_node("MatMul", ["j", weight("w5", 64, 32)], ["k"]),
        helper.make_node("Softmax", ["k"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "upgraded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path
