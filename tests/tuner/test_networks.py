"""Where networks come from, and what a user sees when one cannot be read."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from bcd_registry.errors import BcdError, ConfigError, MeasureError, NetworkError
from bcd_registry.model import NetworkSpec
from bcd_tuner import networks
from bcd_tuner.networks import (
    ImportedNetwork,
    InputSpec,
    import_network,
    make_inputs,
    onnxruntime_call,
    reference_outputs,
    source_path,
)
from bcd_tuner.subgraph import integer_bounds
from bcd_tuner.tasks import finish, lower
from tests.tuner.small_networks import CLS, embedding_model, onnx_model, target

Shapes = dict[str, tuple[int, ...]]


def _spec(source: object, shapes: Shapes | None = None, dtypes: dict[str, str] | None = None) -> NetworkSpec:
    return NetworkSpec("model", "model", "1", str(source), shapes=shapes or {}, dtypes=dtypes or {})


def _assert_for_people(error: BcdError) -> None:
    """One line of message, one of advice."""
    assert error.message
    assert "\n" not in error.message
    assert error.hint
    assert "\n" not in error.hint


def test_an_onnx_file_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_model(tmp_path / "conv.onnx")
    found = import_network(_spec(path))
    assert found.inputs == (InputSpec("x", (1, 3, 8, 8), "float32"),)
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(found.mod["main"].params) == 1
    assert capsys.readouterr().out == ""


def test_open_dimensions_are_fixed_by_shapes(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "conv.onnx", shape=("batch", 3, "height", "width"))
    found = import_network(_spec(path, {"x": (2, 3, 12, 10)}))
    assert found.inputs[0].shape == (2, 3, 12, 10)
    assert found.onnx_bytes is not None
    inputs = make_inputs(found, seed=1)
    expected = reference_outputs(found, inputs)
    assert expected is not None
    assert expected[0].shape == (2, 4, 10, 8)


def test_open_dimensions_without_shapes_are_named(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "conv.onnx", shape=("batch", 3, "height", "width"))
    with pytest.raises(NetworkError, match=r"x in dimensions 0 \(batch\), 2 \(height\), 3 \(width\)") as caught:
        import_network(_spec(path))
    assert caught.value.hint == "fix it: --shape x=1,3,64,64"
    _assert_for_people(caught.value)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": (1, 3, 8, 8)}, "no input 'y'"),
        ({"x": (3, 8, 8)}, "3 dimensions given, the network has 4"),
        ({"x": (1, 4, 8, 8)}, "dimension 1 cannot be 4, the network fixes it to 3"),
        ({"x": (0, 3, 8, 8)}, "dimension 0 cannot be 0"),
    ],
)
def test_wrong_shapes_are_the_users_options(tmp_path: Path, shapes: Shapes, message: str) -> None:
    path = onnx_model(tmp_path / "conv.onnx", shape=("batch", 3, "height", "width"))
    with pytest.raises(ConfigError, match=message) as caught:
        import_network(_spec(path, shapes))
    _assert_for_people(caught.value)


def test_wrong_dtypes_are_the_users_options(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "conv.onnx")
    with pytest.raises(ConfigError, match="'float33' of input 'x'"):
        import_network(_spec(path, dtypes={"x": "float33"}))
    with pytest.raises(ConfigError, match="no input 'y'"):
        import_network(_spec(path, dtypes={"y": "float32"}))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.onnx", "cannot read .*missing.onnx: No such file"),
        (".", "is neither|cannot read"),
        ("package:no_such_package/model.onnx", "no package named 'no_such_package'"),
        ("package:../model.onnx", "no package named"),
        ("package:json/missing.onnx", "package json has no file 'missing.onnx'"),
        ("package:json/../../../../../../etc/passwd", "package json has no file"),
    ],
)
def test_what_is_not_there(source: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as caught:
        import_network(_spec(source))
    _assert_for_people(caught.value)


def test_a_package_is_found_and_not_imported() -> None:
    assert source_path(CLS).is_file()


@pytest.mark.parametrize("content", [b"", b"this is not a model\n", b"\x08\x07"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.onnx"
    path.write_bytes(content)
    with pytest.raises(NetworkError, match=r"text.onnx is not an ONNX model") as caught:
        import_network(_spec(path))
    _assert_for_people(caught.value)


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.99])
def test_a_truncated_model(tmp_path: Path, kept: float) -> None:
    data = onnx_model(tmp_path / "conv.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(NetworkError) as caught:
        import_network(_spec(path))
    _assert_for_people(caught.value)


@pytest.mark.parametrize(("op", "domain"), [("FancyConv", ""), ("FancyConv", "com.example")])
def test_an_unknown_operator_is_named(tmp_path: Path, op: str, domain: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_model(tmp_path / "fancy.onnx", op=op, domain=domain)
    with pytest.raises(NetworkError, match="FancyConv") as caught:
        import_network(_spec(path))
    _assert_for_people(caught.value)
    assert capsys.readouterr().out == ""


def test_an_operator_with_wrong_inputs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_model(tmp_path / "bad.onnx", shape=(1, 5, 8, 8))
    with pytest.raises(NetworkError) as caught:
        import_network(_spec(path))
    _assert_for_people(caught.value)
    assert capsys.readouterr().out == ""


def test_other_endings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(b"x")
    with pytest.raises(NetworkError, match=r"neither \.onnx nor \.pt2"):
        import_network(_spec(path))


def test_torch_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "model.pt2"
    path.write_bytes(b"x")
    with pytest.raises(NetworkError, match="needs torch") as caught:
        import_network(_spec(path))
    assert caught.value.hint == "pip install 'bcd-registry[torch]'"


def test_an_exported_torch_program_is_imported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    example = torch.randn(1, 3, 8, 8)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (example,)), path)
    found = import_network(_spec(path))
    lowered = lower(found, target())
    machine = relax.VirtualMachine(tvm.compile(finish(lowered.mod, lowered.target), target=target()), tvm.cpu())
    output = machine["main"](tvm.runtime.tensor(example.numpy()))[0].numpy()
    np.testing.assert_allclose(output, model(example).detach().numpy(), atol=1e-4)


def test_without_onnxruntime_onnx_infers_the_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "onnxruntime", None)
    found = import_network(_spec(onnx_model(tmp_path / "conv.onnx", shape=("batch", 3, 8, 8)), {"x": (1, 3, 8, 8)}))
    inputs = make_inputs(found, seed=0)
    assert reference_outputs(found, inputs) is None
    assert onnxruntime_call(found, inputs, threads=1) is None
    assert len(lower(found, target(), keep_layout=True).tasks) == 1


def test_integer_inputs_index_in_bounds(tmp_path: Path) -> None:
    found = import_network(_spec(embedding_model(tmp_path / "gather.onnx"), {"ids": (5,)}))
    (ids,) = make_inputs(found, seed=0)
    assert ids.dtype == np.int64
    assert set(ids.tolist()) <= {0, 1}
    expected = reference_outputs(found, [ids])
    assert expected is not None
    lowered = lower(found, target())
    assert any(10 in integer_bounds(task.mod).values() for task in lowered.tasks)
    machine = relax.VirtualMachine(tvm.compile(finish(lowered.mod, lowered.target), target=target()), tvm.cpu())
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(ids)).numpy(), expected[0])


def test_inputs_depend_on_the_seed_alone(tmp_path: Path) -> None:
    found = import_network(_spec(onnx_model(tmp_path / "conv.onnx")))
    one, same, other = (make_inputs(found, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_network_that_onnxruntime_refuses_is_tuned_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = onnx_model(tmp_path / "conv.onnx")
    model = onnx.load(path)
    model.opset_import[0].version = 99
    onnx.save(model, path)
    found = import_network(_spec(path))
    assert onnxruntime_call(found, make_inputs(found, seed=0), threads=1) is None
    assert "onnxruntime cannot run model" in caplog.text


@pytest.mark.parametrize("size", [1 << 26, 1 << 31])
def test_inputs_beyond_memory_are_an_error_for_people(size: int) -> None:
    huge = ImportedNetwork(_spec("x.onnx"), tvm.IRModule(), (InputSpec("x", (size, size), "float32"),), "", None)
    with pytest.raises(MeasureError, match="do not fit into memory: x") as caught:
        make_inputs(huge, seed=0)
    _assert_for_people(caught.value)


def test_a_path_with_a_zero_byte_cannot_be_read() -> None:
    with pytest.raises(NetworkError, match="null byte") as caught:
        import_network(_spec("model\0.onnx"))
    _assert_for_people(caught.value)


def test_onnxruntime_is_called_for_timing(tmp_path: Path) -> None:
    found = import_network(_spec(onnx_model(tmp_path / "conv.onnx")))
    inputs = make_inputs(found, seed=0)
    call, expected = onnxruntime_call(found, inputs, threads=1), reference_outputs(found, inputs)
    assert call is not None
    assert expected is not None
    np.testing.assert_allclose(call()[0], expected[0], atol=1e-5)


def test_weights_that_are_listed_as_inputs_are_not_asked_for(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "conv.onnx")
    model = onnx.load(path)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, (4, 3, 3, 3)))
    onnx.save(model, path)
    assert [spec.name for spec in import_network(_spec(path)).inputs] == ["x"]
