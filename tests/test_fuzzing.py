"""Some hundred hostile inputs of every format, with a fixed seed: `python -m tests.fuzzing` reads more of them."""

from __future__ import annotations

import pytest

from tests.fuzzing.hunt import ALL, hunt

N_INPUTS = {"trace": 300, "database": 40}


@pytest.mark.parametrize("name", ALL)
def test_hostile_bytes_are_refused_or_verify(name: str) -> None:
    found = hunt(name, N_INPUTS.get(name, 200), seed=1)
    assert found.is_sound, "\n".join([found.HEADING, found.line(), *found.findings])
    assert found.counts["refused"] > 20
    assert found.counts["inputs"] == N_INPUTS.get(name, 200)
