from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from bcd_registry.errors import ConfigError
from bcd_registry.model import NetworkSpec
from bcd_registry.settings import Settings, load_settings, resolve_network

FILE = """
mlflow_tracking_uri = "http://mlflow:5000"
workers = 3

[defaults]
trials = 16
time_budget_s = 600

[networks.v1]
name = "ocr"
version = "1.0"
source = "models/v1.onnx"
shapes = { input = [1, 3, 48, 192] }
dtypes = { input = "float32" }

[networks.v2]
source = "package:rapidocr_onnxruntime/models/rec.onnx"
target = '{"kind": "llvm", "num-cores": 2}'
trials = 64
time_budget_s = 0.5
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "bcd-registry.toml"
    path.write_text(FILE)
    return path


def failure(tmp_path: Path, text: str) -> ConfigError:
    (tmp_path / "bcd-registry.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    return caught.value


def test_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings()
    assert settings.home == tmp_path / "home"
    assert settings.config is None
    assert settings.mlflow_tracking_uri == f"sqlite:///{tmp_path}/home/mlflow.db"
    assert (settings.registry_enabled, settings.workers, dict(settings.networks)) == (True, None, {})
    monkeypatch.delenv("BCD_HOME")
    assert load_settings().home == Path(platformdirs.user_data_dir("bcd-registry"))


def test_the_file(config: Path, tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.config, settings.workers, settings.mlflow_tracking_uri) == (config, 3, "http://mlflow:5000")
    assert settings.networks["v1"] == NetworkSpec(
        label="v1",
        name="ocr",
        version="1.0",
        source=str(tmp_path / "models/v1.onnx"),
        shapes={"input": (1, 3, 48, 192)},
        dtypes={"input": "float32"},
        trials=16,
        time_budget_s=600.0,
    )
    assert settings.networks["v2"] == NetworkSpec(
        label="v2",
        name="v2",
        version="",
        source="package:rapidocr_onnxruntime/models/rec.onnx",
        target='{"kind": "llvm", "num-cores": 2}',
        trials=64,
        time_budget_s=0.5,
    )


def test_the_nearest_file_upwards_is_read(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert load_settings().config == config
    (tmp_path / "a" / "bcd-registry.toml").write_text("workers = 1")
    assert load_settings().workers == 1


def test_flag_before_variable_before_file(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(f'home = "in-file"\nregistry = false\n{FILE}')
    monkeypatch.delenv("BCD_HOME")
    assert load_settings().home == tmp_path / "in-file"
    assert load_settings().registry_enabled is False
    monkeypatch.setenv("BCD_HOME", "in-variable")
    monkeypatch.setenv("BCD_REGISTRY", "on")
    monkeypatch.setenv("BCD_WORKERS", "7")
    monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    settings = load_settings()
    assert (settings.home, settings.registry_enabled) == (tmp_path / "in-variable", True)
    assert (settings.workers, settings.mlflow_tracking_uri) == (7, "sqlite:///mine.db")
    assert load_settings(home=Path("flag")).home == tmp_path / "flag"
    other = tmp_path / "other.toml"
    other.write_text("workers = 9")
    monkeypatch.delenv("BCD_WORKERS")
    monkeypatch.setenv("BCD_CONFIG", str(other))
    assert load_settings().workers == 9
    assert load_settings(config=config).workers == 3


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false", "no"])
def test_the_registry_is_switched_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BCD_REGISTRY", value)
    assert load_settings().registry_enabled is False


def test_an_empty_variable_is_not_set(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BCD_REGISTRY", "BCD_WORKERS", "BCD_CONFIG", "BCD_MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
    assert load_settings().workers == 3


@pytest.mark.parametrize(
    ("name", "value"), [("BCD_WORKERS", "two"), ("BCD_WORKERS", "0"), ("BCD_WORKERS", "-1"), ("BCD_REGISTRY", "s3://bucket")]
)
def test_a_wrong_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{name} = '{value}'") as caught:
        load_settings()
    assert name in caught.value.hint


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
        load_settings(config=tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_settings(config=tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'home = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(config=tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("workers = 2\n[networks.v1\n", 2, "Expected"),
        ("workers = 2\nworkers = 3\n", 2, "Cannot overwrite a value"),
        ("workers =", 1, "Invalid value"),
        ("a = [1,\n\n", 2, "Invalid value"),
        ("[networks.v1]\nsource = 'a.onnx'\n\nsorce = 'b'\n", 4, "unknown key 'networks.v1.sorce'"),
        ("[networks.v1]\nsource = 'a.onnx'\nshapes.x = [1, 0]\n", 3, "networks.v1.shapes.x[1] = 0"),
        ("[networks.v1]\nsource = 'a.onnx'\nshapes = { x = [-1] }\n", 3, "networks.v1.shapes.x[0] = -1"),
        ("[networks.v1]\nsource = 'a.onnx'\n[networks.v1.shapes]\ny = [1]\nx = [1.0]\n", 5, "networks.v1.shapes.x[0] = 1.0"),
        ("[networks.v1]\nsource = 'a.onnx'\nshapes = { x = ['n'] }\n", 3, "networks.v1.shapes.x[0] = 'n'"),
        ("[networks.v1]\nsource = 'a.onnx'\nshapes = { x = [true] }\n", 3, "networks.v1.shapes.x[0] = True"),
        ("[networks.v1]\nsource = 'a.onnx'\nshapes = { x = 3 }\n", 3, "networks.v1.shapes.x = 3"),
        ("[networks.v1]\nsource = 'a.onnx'\ntrials = 0\n", 3, "networks.v1.trials = 0"),
        ("[networks.v1]\nsource = ''\n", 2, "networks.v1.source = ''"),
        ("\n[networks.v1]\nname = 'a'\n", 2, "networks.v1.source is missing"),
        ("[defaults]\ntime_budget_s = -1\n", 2, "defaults.time_budget_s = -1"),
        ("[defaults]\ntime_budget_s = inf\n", 2, "defaults.time_budget_s = inf"),
        ("networks = 3\n", 1, "networks = 3"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    error = failure(tmp_path, text)
    assert error.message.startswith(f"{tmp_path}/bcd-registry.toml:{line}: ")
    assert message in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("wrokers = 1", "did you mean 'workers'?"),
        ("[default]", "did you mean 'defaults'?"),
        ("[defaults]\ntrial = 3", "did you mean 'trials'?"),
        ("[networks.v1]\nsource = 'a'\nshape = {}", "did you mean 'shapes'"),
        ("xyz = 1", "known: defaults, home, mlflow_tracking_uri, networks, registry, workers"),
        ("[networks.v1]\nsource = 'a'\nshapes = { x = [0] }", "a shape is a list of positive integers"),
        ("[networks.v1]\n", "`source` is a path to an .onnx or .pt2 file"),
    ],
)
def test_a_wrong_file_says_what_to_do(tmp_path: Path, text: str, hint: str) -> None:
    assert hint in failure(tmp_path, text).hint


def test_a_label(config: Path) -> None:
    settings = load_settings()
    assert resolve_network(settings, "v1") == settings.networks["v1"]
    changed = resolve_network(
        settings,
        "v1",
        {"mask": [1, 48]},
        dtypes={"mask": "bool"},
        target="llvm",
        trials=8,
        time_budget_s=5,
    )
    assert changed.shapes == {"input": (1, 3, 48, 192), "mask": (1, 48)}
    assert changed.dtypes == {"input": "float32", "mask": "bool"}
    assert (changed.target, changed.trials, changed.time_budget_s) == ("llvm", 8, 5.0)
    assert resolve_network(settings, "v1", {"input": (1, 3, 48, 320)}).shapes == {"input": (1, 3, 48, 320)}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("models/rec_v2.onnx", "rec_v2"),
        ("/abs/det.pt2", "det"),
        ("package:rapidocr/models/ch_PP-OCRv4_rec.onnx", "ch_PP-OCRv4_rec"),
        ("a.b.onnx", "a.b"),
    ],
)
def test_a_source(config: Path, model: str, name: str) -> None:
    spec = resolve_network(load_settings(), model)
    assert spec == NetworkSpec(label=model, name=name, version="", source=model, trials=16, time_budget_s=600.0)


@pytest.mark.parametrize("model", ["v11", "V1", "v3", "ocr", "package:", "package:name", "model.pb", ""])
def test_an_unknown_name_lists_the_nearest(config: Path, model: str) -> None:
    with pytest.raises(ConfigError, match="no network") as caught:
        resolve_network(load_settings(), model)
    assert "v1" in caught.value.hint


def test_an_unknown_name_without_a_file_says_how_to_define_one() -> None:
    with pytest.raises(ConfigError, match="no network 'v1'") as caught:
        resolve_network(load_settings(), "v1")
    assert "[networks.v1]" in caught.value.hint
    assert ".onnx" in caught.value.hint


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.pb").write_text("")
    with pytest.raises(ConfigError, match=r"model\.pb is not an \.onnx or \.pt2 file") as caught:
        resolve_network(load_settings(), "model.pb")
    assert "export" in caught.value.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {"shapes": {"x": [1, 0]}},
        {"shapes": {"x": [-1]}},
        {"shapes": {"x": [1.5]}},
        {"trials": 0},
        {"trials": -3},
        {"trials": 2**31},
        {"shapes": {"x": [2**31]}},
        {"time_budget_s": 0},
        {"time_budget_s": float("inf")},
        {"time_budget_s": float("nan")},
    ],
)
def test_wrong_flags(config: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        resolve_network(load_settings(), "v1", **arguments)


def test_settings_import_no_database_and_no_compiler() -> None:
    heavy = ("sqlalchemy", "alembic", "mlflow", "tvm", "numpy", "xgboost", "zstandard")
    program = f"import sys, bcd_registry.settings as s; s.load_settings(); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_settings_are_a_plain_value(config: Path) -> None:
    assert load_settings() == load_settings()
    assert isinstance(load_settings(), Settings)


def test_a_path_that_is_no_utf8_is_one_line(config: Path) -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        resolve_network(load_settings(config=config), "caf\udce9.onnx")


def test_an_empty_target_is_not_the_default(config: Path) -> None:
    assert resolve_network(load_settings(config=config), "net.onnx", target="").target == ""
