from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bcd_cli.main import app

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's own is read."""
    for name in [*filter(lambda name: name.startswith("BCD_"), os.environ), "COLUMNS"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def invoke(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process, in an empty folder, with a home of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, options: Sequence[str] = ()) -> Result:
        return CliRunner().invoke(app, ["--home", str(home), *options, *arguments])

    return run
