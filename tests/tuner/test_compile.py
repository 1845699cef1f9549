"""What a user sees when a network does not compile."""

from __future__ import annotations

from typing import Any

import pytest

from bcd_registry.errors import MeasureError
from bcd_tuner.compile import compile_network
from bcd_tuner.tasks import lower
from tests.tuner.small_networks import conv_network, target


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("Traceback\nInternalError: no such intrinsic"), "no such intrinsic"), (MemoryError(), "MemoryError")],
)
def test_what_the_compiler_throws_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    lowered = lower(conv_network(), target())
    monkeypatch.setattr("tvm.compile", fail)
    with pytest.raises(MeasureError, match=said) as caught:
        compile_network(lowered, {})
    assert "\n" not in caught.value.message
    assert caught.value.hint
