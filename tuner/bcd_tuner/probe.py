"""What `doctor` asks of the compiler, in a process of its own: a version that crashes then kills only that process.

    python -m bcd_tuner.probe versions | round-trip | kernel

Prints one JSON object on its last line of stdout. Exit status 1 with one line on stderr when the question cannot be answered.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARIES = ("tvm", "tvm_ffi", "numpy", "scipy", "xgboost", "onnx", "onnxruntime", "mlflow", "sqlalchemy")
"""Asked for their own `__version__`: package metadata can lie about what is imported."""


def read_versions() -> dict[str, Any]:
    """Version of each library as imported; None for one that cannot be."""
    versions: dict[str, Any] = {}
    for name in LIBRARIES:
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except Exception as error:  # noqa: BLE001 - a broken library is an answer here, not a failure
            versions[name] = None
            versions[f"{name}_error"] = " ".join(str(error).split())[:200]
    return versions


def round_trip() -> dict[str, Any]:
    """Serialise a module and read it back, as workers and records do."""
    import tvm
    import tvm_ffi

    module = _tiny_module()
    text = tvm.ir.save_json(module)
    return {"equal": bool(tvm_ffi.structural_equal(module, tvm.ir.load_json(text))), "n_bytes": len(text)}


def build_and_run() -> dict[str, Any]:
    """Compile a kernel for this CPU, link it, load it and compare what it computes."""
    import numpy as np
    import tvm
    from tvm.support import cc

    compiler = cc.get_cc()
    if compiler is None:
        return {"compiler": None, "correct": False}
    executable = tvm.compile(_tiny_module(), target=tvm.target.Target({"kind": "llvm"}))
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "kernel.so"))
        executable.export_library(library)
        x = np.arange(16, dtype="float32")
        given, got = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
        tvm.runtime.load_module(library)["main"](given, got)
        correct = bool(np.array_equal(got.numpy(), 2 * x + 1))
    return {"compiler": compiler, "compiler_version": _compiler_version(compiler), "correct": correct}


def _tiny_module() -> Any:
    import tvm
    from tvm import te

    x = te.placeholder((16,), name="x")
    y = te.compute((16,), lambda i: x[i] * 2.0 + 1.0, name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def _compiler_version(compiler: str) -> str:
    answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=20)
    return answer.stdout.partition("\n")[0].strip()


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "versions": read_versions,
    "round-trip": round_trip,
    "kernel": build_and_run,
}


def main(arguments: list[str]) -> int:
    """Answer one question on stdout."""
    try:
        answer = PROBES[arguments[0]]()
    except Exception as error:  # noqa: BLE001 - the parent process shows the line
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
        return 1
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
