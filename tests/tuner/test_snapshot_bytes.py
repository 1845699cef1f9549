"""Cost models that somebody hostile wrote: neither numpy nor xgboost sees them."""

from __future__ import annotations

import functools
import io
import re
import zipfile
from typing import Any

import numpy as np
import pytest
import xgboost

from bcd_registry.errors import CostModelError
from bcd_tuner.snapshot_bytes import MAX_ARRAY_BYTES, check_booster, read_arrays

WIDTH = 5


def npz(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    "array", [np.zeros((4, 3), dtype=np.float32), np.arange(5.0), np.array(["a", "bc"]), np.zeros((0, 3), dtype=np.float32)]
)
def test_arrays_are_read_as_they_were_written(array: Any) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, one=array, other=np.ones(2))
    found, other = read_arrays(stream.getvalue(), ["one", "other"])
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert np.array_equal(other, np.ones(2))


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(b"", id="empty"),
        pytest.param(npy(np.zeros(4)).replace(b"(4,)", b"(999999999,)"), id="states more than there is"),
        pytest.param(npy(np.zeros(4)).replace(b"(4,)", b"(-4,)"), id="a negative length"),
        pytest.param(npy(np.zeros(4)).replace(b"(4,)", b"(" * 400), id="nested"),
        pytest.param(npy(np.zeros(4)).replace(b"<f8", b"|O8"), id="objects"),
        pytest.param(npy(np.zeros(4)).replace(b"False", b"True "), id="order"),
        pytest.param(npy(np.zeros(4)) + b"\0", id="more than it states"),
        pytest.param(npy(np.array([0x110000], dtype=np.uint32)).replace(b"<u4", b"<U1"), id="no character"),
        pytest.param(npy(np.array(["é"])), id="not ASCII"),
        pytest.param(npy(np.zeros((2, 2, 2))), id="rank"),
    ],
)
def test_arrays_that_are_none_are_refused(member: bytes) -> None:
    with pytest.raises(CostModelError, match="samples cannot be read"):
        read_arrays(npz(one=member), ["one"])


def test_an_archive_that_inflates_is_refused_before_it_does() -> None:
    bomb = npz(one=npy(np.zeros(MAX_ARRAY_BYTES // 8)))
    assert len(bomb) < MAX_ARRAY_BYTES / 500
    with pytest.raises(CostModelError, match="state more than"):
        read_arrays(bomb, ["one"])


def test_an_archive_that_inflates_to_more_than_it_states_is_refused() -> None:
    bomb = npz(one=npy(np.zeros(1 << 20)))
    size = (128 + (8 << 20)).to_bytes(4, "little")
    assert bomb.count(size) == 2
    with pytest.raises(CostModelError, match="samples cannot be read"):
        read_arrays(bomb.replace(size, (100).to_bytes(4, "little")), ["one"])


def test_an_archive_of_very_many_members_is_refused() -> None:
    with pytest.raises(CostModelError, match="too many"):
        read_arrays(npz(**{f"m{i}": b"" for i in range(100)}), ["m1"])


@functools.cache
def booster_bytes(rounds: int = 3, width: int = WIDTH, **params: Any) -> bytes:
    rng = np.random.default_rng(0)
    matrix = xgboost.DMatrix(rng.random((200, width)), label=rng.random(200))
    return bytes(xgboost.train({"max_depth": 4, "verbosity": 0, **params}, matrix, num_boost_round=rounds).save_raw("ubj"))


def test_boosters_of_ours_pass() -> None:
    check_booster(booster_bytes(), WIDTH)
    check_booster(booster_bytes(rounds=60, max_depth=6, tree_method="hist", subsample=0.9, colsample_bytree=0.5), WIDTH)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="open"),
        pytest.param(b"[" * 1000, id="nested"),
        pytest.param(b"{}", id="nothing in it"),
        pytest.param(booster_bytes()[:-1], id="cut"),
        pytest.param(booster_bytes() + b"}", id="longer"),
        pytest.param(booster_bytes(width=WIDTH + 1), id="width"),
        pytest.param(booster_bytes(booster="dart"), id="dart"),
        pytest.param(booster_bytes(booster="gblinear"), id="linear"),
        pytest.param(booster_bytes(objective="binary:logistic"), id="objective"),
        pytest.param(booster_bytes(num_parallel_tree=2), id="forest"),
    ],
)
def test_boosters_of_another_kind_are_refused(data: bytes) -> None:
    with pytest.raises(CostModelError, match="booster cannot be read"):
        check_booster(data, WIDTH)


def changed(name: str, dtype: str, place: int, value: float) -> bytes:
    """The booster with one number of an array of its first tree replaced."""
    data = bytearray(booster_bytes())
    found = re.search(rb"L" + len(name).to_bytes(8, "big") + name.encode() + rb"\[\$.#L.{8}", bytes(data), re.DOTALL)
    assert found is not None
    number = np.array([value], dtype=dtype).tobytes()
    start = found.end() + place * len(number)
    data[start : start + len(number)] = number
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "dtype", "place", "value"),
    [
        ("left_children", ">i4", 0, 0),
        ("left_children", ">i4", 0, 2**30),
        ("left_children", ">i4", 1, 1),
        ("right_children", ">i4", 0, -7),
        ("right_children", ">i4", 0, -1),
        ("split_indices", ">i4", 0, WIDTH),
        ("split_indices", ">i4", 0, -1),
        ("split_conditions", ">f4", 0, np.nan),
        ("base_weights", ">f4", 0, np.inf),
        ("parents", ">i4", 1, 5),
        ("split_type", ">u1", 0, 1),
        ("default_left", ">u1", 0, 9),
    ],
)
def test_trees_that_lead_nowhere_are_refused(name: str, dtype: str, place: int, value: float) -> None:
    with pytest.raises(CostModelError, match="booster cannot be read"):
        check_booster(changed(name, dtype, place, value), WIDTH)
