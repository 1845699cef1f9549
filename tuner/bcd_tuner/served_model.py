"""What MLflow runs of a compiled network. This file is stored with the model as it is: it needs no bcd-registry there."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class CompiledNetwork(PythonModel):
    """The folder that `bcd-registry compile` wrote, as an MLflow model."""

    def load_context(self, context: PythonModelContext) -> None:
        """Verify the folder and this CPU, and load the library."""
        folder = Path(context.artifacts["compiled"])
        spec = importlib.util.spec_from_file_location("bcd_compiled_network", folder / "load.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError(folder / "load.py")
        loader: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loader)
        self._network = loader.load(folder)
        self._alone = threading.Lock()  # a server has many threads, the network takes one

    def predict(
        self,
        context: PythonModelContext | None,
        model_input: np.ndarray,  # MLflow reads it, and takes no schema from just this one
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Outputs of one call: an array, or arrays by name when there are several.

        Args:
            model_input: Arrays by input name, or the array itself where there is one input.
        """
        wanted, given = self._network.manifest["inputs"], cast(Any, model_input)
        by_name = given if isinstance(given, dict) else {wanted[0]["name"]: given}
        arrays = [np.asarray(by_name[spec["name"]], dtype=spec["dtype"]) for spec in wanted]
        with self._alone:
            outputs = self._network(*arrays)
        names = [str(spec.get("name") or f"output_{number}") for number, spec in enumerate(self._network.manifest["outputs"])]
        return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))


set_model(CompiledNetwork())
