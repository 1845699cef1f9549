from __future__ import annotations

import pytest

from bcd_cli.options import parse_shapes, parse_time
from bcd_registry.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300", 300), ("90s", 90), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("1.5h", 5400), ("2m30", 150), (" 7 ", 7)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "5 minutes", "m", "1m1h", "nan", "inf"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--time-budget") as caught:
        parse_time(text)
    assert caught.value.hint


def test_shapes() -> None:
    assert parse_shapes(["x=1,3,48,192", "a:b=7", "m=2x3"]) == {"x": (1, 3, 48, 192), "a:b": (7,), "m": (2, 3)}
    assert parse_shapes([]) == {}


@pytest.mark.parametrize("texts", [["x"], ["x="], ["=1,2"], ["x=1,,2"], ["x=1,-2"], ["x=a"], ["x=1", "x=2"]])
def test_what_is_not_a_shape(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--shape") as caught:
        parse_shapes(texts)
    assert caught.value.hint
