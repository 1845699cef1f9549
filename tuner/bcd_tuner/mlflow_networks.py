"""Networks out of MLflow's model registry. Nothing of a model is run or unpickled: only its file is taken."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bcd_registry.errors import NetworkError
from bcd_registry.model import NetworkSpec
from bcd_registry.model_uri import ModelUri, parse_model_uri

from .mlflow_store import MlflowClient, MlflowException, Model, mlflow, one_line, problem_of, quiet, set_patience, using

_MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND")
_SUFFIXES = (".onnx", ".pt2")
_TIMEOUT_S = 60.0
_RETRIES = 2
_HOW_TO_LOG = "log it with mlflow.onnx.log_model, or with mlflow.pytorch.log_model(..., serialization_format='pt2')"


def fetch_network(spec: NetworkSpec, uri: str, folder: Path) -> NetworkSpec:
    """Download the model that the spec's source names; the spec with the file, and with its version where it had none.

    Args:
        uri: MLflow's tracking URI.
        folder: What is downloaded lies below it afterwards; it is made.

    Raises:
        ConfigError: The source has another form than MLflow's.
        NetworkError: It is not there, is neither ONNX nor an exported torch program, or MLflow cannot be used.
    """
    wanted = parse_model_uri(spec.source)
    set_patience(_TIMEOUT_S, _RETRIES)
    with quiet(), using(uri):
        try:
            found, version = _locate(wanted)
            file = _download(found, folder)
        except NetworkError:
            raise
        except Exception as error:  # MLflow's errors have no common class
            raise _network_error(error, wanted, uri) from error
    return dataclasses.replace(spec, version=spec.version or version, file=str(file))


def _locate(wanted: ModelUri) -> tuple[str, str]:
    """The URI of one unmoving version, and that version."""
    if wanted.run_id:
        return wanted.text, wanted.network[1]
    client = MlflowClient()
    if wanted.alias:
        version = str(client.get_model_version_by_alias(wanted.name, wanted.alias).version)
    elif wanted.version == "latest":
        versions = client.search_model_versions(f"name = '{wanted.name}'", order_by=["version_number DESC"], max_results=1)
        if not versions:
            raise NetworkError(f"MLflow has no model called {wanted.name!r}", hint="its page Models lists those that it has")
        version = str(versions[0].version)
    else:
        version = str(client.get_model_version(wanted.name, wanted.version).version)
    return f"models:/{wanted.name}/{version}", version


def _download(uri: str, folder: Path) -> Path:
    """The file to import: what the URI names itself, or what the model's description names."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="model-", dir=folder))
    if uri.endswith(_SUFFIXES):
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder)))
    description = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/MLmodel", dst_path=str(folder)))
    flavors: Mapping[str, Mapping[str, Any]] = Model.load(str(description)).flavors
    inner = _file_of(uri, flavors)
    root = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder / "model"))).resolve()
    file = (root / inner).resolve()
    if not (file.is_relative_to(root) and file.is_file()):
        raise NetworkError(f"{uri} has no file {inner}", hint=_HOW_TO_LOG)
    return file


def _file_of(uri: str, flavors: Mapping[str, Mapping[str, Any]]) -> PurePosixPath:
    """Where the model's file lies in its folder."""
    if "onnx" in flavors:
        return PurePosixPath(flavors["onnx"].get("data", "model.onnx"))
    if "pytorch" in flavors:
        data = PurePosixPath(flavors["pytorch"].get("model_data", "data"))
        names = [file.path for file in mlflow.artifacts.list_artifacts(artifact_uri=f"{uri}/{data}")]
        exported = [PurePosixPath(name).name for name in names if name.endswith(".pt2")]
        if exported:
            return data / exported[0]
    kinds = sorted(name for name in flavors if name != "python_function") or ["python_function"]
    raise NetworkError(
        f"{uri} is a {'/'.join(kinds)} model, kept as a pickle or as code: loading it could run anything", hint=_HOW_TO_LOG
    )


def _network_error(error: Exception, wanted: ModelUri, uri: str) -> NetworkError:
    if isinstance(error, MlflowException) and error.error_code in _MISSING:
        hint = "`mlflow` lists them on its page Models" if wanted.name else "the path is relative to the run's artifacts"
        return NetworkError(f"{wanted.text} is not in MLflow at {one_line(uri)}: {one_line(error)}", hint=hint)
    problem = problem_of(error, uri)
    return NetworkError(f"{wanted.text}: {problem.message}", hint=problem.hint)
