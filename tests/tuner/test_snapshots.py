from __future__ import annotations

from pathlib import Path

import pytest

from bcd_registry.errors import CostModelError
from bcd_registry.testing.values import make_snapshot
from bcd_tuner.snapshots import read_snapshot, write_snapshot


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    snapshot = make_snapshot()
    write_snapshot(snapshot, tmp_path / "a" / "b")
    assert read_snapshot(tmp_path / "a" / "b") == snapshot


def test_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    write_snapshot(make_snapshot(), tmp_path)
    newer = make_snapshot(booster=b"other", created_at=2000.0)
    write_snapshot(newer, tmp_path)
    assert read_snapshot(tmp_path) == newer


def test_no_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="no cost model"):
        read_snapshot(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", "{", '{"target": "llvm"}', '{"target": "llvm", "created_at": 1.0, "metadata": 7}', "\udcff"],
)
def test_metadata_that_is_none_is_no_model(text: str, tmp_path: Path) -> None:
    write_snapshot(make_snapshot(), tmp_path)
    (tmp_path / "snapshot.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CostModelError, match="no cost model"):
        read_snapshot(tmp_path)
