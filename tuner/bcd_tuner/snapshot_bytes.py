"""Bytes of cost models that anybody may have written: read within fixed bounds, and refused where anything is odd.

numpy allocates what the header of an array states, and xgboost follows the links of a tree wherever they lead. So both are
looked at here first: arrays are taken out of their archive by a strict pattern, and trees are walked before xgboost sees them.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd_registry.errors import CostModelError

MAX_ARRAY_BYTES = 64 << 20
"""Most bytes of all arrays of one snapshot, decompressed: the 20,000 samples of a full one have 24 MB."""

MAX_BOOSTER_BYTES = 64 << 20
"""Largest booster: a full one has 0.3 MB."""

_MAX_MEMBERS = 64
_MAX_TREES = 10_000
_MAX_DEPTH = 16
_NO_PARENT = 2**31 - 1
_MEMBER = b"PK\x01\x02"
_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype><f4|<f8|<U[1-9]\d{0,2})', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d{1,9}),(?: (?P<columns>\d{1,9}))?\), \} *\n",
    re.DOTALL,
)
_NUMBERS: Mapping[bytes, str] = {b"U": ">u1", b"i": ">i1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_ZIP_ERRORS = (
    *(ValueError, KeyError, EOFError, OSError, NotImplementedError, RuntimeError, OverflowError, struct.error),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)

Tree = Mapping[str, Any]


def read_arrays(data: bytes, names: Sequence[str]) -> list[NDArray[Any]]:
    """Arrays of numbers or of ASCII text out of an npz, in the order of the names.

    Raises:
        CostModelError: It is no such archive, one is missing, or they are larger than any that was written here.
    """
    try:
        if data.count(_MEMBER) > _MAX_MEMBERS:
            raise ValueError("it has too many members")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [archive.getinfo(f"{name}.npy") for name in names]
            if sum(member.file_size for member in members) > MAX_ARRAY_BYTES:
                raise ValueError(f"they state more than {MAX_ARRAY_BYTES} bytes")
            return [_array(_member(archive, member)) for member in members]
    except _ZIP_ERRORS as error:
        raise CostModelError(f"the snapshot's samples cannot be read: {error}") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    # Without a size `read` decompresses all that is there, whatever the archive states.
    with archive.open(member) as file:
        data = file.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise ValueError(f"{member.filename} has not the bytes that it states")
    return data


def _array(data: bytes) -> NDArray[Any]:
    header = _ARRAY.match(data)
    if header is None:
        raise ValueError("a member is no array of numbers or text")
    shape = tuple(int(n) for n in (header["rows"], header["columns"]) if n is not None)
    dtype = np.dtype(header["dtype"].decode())
    if math.prod(shape) * dtype.itemsize != len(data) - header.end():
        raise ValueError("an array has not the bytes that it states")
    if dtype.kind == "U" and (np.frombuffer(data, "<u4", offset=header.end()) >= 128).any():
        raise ValueError("a name is not ASCII")
    return np.frombuffer(data, dtype, offset=header.end()).reshape(shape)


def check_booster(data: bytes, n_features: int) -> None:
    """Do nothing when xgboost can load the bytes and predict with them: trees without loops, over so many features.

    Raises:
        CostModelError: They are not, or are of a form that xgboost 3.2 does not write.
    """
    try:
        if len(data) > MAX_BOOSTER_BYTES:
            raise ValueError(f"it has more than {MAX_BOOSTER_BYTES} bytes")
        reader = _Reader(data)
        document = reader.value()
        reader.require_end()
        _check_model(document, n_features)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise CostModelError(f"the snapshot's booster cannot be read: {error}") from error


class _Reader:
    """Universal Binary JSON as xgboost writes it: numbers are big-endian, containers of values say how many they hold."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        marker = self._take(1)
        if marker == b"{":
            return self._object(depth)
        if marker == b"[":
            return self._list(depth)
        if marker == b"S":
            return self._text()
        if marker in (b"T", b"F", b"Z"):
            return {b"T": True, b"F": False, b"Z": None}[marker]
        return self._numbers(marker, 1)[0].item()

    def require_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("something follows it")

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._data[self._at : self._at + 1] != b"}":
            name = self._text()
            if name in found:
                raise ValueError(f"{name[:40]!r} is there twice")
            found[name] = self.value(depth + 1)
        self._take(1)
        return found

    def _list(self, depth: int) -> Any:
        if self._data[self._at : self._at + 1] == b"$":
            self._take(1)
            marker = self._take(1)
            return self._numbers(marker, self._count())
        return [self.value(depth + 1) for _ in range(self._count())]

    def _count(self) -> int:
        if self._take(1) != b"#":
            raise ValueError("a list does not say its length")
        return self._length()

    def _length(self) -> int:
        if self._take(1) != b"L":
            raise ValueError("a length is not a number of 64 bits")
        length = int.from_bytes(self._take(8), "big", signed=True)
        if not 0 <= length <= len(self._data) - self._at:
            raise ValueError(f"a length of {length} is more than there is")
        return length

    def _text(self) -> str:
        return self._take(self._length()).decode("ascii")

    def _numbers(self, marker: bytes, n: int) -> NDArray[Any]:
        dtype = np.dtype(_NUMBERS[marker])
        return np.frombuffer(self._take(n * dtype.itemsize), dtype)

    def _take(self, n: int) -> bytes:
        self._at += n
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[self._at - n : self._at]


def _check_model(document: Any, n_features: int) -> None:
    learner = document["learner"]
    booster, shape, objective = learner["gradient_booster"], learner["learner_model_param"], learner["objective"]
    model = booster["model"]
    trees = model["trees"]
    _require(booster["name"] == "gbtree" and objective["name"] == "reg:squarederror", "it is of another kind")
    _require(shape["num_feature"] == str(n_features), f"it has {shape['num_feature'][:20]} features, {n_features} expected")
    _require((shape["num_class"], shape["num_target"]) == ("0", "1"), "it predicts more than one number")
    _require(math.isfinite(float(shape["base_score"].strip("[]"))), "it begins with no number")
    _require(float(objective["reg_loss_param"]["scale_pos_weight"]) == 1.0, "its loss has weights")
    _require(len(trees) <= _MAX_TREES, "it has too many trees")
    counts = model["gbtree_model_param"]
    _require((counts["num_trees"], counts["num_parallel_tree"]) == (str(len(trees)), "1"), "its trees are not all there")
    _require(list(model["iteration_indptr"]) == list(range(len(trees) + 1)), "its rounds are not of one tree each")
    _require(list(model["tree_info"]) == [0] * len(trees), "its trees are of several groups")
    _require_only(document, "learner", "version")
    _require_only(learner, "gradient_booster", "learner_model_param", "objective")
    _require_only(booster, "model", "name")
    _require_only(model, "gbtree_model_param", "iteration_indptr", "tree_info", "trees")
    _require_only(objective, "name", "reg_loss_param")
    _require(len(document["version"]) == 3, "its version is none")
    for number, tree in enumerate(trees):
        _check_tree(tree, number, n_features)


def _check_tree(tree: Tree, number: int, n_features: int) -> None:
    """Every node but the first is the child of one before it, and asks for a feature that is there."""
    shape = tree["tree_param"]
    n = len(tree["left_children"])
    stated = (shape["num_nodes"], shape["num_feature"], shape["num_deleted"], shape["size_leaf_vector"])
    _require(n > 0 and stated == (str(n), str(n_features), "0", "1") and tree["id"] == number, "a tree is not what it states")
    for name in ("base_weights", "loss_changes", "split_conditions", "sum_hessian"):
        _require(tree[name].shape == (n,) and tree[name].dtype == ">f4", "a tree has not a number for each node")
        _require(bool(np.isfinite(tree[name]).all()), "a tree holds what is no number")
    for name in ("left_children", "right_children", "parents", "split_indices"):
        _require(tree[name].shape == (n,) and tree[name].dtype == ">i4", "a tree has not a link for each node")
    for name in ("default_left", "split_type"):
        _require(tree[name].shape == (n,) and tree[name].dtype == ">u1", "a tree has not a flag for each node")
    _require(not tree["split_type"].any() and int(tree["default_left"].max()) <= 1, "a tree splits by categories")
    left, right = tree["left_children"].astype(np.int64), tree["right_children"].astype(np.int64)
    inner = np.flatnonzero(left != -1)
    _require(bool((right[left == -1] == -1).all()), "a node has one child")
    children = np.concatenate([left[inner], right[inner]])
    _require(bool((np.sort(children) == np.arange(1, n)).all()) if len(children) == n - 1 else False, "a tree is none")
    parents = np.full(n, _NO_PARENT, dtype=np.int64)
    parents[children] = np.concatenate([inner, inner])
    _require(bool((parents[1:] < np.arange(1, n)).all()), "a tree has a loop")
    _require(bool((parents == tree["parents"]).all()), "the parents of a tree are not its own")
    features = tree["split_indices"]
    _require(bool(((features >= 0) & (features < n_features)).all()), "a tree asks for a feature that is not there")
    _require_only(
        tree,
        *("base_weights", "loss_changes", "split_conditions", "sum_hessian", "left_children", "right_children", "parents"),
        *("split_indices", "default_left", "split_type", "id", "tree_param"),
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _require_only(found: Mapping[str, Any], *names: str) -> None:
    """Whatever else is in it is empty: what another release adds must say nothing."""
    for name, value in found.items():
        _require(name in names or _is_empty(value), f"{name[:40]!r} is not known")


def _is_empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_empty(v) for v in value.values())
    return hasattr(value, "__len__") and len(value) == 0
