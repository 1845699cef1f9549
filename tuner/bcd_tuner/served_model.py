"""What MLflow runs of a compiled network. This file is stored with the model as it is: it needs no bcd-registry there."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class CompiledNetwork(PythonModel):
    """The folder that `bcd-registry compile` wrote, as an MLflow model.

    Its methods have no type hints: MLflow would read them as a schema.
    """

    def load_context(self, context):  # type: ignore[no-untyped-def]
        """Verify the folder and this CPU, and load the library."""
        folder = Path(context.artifacts["compiled"])
        spec = importlib.util.spec_from_file_location("bcd_compiled_network", folder / "load.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError(folder / "load.py")
        loader: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loader)
        self._network = loader.load(folder)
        self._alone = threading.Lock()  # a server has many threads, the network takes one

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Outputs of one call: an array, or arrays by name when there are several.

        Args:
            model_input: Arrays by input name, or the array itself where there is one input.
        """
        wanted = self._network.manifest["inputs"]
        given = model_input if isinstance(model_input, dict) else {wanted[0]["name"]: model_input}
        arrays = [np.asarray(given[spec["name"]], dtype=spec["dtype"]) for spec in wanted]
        with self._alone:
            outputs = self._network(*arrays)
        names = [str(spec.get("name") or f"output_{number}") for number, spec in enumerate(self._network.manifest["outputs"])]
        return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))


set_model(CompiledNetwork())
