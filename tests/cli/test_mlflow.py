"""`mlflow sync`, networks out of MLflow's model registry, and compiled ones into it, on a real server."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnx
import pytest
from mlflow import MlflowClient

from bcd_registry.errors import ConfigError
from bcd_registry.model_uri import checked_model_name, parse_model_uri
from bcd_registry.settings import load_settings, resolve_network
from bcd_tuner.mlflow_spool import SPOOL_FOLDER, write_entry
from bcd_tuner.mlflow_store import quiet, using
from bcd_tuner.run_log import make_run_log
from tests.cli.conftest import Invoke
from tests.tuner.mlflow_servers import failing_server, unused_port
from tests.tuner.reports import tuned_report
from tests.tuner.small_networks import onnx_model

SERVE_S = 120.0


def _spool(home: Path, run_id: str) -> None:
    write_entry(home / SPOOL_FOLDER, make_run_log(tuned_report(run_id=run_id), params={}, ended_s=1.7e9), {})


def test_sync_logs_what_waits_once(invoke: Invoke, home: Path) -> None:
    assert invoke("mlflow", "sync").stdout == "nothing waits for MLflow\n"
    assert not home.exists()
    _spool(home, "feed0000")
    result = invoke("mlflow", "sync")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("logged 1 run: feed0000\nMLflow:  mlflow ui --backend-store-uri sqlite:///")
    _spool(home, "feed0000")
    assert json.loads(invoke("mlflow", "sync", "--json").stdout) == {
        "schema": 1,
        "logged": [],
        "known": ["feed0000"],
        "busy": [],
        "set_aside": [],
    }


def test_sync_says_what_is_wrong(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spool(home, "feed0001")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", f"http://user:nobodyssecret@127.0.0.1:{unused_port()}")
    result = invoke("mlflow", "sync")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "BCD_MLFLOW_TRACKING_URI" in result.stderr
    with failing_server(401, "UNAUTHENTICATED") as url:
        monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", url)
        result = invoke("mlflow", "sync")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-2:] == [
        f"error: MLflow at {url} refuses this user",
        "hint: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    ]
    assert "nobodyssecret" not in result.stderr
    assert (home / SPOOL_FOLDER / "feed0001").is_dir()


@pytest.fixture(scope="module")
def model(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registered ONNX model with two versions and an alias on the first."""
    name = f"tiny-{uuid.uuid4().hex[:8]}"
    path = onnx_model(tmp_path_factory.mktemp("model") / "conv.onnx")
    with quiet(), using(mlflow_url):
        for _ in range(2):
            with mlflow.start_run():
                mlflow.onnx.log_model(onnx.load(path), name=name, registered_model_name=name, pip_requirements=["onnx"])
        MlflowClient().set_registered_model_alias(name, "champion", "1")
    return name


@pytest.fixture
def served(mlflow_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commands of the test log to the real server."""
    monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", mlflow_url)
    return mlflow_url


@pytest.mark.parametrize(("suffix", "version"), [("/2", "2"), ("@champion", "1"), ("/latest", "2")])
def test_a_registered_model_is_a_network(invoke: Invoke, served: str, model: str, suffix: str, version: str) -> None:
    result = invoke("plan", "--model", f"models:/{model}{suffix}", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["network"], found["version"]) == (model, version)
    assert len(found["tasks"]) >= 1


def test_a_model_of_a_run_is_a_network_and_may_have_a_name_in_the_file(invoke: Invoke, served: str, tmp_path: Path) -> None:
    with quiet(), using(served), mlflow.start_run() as run:
        mlflow.log_artifact(str(onnx_model(tmp_path / "conv.onnx")), artifact_path="exported")
    uri = f"runs:/{run.info.run_id}/exported/conv.onnx"
    (tmp_path / "bcd-registry.toml").write_text(f'[networks.v3]\nsource = "{uri}"\nname = "tiny"\n')
    found = json.loads(invoke("plan", "--model", "v3", "--json").stdout)
    assert (found["network"], found["version"]) == ("tiny", run.info.run_id[:8])
    assert json.loads(invoke("plan", "--model", uri, "--json").stdout)["network"] == "conv"


def test_a_pickled_model_is_refused_with_a_reason(invoke: Invoke, served: str) -> None:
    name = f"pickled-{uuid.uuid4().hex[:8]}"
    with quiet(), using(served), mlflow.start_run():
        from mlflow.pyfunc.model import PythonModel  # it warns when it is imported

        class Pickled(PythonModel):
            def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> Any:
                return model_input

        mlflow.pyfunc.log_model(name=name, python_model=Pickled(), registered_model_name=name, pip_requirements=["numpy"])
    result = invoke("plan", "--model", f"models:/{name}/1")
    assert result.exit_code == 3
    assert "pickle" in result.stderr.splitlines()[-2]
    assert "mlflow.onnx.log_model" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "uri", ["models:/{model}/99", "models:/{model}@nobody", "models:/no-such-model/1", "runs:/" + "0" * 32 + "/x"]
)
def test_a_model_that_is_not_there(invoke: Invoke, served: str, model: str, uri: str, home: Path) -> None:
    result = invoke("tune", "--model", uri.format(model=model))
    assert (result.exit_code, result.stdout) == (3, "")
    assert [line.partition(" ")[0] for line in result.stderr.splitlines()[-2:]] == ["error:", "hint:"]
    assert not home.exists()


def test_a_server_that_is_not_there(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", f"http://user:nobodyssecret@127.0.0.1:{unused_port()}")
    result = invoke("plan", "--model", "models:/net/1")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-2].startswith("error: models:/net/1: MLflow at http://user:***@127.0.0.1:")
    assert "nobodyssecret" not in result.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    "uri",
    ["models:/net", "models://host/net/1", "models:/net/one", "models:/net@", "models:/a/../b", "runs:/short/model", "runs:/"],
)
def test_a_malformed_model_uri(invoke: Invoke, uri: str) -> None:
    result = invoke("plan", "--model", uri)
    assert result.exit_code == 2
    assert "models:/NAME/VERSION" in result.stderr.splitlines()[-1]


def test_names_and_versions_by_default(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, config=None)
    spec = resolve_network(settings, "models:/ocr-det/2")
    assert (spec.label, spec.name, spec.version, spec.source) == ("models:/ocr-det/2", "ocr-det", "2", "models:/ocr-det/2")
    assert parse_model_uri("models:/ocr-det@best").network == ("ocr-det", "")
    for name in ("", "a/b", "a:b", " a", "a@b", ".."):
        with pytest.raises(ConfigError):
            checked_model_name(name)


@pytest.mark.slow
def test_a_compiled_network_is_a_model_that_mlflow_serves(invoke: Invoke, served: str, tmp_path: Path, model: str) -> None:
    from bcd_tuner.shipping import load_compiled

    name, folder = f"compiled-{uuid.uuid4().hex[:8]}", tmp_path / "v2"
    result = invoke("compile", "--model", f"models:/{model}/2", "-o", str(folder), "--register", name, "--json")
    assert result.exit_code == 0, result.stderr
    registered = json.loads(result.stdout)["registered"]
    assert registered == {"name": name, "version": "1", "uri": f"models:/{name}/1", "example": True}
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype("float32")
    (expected,) = load_compiled(folder)(x)

    with quiet(), using(served):
        loaded = mlflow.pyfunc.load_model(registered["uri"])
        for given in (x, {"x": x}):
            np.testing.assert_array_equal(loaded.predict(given), expected)
        assert loaded.metadata.signature.inputs.input_names() == ["x"]
        example = loaded.input_example
        assert example["x"].shape == (1, 3, 8, 8)
        details = MlflowClient().get_model_version(name, "1")
        assert details.tags["bcd.network"] == model

    with _serving(registered["uri"], served, tmp_path / "serve.log") as port:
        status, answer = _request(port, "POST", "/invocations", {"inputs": {"x": x.tolist()}})
    assert status == http.HTTPStatus.OK, answer
    np.testing.assert_allclose(np.asarray(json.loads(answer)["predictions"], dtype="float32"), expected, rtol=1e-6)


@contextmanager
def _serving(model_uri: str, tracking_uri: str, log: Path) -> Iterator[int]:
    """`mlflow models serve` on a free loopback port, ended by its process id."""
    port, path = unused_port(), os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [
        "models",
        "serve",
        "--model-uri",
        model_uri,
        "--env-manager",
        "local",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command],
            env={**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": tracking_uri, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _wait_for(lambda: _answers(port), process, log)
            yield port
        finally:
            _end(process)


def _wait_for(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + SERVE_S
    while not answers():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends_at, log.read_text()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


def _request(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def _answers(port: int) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return _request(port, "GET", "/ping")[0] == http.HTTPStatus.OK
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and what it started, each by its id."""
    import psutil

    processes: Sequence[psutil.Process] = []
    if process.poll() is None:
        processes = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.wait(30)
    for child in processes:
        if child.is_running():
            child.kill()
    psutil.wait_procs(list(processes), timeout=10)
