"""Networks of one or two operators, as Relax and as ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.ir import IRModule
from tvm.target import Target

from bcd_registry.model import NetworkSpec, Workload
from bcd_tuner.networks import ImportedNetwork, InputSpec
from bcd_tuner.tasks import LoweredNetwork, lower

V4 = "package:rapidocr_onnxruntime/models/ch_PP-OCRv4_{}_infer.onnx"
V6 = "package:rapidocr/models/PP-OCRv6_{}_small.onnx"
CLS = "package:rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"


def target() -> Target:
    """A CPU that every machine of the tests is at least."""
    return Target({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2})


def network(build: Any, inputs: Sequence[InputSpec]) -> ImportedNetwork:
    """A network from a function that maps Relax variables to an expression; only the first `num_input` are inputs."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(i.name, relax.TensorType(i.shape, i.dtype)) for i in inputs]
    with builder.function("main", variables, attrs={"num_input": len(variables)}):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *variables))
        builder.emit_func_output(result)
    return ImportedNetwork(NetworkSpec("small", "small", "1", "small.onnx"), builder.get(), tuple(inputs), "", None)


def weights(*shape: int, dtype: str = "float32") -> Any:
    """A constant with fixed random content."""
    return relax.const(np.random.default_rng(7).standard_normal(shape).astype(dtype))


def conv_network(
    *,
    channels: int = 8,
    filters: int = 16,
    size: int = 12,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 1,
    dilation: int = 1,
    groups: int = 1,
    dtype: str = "float32",
    epilogue: str = "relu",
    slope: float = 0.1,
    weight_is_input: bool = False,
) -> ImportedNetwork:
    """A convolution with bias and an activation."""
    weight_shape = (filters, channels // groups, kernel, kernel)

    def build(builder: relax.BlockBuilder, x: Any, *rest: Any) -> Any:
        weight = rest[0] if weight_is_input else weights(*weight_shape, dtype=dtype)
        options = {"strides": stride, "padding": padding, "dilation": dilation, "groups": groups}
        y = builder.emit(relax.op.nn.conv2d(x, weight, **options))
        if epilogue == "none":
            return y
        y = builder.emit(relax.op.add(y, weights(1, filters, 1, 1, dtype=dtype)))
        activations = {
            "relu": relax.op.nn.relu,
            "sigmoid": relax.op.sigmoid,
            "leaky": lambda v: relax.op.nn.leakyrelu(v, slope),
        }
        return builder.emit(activations[epilogue](y))

    inputs = [InputSpec("x", (1, channels, size, size), dtype)]
    if weight_is_input:
        inputs.append(InputSpec("w", weight_shape, dtype))
    return network(build, inputs)


def matmul_network(rows: int = 4, inner: int = 8, columns: int = 16) -> ImportedNetwork:
    """A matrix product with a constant."""
    return network(
        lambda builder, x: builder.emit(relax.op.matmul(x, weights(inner, columns))), [InputSpec("x", (rows, inner), "float32")]
    )


def softmax_network(rows: int = 4, columns: int = 8) -> ImportedNetwork:
    """A softmax over rows: more than one reduction."""
    return network(lambda builder, x: builder.emit(relax.op.nn.softmax(x)), [InputSpec("x", (rows, columns), "float32")])


def embedding_network(rows: int = 50) -> ImportedNetwork:
    """A gather: integers that index into a table."""
    return network(lambda builder, i: builder.emit(relax.op.take(weights(rows, 6), i, axis=0)), [InputSpec("i", (3,), "int64")])


def lowered(small: ImportedNetwork) -> LoweredNetwork:
    """A network lowered for the tests' target, in its own layout."""
    return lower(small, target(), keep_layout=True)


def workload(small: ImportedNetwork) -> Workload:
    """The workload of a network with one task."""
    (task,) = lowered(small).tasks
    return task.task.workload


def module(small: ImportedNetwork) -> IRModule:
    """The TIR of a network with one task."""
    (task,) = lowered(small).tasks
    return task.mod


def onnx_model(
    path: Path, *, shape: Sequence[int | str] = (1, 3, 8, 8), op: str = "Conv", domain: str = "", opset: int = 17
) -> Path:
    """An ONNX file with one operator and a relu, and an input named `x`."""
    weight = numpy_helper.from_array(np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype("float32"), "w")
    nodes = [helper.make_node(op, ["x", "w"], ["y"], domain=domain), helper.make_node("Relu", ["y"], ["z"])]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph(nodes, "g", [value], [result], [weight])
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def embedding_model(path: Path) -> Path:
    """An ONNX file that gathers rows of a table by an int64 input named `ids` of open length."""
    table = numpy_helper.from_array(np.random.default_rng(3).standard_normal((10, 4)).astype("float32"), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["length"])
    result = helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Gather", ["table", "ids"], ["rows"])], "g", [ids], [result], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
