"""Compiled networks as models in MLflow's registry: no pickle, signature and input example with them."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd_registry.errors import BcdError
from bcd_registry.model import Json
from bcd_registry.model_uri import checked_model_name

from .mlflow_store import (
    MlflowClient,
    MlflowStore,
    ModelSignature,
    Schema,
    TensorSpec,
    mlflow,
    problem_of,
    quiet,
    set_patience,
    using,
)
from .shipped.load import MANIFEST, made_up_inputs
from .tracking import EXPERIMENT

_CODE = Path(__file__).with_name("served_model.py")
_RUNTIME = ("apache-tvm", "apache-tvm-ffi", "numpy")
_MOST_EXAMPLE_VALUES = 1_000_000
_TIMEOUT_S = 60.0
_RETRIES = 2


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a registered model.

    Attributes:
        uri: `models:/NAME/VERSION`.
        example: Whether an input example is with it: one of a million numbers is left out.
    """

    name: str
    version: str
    uri: str
    example: bool

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {"name": self.name, "version": self.version, "uri": self.uri, "example": self.example}


def register_compiled(folder: Path, name: str, uri: str, *, experiment: str = EXPERIMENT) -> Registered:
    """Log a compiled folder as an MLflow pyfunc model, and register it as the next version of `name`.

    Args:
        folder: What `bcd-registry compile` wrote.
        uri: MLflow's tracking URI.

    Raises:
        ConfigError: MLflow takes no such name.
        StoreUnavailable: MLflow does not answer, or fails.
        StoreDenied: It refuses this user.
    """
    checked_model_name(name)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    set_patience(_TIMEOUT_S, _RETRIES)
    with quiet(), using(uri):
        try:
            store = MlflowStore(uri, experiment)
            store.open()
            return _log(folder, name, manifest, store.experiment_id)
        except BcdError:
            raise
        except Exception as error:  # MLflow's errors have no common class
            raise problem_of(error, uri) from error


def _log(folder: Path, name: str, manifest: dict[str, Any], experiment_id: str) -> Registered:
    example = _example(manifest)
    tags = {"bcd.network": manifest["network"], "bcd.version": manifest["version"], "bcd.digest": manifest["digest"]}
    title = f"{manifest['network']} {manifest['version']} compiled"
    run = MlflowClient().create_run(experiment_id, run_name=title, tags={"bcd.kind": "compile", **tags})
    with mlflow.start_run(run_id=run.info.run_id), contextlib.redirect_stderr(io.StringIO()):  # it tells of its success there
        for program, timing in manifest.get("latency_ms", {}).items():
            if isinstance(timing, dict) and isinstance(timing.get("median"), int | float):
                mlflow.log_metric(f"end_to_end_ms.{program}", float(timing["median"]))
        info = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(_CODE),
            artifacts={"compiled": str(folder)},
            signature=_signature(manifest),
            input_example=example,
            pip_requirements=[f"{package}=={metadata.version(package)}" for package in _RUNTIME],
            registered_model_name=name,
            tags=tags,
        )
    version = str(info.registered_model_version)
    return Registered(name, version, f"models:/{name}/{version}", example is not None)


def _signature(manifest: dict[str, Any]) -> ModelSignature:
    outputs = manifest["outputs"]
    named = len(outputs) > 1
    return ModelSignature(
        inputs=Schema([_spec(spec, str(spec["name"])) for spec in manifest["inputs"]]),
        outputs=Schema(
            [_spec(spec, str(spec.get("name") or f"output_{number}") if named else None) for number, spec in enumerate(outputs)]
        ),
    )


def _spec(spec: dict[str, Any], name: str | None) -> TensorSpec:
    return TensorSpec(np.dtype(spec["dtype"]), tuple(spec["shape"]), name)


def _example(manifest: dict[str, Any]) -> dict[str, NDArray[Any]] | None:
    """Random inputs by name; None when they would be megabytes of text."""
    if sum(int(np.prod(spec["shape"])) for spec in manifest["inputs"]) >= _MOST_EXAMPLE_VALUES:
        return None
    return dict(zip((str(spec["name"]) for spec in manifest["inputs"]), made_up_inputs(manifest), strict=True))
