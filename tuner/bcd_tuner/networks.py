"""Where a network comes from: an ONNX file, a file inside an installed package, or an exported torch program.

A model of MLflow is one of these once it was downloaded (`mlflow_networks.py`).

Imported networks have fixed shapes and their parameters bound as constants.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from numpy.typing import NDArray
from tvm.ir import IRModule
from tvm.relax.frontend.onnx import from_onnx

from bcd_registry.errors import ConfigError, MeasureError, NetworkError
from bcd_registry.model import NetworkSpec
from bcd_registry.model_uri import is_model_uri

try:
    import onnxruntime
except ImportError:  # an extra
    onnxruntime = None

_EXPORT_HINT = "export the model again without that operator, or with another opset"
_LOG = logging.getLogger(__name__)
_MAX_INTEGER = 2
"""Exclusive bound of integer inputs: small enough to be a valid token, class or mask in any network."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a network, in the order in which it is called."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ImportedNetwork:
    """A network in Relax.

    Attributes:
        mod: Relax, one function `main`, parameters bound as constants.
        digest: Hex SHA-256 of the source's bytes.
        onnx_bytes: The model with fixed shapes, for onnxruntime; None when the source is not ONNX.
    """

    spec: NetworkSpec
    mod: IRModule
    inputs: tuple[InputSpec, ...]
    digest: str
    onnx_bytes: bytes | None


def import_network(spec: NetworkSpec) -> ImportedNetwork:
    """Read a network and turn it into Relax.

    Raises:
        NetworkError: It cannot be found, read or imported, or has open dimensions.
        ConfigError: `shapes` or `dtypes` name an input that is not there, or have another rank.
    """
    path = Path(spec.file) if spec.file else source_path(spec.source)
    data = _read(path)
    digest = hashlib.sha256(data).hexdigest()
    suffix = path.suffix.lower()
    if suffix == ".pt2":
        mod, inputs = _import_torch(path, spec)
        return ImportedNetwork(spec, mod, inputs, digest, None)
    if suffix != ".onnx":
        raise NetworkError(f"{path.name} is neither .onnx nor .pt2", hint="export the model to ONNX or with torch.export.save")
    mod, inputs, fixed = _import_onnx(path, data, spec)
    return ImportedNetwork(spec, mod, inputs, digest, fixed)


def source_path(source: str) -> Path:
    """The file that a source names; a package is found but not imported.

    Raises:
        NetworkError: No such package, or a model of MLflow, which is to be downloaded first.
    """
    if is_model_uri(source):
        raise NetworkError(f"{source} was not downloaded", hint="bcd_tuner.mlflow_networks.fetch_network does that")
    if not source.startswith("package:"):
        return Path(source).expanduser()
    package, _, inner = source.removeprefix("package:").partition("/")
    try:
        found = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise NetworkError(f"no package named {package!r} is installed", hint="install it, or give a path to an .onnx file")
    for folder in found.submodule_search_locations:
        root = Path(folder).resolve()
        path = (root / inner).resolve()
        if path.is_relative_to(root) and path.is_file():
            return path
    raise NetworkError(f"package {package} has no file {inner!r}", hint="the path is relative to the package's folder")


def make_inputs(network: ImportedNetwork, seed: int) -> list[NDArray[Any]]:
    """Random inputs in order: floats are normal, integers 0 or 1, so that they index in bounds.

    Raises:
        MeasureError: They do not fit into memory.
    """
    rng = np.random.default_rng(seed)
    try:
        return [_random(rng, i) for i in network.inputs]
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than there are addresses
        sizes = ", ".join(f"{i.name} {i.shape}" for i in network.inputs)
        raise MeasureError(f"the network's inputs do not fit into memory: {sizes}", hint="choose smaller shapes") from error


def reference_outputs(network: ImportedNetwork, inputs: list[NDArray[Any]]) -> list[NDArray[Any]] | None:
    """What onnxruntime computes; None when it is not installed, refuses the network, or the network is not ONNX."""
    session = _session(network, threads=0)
    if session is None:
        return None
    return [np.asarray(output) for output in session.run(None, _feeds(network, inputs))]


def onnxruntime_call(network: ImportedNetwork, inputs: list[NDArray[Any]], threads: int) -> Callable[[], Any] | None:
    """A run of onnxruntime with all its optimisations, to be timed; None as `reference_outputs`."""
    session = _session(network, threads)
    if session is None:
        return None
    feeds = _feeds(network, inputs)
    return lambda: session.run(None, feeds)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NetworkError(f"cannot read {path}: {reason}", hint="give a path to an .onnx or .pt2 file") from error


def _import_onnx(path: Path, data: bytes, spec: NetworkSpec) -> tuple[IRModule, tuple[InputSpec, ...], bytes]:
    model = _load_onnx(path, data)
    _fix_inputs(model, spec)
    simple = _simplified(model)
    with _quiet() as printed:
        try:
            mod = from_onnx(simple, keep_params_in_input=False)
        except tvm.error.OpNotImplemented as error:
            ops = str(error).strip().splitlines()[-1].rsplit(":", 1)[-1].strip()
            raise NetworkError(f"{path.name} uses operators that TVM does not have: {ops}", hint=_EXPORT_HINT) from error
        except Exception as error:
            operator = re.search(r"Error converting operator (\w+)", printed.getvalue())
            where = f"operator {operator[1]}: " if operator else ""
            raise NetworkError(f"TVM cannot import {path.name}: {where}{_last_line(error)}", hint=_EXPORT_HINT) from error
    return mod, _inputs_of(mod, [value.name for value in _graph_inputs(simple)]), model.SerializeToString()


def _load_onnx(path: Path, data: bytes) -> onnx.ModelProto:
    """Parse and check a model; external data is read from the file's own folder."""
    hint = "the file may be truncated or not a model; export it again"
    try:
        model = onnx.load_model_from_string(data)
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise NetworkError(f"{path.name} is not an ONNX model: {_last_line(error)}", hint=hint) from error
    if not (model.graph.node and model.graph.output and model.opset_import):
        raise NetworkError(f"{path.name} is not an ONNX model: it has no operators or no opset", hint=hint)
    return model


def _graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs that a caller gives; old models list their weights among the inputs too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _fix_inputs(model: onnx.ModelProto, spec: NetworkSpec) -> None:
    """Write the given shapes and dtypes into the model; afterwards no input has an open dimension."""
    inputs = {value.name: value for value in _graph_inputs(model)}
    for option, given in (("--shape", spec.shapes), ("dtypes", spec.dtypes)):
        for name in given.keys() - inputs.keys():
            raise ConfigError(f"{option}: the network has no input {name!r}", hint=f"its inputs are: {', '.join(inputs)}")
    for name, dtype in spec.dtypes.items():
        inputs[name].type.tensor_type.elem_type = _elem_type(name, dtype)
    for name, shape in spec.shapes.items():
        _fix_shape(inputs[name], shape)
    if spec.shapes or spec.dtypes:
        del model.graph.value_info[:]
    _refuse_open_dimensions(list(inputs.values()))


def _elem_type(name: str, dtype: str) -> int:
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"dtype {dtype!r} of input {name!r} is not known", hint="for example float32 or int64") from error


def _fix_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(shape):
        raise ConfigError(
            f"--shape {value.name}: {len(shape)} dimensions given, the network has {len(dims)}", hint=_example(value)
        )
    for position, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if size < 1 or (dim.dim_value > 0 and dim.dim_value != size):
            fixed = f", the network fixes it to {dim.dim_value}" if dim.dim_value > 0 else ""
            raise ConfigError(f"--shape {value.name}: dimension {position} cannot be {size}{fixed}", hint=_example(value))
        dim.dim_value = size


def _refuse_open_dimensions(inputs: list[onnx.ValueInfoProto]) -> None:
    open_inputs: list[str] = []
    examples: list[str] = []
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            raise NetworkError(f"input {value.name} is not a tensor", hint="only tensors can be inputs")
        dims = value.type.tensor_type.shape.dim
        names = [f"{position} ({dim.dim_param or '?'})" for position, dim in enumerate(dims) if dim.dim_value < 1]
        if names:
            open_inputs.append(f"{value.name} in dimension{'s' * (len(names) > 1)} {', '.join(names)}")
            examples.append(_example(value))
    if open_inputs:
        raise NetworkError(f"the network leaves its shape open: {'; '.join(open_inputs)}", hint=f"fix it: {' '.join(examples)}")


def _example(value: onnx.ValueInfoProto) -> str:
    """An option that gives a shape, the network's own dimensions kept."""
    sizes = [d.dim_value if d.dim_value > 0 else (1 if i == 0 else 64) for i, d in enumerate(value.type.tensor_type.shape.dim)]
    return f"--shape {value.name}={','.join(map(str, sizes))}"


def _simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its constants folded and its shape arithmetic gone, by onnxruntime where it can, else by onnx."""
    if onnxruntime is not None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 4
        with tempfile.TemporaryDirectory() as folder:
            options.optimized_model_filepath = str(Path(folder, "simple.onnx"))
            try:
                onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
                return onnx.load(options.optimized_model_filepath)
            except Exception as error:  # noqa: BLE001  # TVM may import what onnxruntime refuses, and says better what is wrong
                _LOG.debug("onnxruntime cannot simplify the model: %s", error)
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # noqa: BLE001
        _LOG.debug("onnx cannot infer the model's shapes: %s", error)
        return model


def _inputs_of(mod: IRModule, names: list[str]) -> tuple[InputSpec, ...]:
    """Inputs as the Relax function takes them, under the model's own names."""
    found = []
    for name, param in zip(names, mod["main"].params, strict=True):
        try:
            shape = tuple(int(dim) for dim in param.ty.shape.values)
        except (AttributeError, TypeError, ValueError) as error:
            raise NetworkError(f"input {name} has no fixed shape", hint="export the network with fixed shapes") from error
        found.append(InputSpec(name, shape, str(param.ty.dtype)))
    return tuple(found)


def _import_torch(path: Path, spec: NetworkSpec) -> tuple[IRModule, tuple[InputSpec, ...]]:
    """An exported torch program; torch is imported here alone, since it is an extra and slow to import."""
    try:
        torch: Any = importlib.import_module("torch")
        from tvm.relax.frontend.torch import from_exported_program
    except ImportError as error:
        raise NetworkError(f"{path.name} needs torch", hint="pip install 'bcd-registry[torch]'") from error
    if spec.shapes or spec.dtypes:
        raise ConfigError("an exported torch program has its own shapes and dtypes", hint="export it again with other inputs")
    with _quiet():
        try:
            program = torch.export.load(path)
            mod = from_exported_program(program)
        except Exception as error:
            raise NetworkError(
                f"cannot import {path.name}: {_last_line(error)}", hint="export it with torch.export.save"
            ) from error
    return mod, _inputs_of(mod, [str(param.name) for param in mod["main"].params])


@contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Importers print and warn; standard output belongs to the command line."""
    printed = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(printed):
        warnings.simplefilter("ignore")
        yield printed


def _session(network: ImportedNetwork, threads: int) -> Any:
    if onnxruntime is None or network.onnx_bytes is None:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(network.onnx_bytes, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  # a model for a newer opset than it knows: TVM's result stands without it
        _LOG.warning(
            "onnxruntime cannot run %s, so nothing is compared with it: %s", network.spec.label, _last_line(error)[:200]
        )
        return None


def _feeds(network: ImportedNetwork, inputs: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {spec.name: array for spec, array in zip(network.inputs, inputs, strict=True)}


def _random(rng: np.random.Generator, spec: InputSpec) -> NDArray[Any]:
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, _MAX_INTEGER, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
