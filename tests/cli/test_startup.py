"""What a user waits for before anything happens, and what each layer may import."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from bcd_cli.main import EXIT_CODES, app

HELP_S = 0.5
HEAVY = ("alembic", "matplotlib", "mlflow", "numpy", "onnx", "pydantic_settings", "scipy", "sqlalchemy", "tvm", "xgboost")


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_answers_in_half_a_second() -> None:
    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bcd_cli", "--help"], capture_output=True, check=True)
        return time.perf_counter() - began

    # the best of several: the figure is about our imports, not about what else the machine does
    assert min(seconds() for _ in range(5)) < HELP_S


def test_help_imports_nothing_heavy() -> None:
    loaded = _python("import sys, bcd_cli.main; print(*sys.modules)").split()
    assert not {name for name in HEAVY if name in loaded}


def test_registry_imports_where_compiler_tracker_and_cost_model_are_not_installed() -> None:
    forbidden = ("tvm", "tvm_ffi", "mlflow", "xgboost", "onnx", "onnxruntime", "matplotlib", "typer", "rich")
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in forbidden)
    modules = "bcd_registry, bcd_registry.registry, bcd_registry.settings, bcd_registry.catalog.sql, bcd_registry.blobs.local"
    assert _python(f"import sys; {blocked}; import {modules}; print('fine')").strip() == "fine"


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.split()) == (0, ["bcd-registry", version("bcd-registry")])


def test_help_lists_the_exit_codes() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout.partition("Exit codes:")[2]
    assert [int(line.split()[0]) for line in listed.split("\n") if line.strip()] == list(EXIT_CODES)


@pytest.mark.parametrize("arguments", [["tune"], ["frobnicate"], ["tune", "--model", "x", "--trials", "many"]])
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
