from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from bcd_registry.errors import ConfigError
from bcd_registry.model import NetworkSpec
from bcd_registry.settings import Settings, load_settings, open_registry, resolve_network
from bcd_registry.staleness import OnVersion, StalenessPolicy

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


NEW_VARIABLES = (
    "BCD_DATABASE_URL",
    "BCD_BLOBS_URL",
    "BCD_S3_ENDPOINT_URL",
    "BCD_S3_REGION",
    "BCD_S3_PATH_STYLE",
    "BCD_CONNECT_TIMEOUT_S",
    "BCD_READ_ONLY",
    "BCD_REQUIRE_REGISTRY",
    "BCD_LOCAL_CACHE_MIB",
)


@pytest.fixture(autouse=True)
def no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEW_VARIABLES:
        monkeypatch.delenv(name, raising=False)


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
        ("[staleness]\nmax_age = 90\n", 2, "staleness.max_age = 90 is not a time"),
        ("[staleness]\n\nmax_age = '0d'\n", 3, "staleness.max_age = '0d' is not a time"),
        ("[staleness]\nmax_age = '90'\n", 2, "staleness.max_age = '90' is not a time"),
        ("[staleness]\nmax_age = '-3d'\n", 2, "staleness.max_age = '-3d' is not a time"),
        ("[staleness]\non_version = 'maybe'\n", 2, "staleness.on_version = 'maybe' should be 'prior', 'refuse' or 'accept'"),
        ("[staleness]\nmax_age = '30d'\non_versions = 'prior'\n", 3, "unknown key 'staleness.on_versions'"),
        ("staleness = 3\n", 1, "staleness = 3"),
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
        ("xyz = 1", "known: blobs_url, connect_timeout_s, database_url, defaults, home,"),
        ("blob_url = 'x'", "did you mean 'blobs_url'"),
        ("[networks.v1]\nsource = 'a'\nshapes = { x = [0] }", "a shape is a list of positive integers"),
        ("[staleness]\nmaxage = '3d'", "did you mean 'max_age'?"),
        ("[staleness]\nmax_age = 'soon'", 'it is a time such as "90d", "12h" or "1d12h"'),
        ("[networks.v1]\n", "`source` is a path to an .onnx or .pt2 file"),
    ],
)
def test_a_wrong_file_says_what_to_do(tmp_path: Path, text: str, hint: str) -> None:
    assert hint in failure(tmp_path, text).hint


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", StalenessPolicy()),
        ("[staleness]\n", StalenessPolicy()),
        ("[staleness]\nmax_age = '90d'\n", StalenessPolicy(max_age_s=90 * 86400.0)),
        ("[staleness]\nmax_age = '12h'\non_version = 'refuse'\n", StalenessPolicy(12 * 3600.0, OnVersion.REFUSE)),
        ("staleness = { max_age = ' 1d12h30m5s ', on_version = 'accept' }\n", StalenessPolicy(131405.0, OnVersion.ACCEPT)),
        ("[staleness]\nmax_age = '0.5d'\non_version = 'prior'\n", StalenessPolicy(43200.0, OnVersion.PRIOR)),
    ],
)
def test_when_a_record_is_stale(tmp_path: Path, text: str, policy: StalenessPolicy) -> None:
    (tmp_path / "bcd-registry.toml").write_text(text)
    settings = load_settings()
    assert settings.staleness == policy
    with open_registry(settings) as registry:
        assert registry.policy == policy


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
    heavy = ("sqlalchemy", "alembic", "boto3", "mlflow", "tvm", "numpy", "xgboost", "zstandard")
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


def test_a_registry_of_ones_own_has_no_urls(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.database_url, settings.blobs_url, settings.s3_endpoint_url, settings.s3_region) == (None,) * 4
    assert (settings.s3_path_style, settings.read_only, settings.require_registry) == (False, False, False)
    assert (settings.connect_timeout_s, settings.local_cache_mib) == (5.0, 1024)
    assert settings.catalog_url == f"sqlite:///{tmp_path}/home/catalog.db"
    assert settings.catalog_name == f"{tmp_path}/home/catalog.db"
    assert settings.blobs_name == f"{tmp_path}/home/blobs"


TEAM = """
database_url = "postgresql://tuner@db.example/bcd"
blobs_url = "s3://bucket/team"
s3_endpoint_url = "http://127.0.0.1:8333/"
s3_region = "eu-central-1"
s3_path_style = false
connect_timeout_s = 2
read_only = true
require_registry = true
local_cache_mib = 0
"""


def test_a_team_s_registry_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "bcd-registry.toml").write_text(TEAM)
    settings = load_settings()
    assert settings.database_url == settings.catalog_url == "postgresql+psycopg://tuner@db.example/bcd"
    assert (settings.blobs_url, settings.s3_endpoint_url) == ("s3://bucket/team", "http://127.0.0.1:8333")
    assert (settings.s3_region, settings.s3_path_style, settings.connect_timeout_s) == ("eu-central-1", False, 2.0)
    assert (settings.read_only, settings.require_registry, settings.local_cache_mib) == (True, True, 0)
    assert settings.blobs_name == "s3://bucket/team at http://127.0.0.1:8333"


def test_a_team_s_registry_in_variables_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bcd-registry.toml").write_text(TEAM)
    values = (
        "postgresql+psycopg://other@db/bcd",
        "file:///var/blobs",
        "https://s3.example",
        "us-east-1",
        "on",
        "0.5",
        "no",
        "0",
        "64",
    )
    for name, value in zip(NEW_VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.database_url, settings.blobs_url) == ("postgresql+psycopg://other@db/bcd", "file:///var/blobs")
    assert (settings.s3_endpoint_url, settings.s3_region, settings.s3_path_style) == ("https://s3.example", "us-east-1", True)
    assert (settings.connect_timeout_s, settings.read_only, settings.require_registry) == (0.5, False, False)
    assert settings.local_cache_mib == 64
    flags = load_settings(read_only=True, require_registry=True)
    assert (flags.read_only, flags.require_registry) == (True, True)


def test_the_bucket_is_in_the_path_where_there_is_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_S3_ENDPOINT_URL", "http://127.0.0.1:8333")
    assert load_settings().s3_path_style is True


def test_a_registry_that_is_required_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_REGISTRY", "off")
    with pytest.raises(ConfigError, match="required, and switched off"):
        load_settings(require_registry=True)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgres://u:p%40ss@h/db", "postgresql+psycopg://u:p%40ss@h/db"),
        ("postgresql://u@h:5433/db?sslmode=require", "postgresql+psycopg://u@h:5433/db?sslmode=require"),
        ("postgresql+psycopg://[::1]/db", "postgresql+psycopg://[::1]/db"),
        ("postgresql:///db?host=/var/run/postgresql", "postgresql+psycopg:///db?host=/var/run/postgresql"),
        ("sqlite:////var/team files/catalog.db", "sqlite:////var/team files/catalog.db"),
    ],
)
def test_urls_of_databases(monkeypatch: pytest.MonkeyPatch, given: str, used: str) -> None:
    monkeypatch.setenv("BCD_DATABASE_URL", given)
    assert load_settings().database_url == used


def test_a_relative_sqlite_file_is_below_what_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bcd-registry.toml").write_text('database_url = "sqlite:///team.db"')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert load_settings().database_url == f"sqlite:///{tmp_path}/team.db"
    monkeypatch.setenv("BCD_DATABASE_URL", "sqlite:///team.db")
    assert load_settings().database_url == f"sqlite:///{below}/team.db"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BCD_DATABASE_URL", "db.example/bcd", "has no scheme"),
        ("BCD_DATABASE_URL", "mysql://db/bcd", "has the unknown scheme 'mysql'"),
        ("BCD_DATABASE_URL", "postgresql+psycopg2://db/bcd", "has another driver than postgresql+psycopg"),
        ("BCD_DATABASE_URL", "postgresql://db", "names no database"),
        ("BCD_DATABASE_URL", "postgresql://db/", "names no database"),
        ("BCD_DATABASE_URL", "postgresql:///bcd", "names no host"),
        ("BCD_DATABASE_URL", "postgresql://db:0/bcd", "has no valid host and port"),
        ("BCD_DATABASE_URL", "postgresql://db:99999/bcd", "has no valid host and port"),
        ("BCD_DATABASE_URL", "postgresql://d b/bcd", "has a space"),
        ("BCD_DATABASE_URL", "postgresql://db/bcd\n", "has a character that cannot be printed"),
        ("BCD_DATABASE_URL", "sqlite://", "names no file"),
        ("BCD_DATABASE_URL", "sqlite:///:memory:", "names no file"),
        ("BCD_DATABASE_URL", "sqlite:///a.db?mode=ro", "names no file"),
        ("BCD_BLOBS_URL", "bucket/prefix", "has no scheme"),
        ("BCD_BLOBS_URL", "/var/blobs", "has no scheme"),
        ("BCD_BLOBS_URL", "gs://bucket/prefix", "has the unknown scheme 'gs'; known: s3, file"),
        ("BCD_BLOBS_URL", "s3://", "names no bucket"),
        ("BCD_BLOBS_URL", "s3:///prefix", "names no bucket"),
        ("BCD_BLOBS_URL", "s3://..", "bucket's name"),
        ("BCD_BLOBS_URL", "s3://bucket?versions", "bucket's name"),
        ("BCD_BLOBS_URL", "s3://bucket/a/../../b", "has a prefix with .."),
        ("BCD_BLOBS_URL", "s3://bucket/a/%2E%2e/b", "has a prefix with .."),
        ("BCD_BLOBS_URL", "s3://bucket/./b", "has a prefix with .."),
        ("BCD_BLOBS_URL", "s3://bucket//b", "nothing between two slashes"),
        ("BCD_BLOBS_URL", "s3://bucket/a b", "has a prefix with more than"),
        ("BCD_BLOBS_URL", "s3://bucket/a\\b", "has a prefix with more than"),
        ("BCD_BLOBS_URL", "file://", "names no folder"),
        ("BCD_BLOBS_URL", "file:///", "has a path that is empty"),
        ("BCD_BLOBS_URL", "file://host/blobs", "names no folder"),
        ("BCD_BLOBS_URL", "file:///var/../blobs", "with .. in it"),
        ("BCD_BLOBS_URL", "file:///var/%2e%2e/blobs", "with .. in it"),
        ("BCD_S3_ENDPOINT_URL", "127.0.0.1:8333", "has no scheme"),
        ("BCD_S3_ENDPOINT_URL", "ftp://127.0.0.1", "has the unknown scheme 'ftp'"),
        ("BCD_S3_ENDPOINT_URL", "http://", "names no host"),
        ("BCD_S3_ENDPOINT_URL", "http://h/?x=1", "has more than a host"),
        ("BCD_S3_REGION", "eu central", "should match"),
        ("BCD_S3_PATH_STYLE", "maybe", "boolean"),
        ("BCD_CONNECT_TIMEOUT_S", "0", "greater than 0"),
        ("BCD_CONNECT_TIMEOUT_S", "inf", "less than or equal to 600"),
        ("BCD_CONNECT_TIMEOUT_S", "nan", "= 'nan'"),
        ("BCD_READ_ONLY", "perhaps", "boolean"),
        ("BCD_LOCAL_CACHE_MIB", "-1", "greater than or equal to 0"),
        ("BCD_LOCAL_CACHE_MIB", "1.5", "integer"),
    ],
)
def test_a_wrong_place_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert caught.value.message.startswith(f"{name} = ")
    assert message in caught.value.message
    assert f"correct or unset {name}" in caught.value.hint
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message + caught.value.hint
    monkeypatch.delenv(name)
    key = name.removeprefix("BCD_").lower()
    error = failure(tmp_path, f"workers = 1\n{key} = {json.dumps(value)}\n")
    assert error.message.startswith(f"{tmp_path}/bcd-registry.toml:2: {key} = ")
    assert message in error.message


SECRET = "p@ss/w?rd"
ESCAPED = "p%40ss%2Fw%3Frd"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BCD_DATABASE_URL", f"postgresql://user:{SECRET}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql://user:{ESCAPED}@db"),
        ("BCD_DATABASE_URL", f"mysql://user:{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql+psycopg2://user:{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"user:{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql:/user:{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql://user:{ESCAPED}"),
        ("BCD_DATABASE_URL", f"postgresql:///bcd?user=u&password={ESCAPED}"),
        ("BCD_DATABASE_URL", f"postgresql://db?password={SECRET}"),
        ("BCD_DATABASE_URL", f"postgresql://user:12#{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql://user:[{ESCAPED}@db/bcd"),
        ("BCD_DATABASE_URL", f"postgresql://user:{ESCAPED}\u2100@db/bcd"),
        ("BCD_BLOBS_URL", f"s3://AKIAKEY:{ESCAPED}@bucket/prefix"),
        ("BCD_BLOBS_URL", f"s3://bucket?X-Amz-Signature={ESCAPED}"),
        ("BCD_S3_ENDPOINT_URL", f"http://user:{ESCAPED}@127.0.0.1:8333"),
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    def check(error: ConfigError) -> None:
        shown = "".join(traceback.format_exception(error))
        assert [text for text in (SECRET, ESCAPED, "ss/w", "ss%2Fw", "w?rd", "w%3Frd") if text in shown] == []
        assert "***" in error.message

    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    check(caught.value)
    monkeypatch.delenv(name)
    check(failure(tmp_path, f"{name.removeprefix('BCD_').lower()} = {json.dumps(value)}"))


def test_settings_do_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_DATABASE_URL", f"postgresql://user:{ESCAPED}@db:5432/bcd?sslpassword=other")
    settings = load_settings()
    assert settings.database_url is not None
    assert ESCAPED in settings.database_url
    assert settings.catalog_name == "postgresql+psycopg://user:***@db:5432/bcd?sslpassword=***"
    assert ESCAPED not in f"{settings!r} {settings}"
