from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bcd_cli.main import app

Invoke = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def invoke(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process, in an empty folder, with a home of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("BCD_HOME", "BCD_CONFIG", "BCD_REGISTRY", "BCD_MLFLOW_TRACKING_URI", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, options: Sequence[str] = ()) -> Result:
        return CliRunner().invoke(app, ["--home", str(home), *options, *arguments])

    return run
