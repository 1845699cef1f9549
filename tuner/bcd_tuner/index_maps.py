"""Index maps in traces: TVM stores them as its own object graph in JSON, which changes between releases.

TVM reads such a graph without looking at it: a wrong link ends the process. So it is read here, node by node, and an index map
is made of it by this TVM's own constructors. That also takes maps of TVM 0.26, whose expressions had other names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Var
from tvm.tirx import IndexMap, IntImm

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Json

_MAX_NODES = 2000
_MAX_INDICES = 64
_DTYPES = ("int32", "int64")
_BINARY: Mapping[str, Any] = {
    "Add": tirx.Add,
    "Sub": tirx.Sub,
    "Mul": tirx.Mul,
    "Min": tirx.Min,
    "Max": tirx.Max,
    "FloorDiv": tirx.FloorDiv,
    "FloorMod": tirx.FloorMod,
}
_DIVISIONS = ("FloorDiv", "FloorMod")


def current_index_map(text: Json) -> str:
    """The same index map in this TVM's own JSON.

    Raises:
        CorruptBlob: It is none, or of another form than TVM 0.26 and 0.27 write.
    """
    try:
        graph = json.loads(text)
        nodes = graph["nodes"]
        if len(nodes) > _MAX_NODES or graph["root_index"] != len(nodes) - 1:
            raise ValueError("it is too large, or does not end with its root")
        found = _Reader(nodes).read()
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptBlob(f"the trace does not replay: an index map in it cannot be read: {error!s:.100}") from error
    return str(tvm.ir.save_json(found))


class _Reader:
    """Makes each node of what came before it."""

    def __init__(self, nodes: list[Json]) -> None:
        self._nodes = nodes
        self._made: list[Any] = []
        self._named: dict[int, Any] = {}
        self._linked_numbers = any(node["type"] == "int" for node in nodes)  # 0.26 has them in place
        self._makers: dict[str, Callable[[Json], Any]] = {
            "None": _nothing,
            "int": _number,
            "ffi.String": _text,
            "ffi.Array": lambda data: [self._at(i) for i in data],
            "ir.PrimType": lambda data: _dtype(data["dtype"]),
            "ir.Var": lambda data: Var(_text(self._at(data["name"])), _dtype(self._at(data["ty"]))),
            "ir.IntImm": lambda data: IntImm(_dtype(self._at(data["ty"])), self._value(data["value"])),
            "Cast": lambda data: tirx.Cast(_dtype(self._at(data["ty"])), self._expression(data["value"])),
            "IndexMap": self._index_map,
        }

    def read(self) -> Any:
        for node in self._nodes:
            kind = str(node["type"])
            short = kind.partition(".")[2] if kind.startswith(("prim.", "tirx.")) else kind
            data = node.get("data")
            self._made.append(self._binary(short, data) if short in _BINARY else self._makers[short](data))
        root = self._made[-1]
        if not isinstance(root, IndexMap):
            raise TypeError("its root is no index map")
        return root

    def _at(self, place: Json) -> Any:
        if type(place) is not int or not 0 <= place < len(self._made):
            raise IndexError("a link leads nowhere")
        return self._made[place]

    def _value(self, value: Json) -> int:
        return _number(self._at(value) if self._linked_numbers else value)

    def _expression(self, place: Json) -> Any:
        found = self._at(place)
        if not tvm.ir.is_prim_expr(found):
            raise TypeError("an operand is no expression")
        return found

    def _binary(self, name: str, data: Json) -> Any:
        a, b = self._expression(data["a"]), self._expression(data["b"])
        if a.ty != b.ty or (name in _DIVISIONS and not (isinstance(b, IntImm) and int(b.value) > 0)):
            raise ValueError(f"{name} of what it does not take")
        return _BINARY[name](a, b)

    def _index_map(self, data: Json) -> Any:
        initial, final = self._at(data["initial_indices"]), self._at(data["final_indices"])
        inverse = self._at(data["inverse_index_map"])
        if not (isinstance(initial, list) and isinstance(final, list) and 0 < len(final) <= _MAX_INDICES):
            raise TypeError("it maps no indices")
        if not all(isinstance(v, Var) for v in initial) or not (inverse is None or isinstance(inverse, IndexMap)):
            raise TypeError("it maps what is no index")
        if not all(tvm.ir.is_prim_expr(e) for e in final):
            raise TypeError("it maps to what is no expression")
        free = {v for e in final for v in tirx.analysis.undefined_vars(e)} - set(initial)
        if free:
            raise ValueError("it uses an index that is not its own")
        return IndexMap(initial, final, inverse)


def _nothing(value: Json) -> None:
    if value is not None:
        raise TypeError("nothing is something")


def _number(value: Json) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise ValueError("a number is none, or too large")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str) or len(value) > _MAX_INDICES:
        raise TypeError("a name is none, or too long")
    return value


def _dtype(value: Json) -> str:
    if value not in _DTYPES:
        raise TypeError("a type is none of an index")
    return str(value)
