"""The options and variables of a team's registry, as commands see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcd_cli.state import State
from bcd_registry.settings import load_settings, open_registry
from tests.cli.conftest import Invoke


def test_flags_go_before_variables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_READ_ONLY", "no")
    monkeypatch.setenv("BCD_REQUIRE_REGISTRY", "no")
    settings = State(home=home, read_only=True, require_registry=True).settings
    assert (settings.read_only, settings.require_registry) == (True, True)
    settings = State(home=home).settings
    assert (settings.read_only, settings.require_registry) == (False, False)


def test_variables_hold_where_no_flag_is_given(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_READ_ONLY", "yes")
    monkeypatch.setenv("BCD_REQUIRE_REGISTRY", "yes")
    settings = State(home=home).settings
    assert (settings.read_only, settings.require_registry) == (True, True)


def test_read_only_refuses_to_write(invoke: Invoke, home: Path) -> None:
    with open_registry(load_settings(home=home)):
        pass
    result = invoke("db", "upgrade", options=["--read-only"])
    assert result.exit_code == 9
    assert result.stderr.splitlines()[0].startswith("error: the registry is read-only")
    assert "--read-only" in result.stderr.splitlines()[1]
    assert invoke("networks", "list", options=["--read-only"]).exit_code == 0


def test_a_required_registry_that_is_not_there(invoke: Invoke) -> None:
    result = invoke("networks", "list", options=["--read-only", "--require-registry"])
    assert result.exit_code == 4
    assert "there is no catalog" in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BCD_DATABASE_URL", "user:nobodyssecret@db/bcd"),
        ("BCD_DATABASE_URL", "mysql://user:nobodyssecret@db/bcd"),
        ("BCD_BLOBS_URL", "s3://bucket/../other"),
        ("BCD_BLOBS_URL", "s3://key:nobodyssecret@bucket"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--debug"]])
def test_a_wrong_url_is_a_line_and_a_hint(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str, value: str, options: list[str]
) -> None:
    monkeypatch.setenv(name, value)
    result = invoke("networks", "list", options=options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.partition(" ")[0] for line in result.stderr.splitlines()[-2:]] == ["error:", "hint:"]
    assert name in result.stderr
    assert "nobodyssecret" not in result.stderr


def test_a_server_that_does_not_answer(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_DATABASE_URL", "postgresql://user:nobodyssecret@127.0.0.1:1/bcd")
    result = invoke("networks", "list", options=["--debug"])
    assert result.exit_code == 4
    assert "127.0.0.1:1" in result.stderr
    assert "nobodyssecret" not in result.stderr
