"""The canary's benchmark on a tiny network, so that it cannot rot. No assertion is about noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.registry import Registry
from tests.tuner.published import measure_network

from .canary_noise import Alarms, check_often, describe, judged


@pytest.mark.slow
def test_checks_are_repeated_until_there_are_enough(tmp_path: Path) -> None:
    published = measure_network(tmp_path)
    said: list[str] = []
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        registry = Registry(catalog, MemoryBlobs())
        published.fill(registry)
        reports = check_often(published.spec, registry, 4, said.append)
        assert registry.list_events() == []
    assert len(reports) == len(said) == 2
    assert len(judged(reports)) == 6
    lines = describe(reports)
    assert "of 6" in lines[0]
    assert "deviation" in lines[-1]


@pytest.mark.parametrize(
    ("n_alarms", "n", "low", "high"), [(0, 500, 0.0, 0.0074), (5, 500, 0.0033, 0.0232), (0, 0, 0.0, 1.0), (3, 3, 0.2924, 1.0)]
)
def test_intervals_are_exact(n_alarms: int, n: int, low: float, high: float) -> None:
    found = Alarms.of(n_alarms, n)
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)
    assert str(found).startswith(f"{n_alarms} of {n}: ")
