"""A network of two matrix products in two versions, small enough to run every mode on in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .networks import Pair, Version

TRIALS = 4


def tiny_pair(folder: Path) -> Pair:
    """Both versions, written to a folder."""
    first, second = (write_network(folder / f"v{n}.onnx", columns) for n, columns in ((1, 32), (2, 48)))
    return Pair(
        "tiny",
        "two matrix products",
        Version("1", str(first)),
        Version("2", str(second)),
        trials=TRIALS,
        small=True,
    )


def write_network(path: Path, columns: int) -> Path:
    """Two matrix products, each with a relu; the first is the same in every version."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, columns])],
        [weight("w1", 32, 64), weight("w2", 64, columns)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path
