"""What the registry's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.registry import Registry

pytest.register_assert_rewrite(
    "bcd_registry.testing.blob_contract",
    "bcd_registry.testing.catalog_contract",
    "bcd_registry.testing.catalog_machine",
    "bcd_registry.testing.history_contract",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the developer's own is read; nothing is written to his data folder."""
    for name in [name for name in os.environ if name.startswith("BCD_") and not name.startswith("BCD_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BCD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as opened:
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
def registry(catalog: SqlCatalog, blobs: LocalBlobs) -> Registry:
    return Registry(catalog, blobs, clock=lambda: 5000.0)
