"""TIR -> canonical description -> keys.

A description is plain JSON made in one walk over a module with one function. Variables and buffers are numbered in the
order of their first use; no name, address or span is in it. The workload key hashes the description as it is, the cluster
signature hashes it without extents, shapes and constants, and the anchor signature does the same to the main block alone.

Every node is a list that begins with its kind. Numbers that a cluster does not keep are tagged, so that one function can
take them out: `["i", dtype, value]`, `["f", dtype, value]` and `["shape", ...]`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Call, IRModule, Op, StringImm, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlockRealize
from tvm.tirx.buffer import BufferType

from bcd_registry.errors import NetworkError
from bcd_registry.model import KEY_SCHEME, Json, Workload, canonical_json, digest_of

_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
    *(tirx.expr.LShift, tirx.expr.RShift, tirx.expr.BitwiseAnd, tirx.expr.BitwiseOr, tirx.expr.BitwiseXor),
)
_OPERANDS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(_BINARY, ("a", "b")),
    tirx.Not: ("a",),
    tirx.expr.BitwiseNot: ("a",),
    tirx.Select: ("condition", "true_value", "false_value"),
    tirx.Ramp: ("base", "stride", "lanes"),
    tirx.Broadcast: ("value", "lanes"),
}
"""Expressions that are their kind and their operands; the operands tell the dtype."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "call"})
_CONDITIONALS = frozenset({"prim.if_then_else", "tirx.if_then_else"})  # the last two operands are the values
_RENAMED = {f"tirx.{name}": f"prim.{name}" for name in ("ceil", "clz", "if_then_else", "likely", "log2")}
"""Operators that TVM 0.27 moved to another dialect: under either name they are one, and have one key."""

_UNKNOWN = "this operator cannot be given a key yet: please report it with the network"
_IGNORED_ATTRS = frozenset({"global_symbol", "op_pattern", "layout_free_buffers", "target"})


@dataclass(frozen=True, slots=True)
class Description:
    """What a module computes, without names.

    Attributes:
        document: `scheme`, `params` (buffer numbers), `buffers`, `layout_free` (positions), `attrs`, `body`.
        main_block: The main block alone, with its own numbering: `buffers`, `body`.
        block_names: The blocks' names in order, the root left out; for people only.
    """

    document: Json
    main_block: Json
    block_names: tuple[str, ...]


def describe(mod: IRModule) -> Description:
    """Walk the module's only function once.

    Raises:
        NetworkError: A node that the description does not know: leaving it out would give two workloads one key.
    """
    function = _only_function(mod)
    walk = _Walk()
    params = [walk.parameter(param) for param in function.params]
    body = walk.statement(function.body)
    attrs = dict(function.attrs.items()) if function.attrs is not None else {}
    document = {
        "scheme": KEY_SCHEME,
        "params": params,
        "buffers": walk.buffers,
        "layout_free": sorted(int(i) for i in attrs.get("layout_free_buffers", ())),
        "attrs": {name: _attribute(value) for name, value in attrs.items() if name not in _IGNORED_ATTRS},
        "body": body,
    }
    alone = _Walk()
    main = alone.block(walk.blocks[_main_block(body)]) if walk.blocks else body
    names = tuple(str(block.name_hint) for block in walk.blocks)
    return Description(document, {"buffers": alone.buffers, "body": main}, tuple(n for n in names if n != "root"))


def workload_of(mod: IRModule, op: str = "") -> Workload:
    """The workload of a module with one function.

    Args:
        op: A label for people; by default made of the block names.

    Raises:
        NetworkError: See `describe`.
    """
    found = describe(mod)
    text = canonical_json(found.document)
    return Workload(
        key=digest_of(str(KEY_SCHEME), "workload", text),
        anchor=digest_of(str(KEY_SCHEME), "anchor", canonical_json(erase(found.main_block))),
        op=op or "+".join(found.block_names),
        description=text,
        anchor_extents=tuple(_extents(found.main_block["body"])),
        **_following(found.document),
    )


def contradiction(workload: Workload) -> str:
    """What of a workload does not follow from its description; empty when all does. What its main block is cannot be told."""
    try:
        following = _following(json.loads(workload.description))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return "its description is of no workload"
    wrong = [name for name, value in following.items() if getattr(workload, name) != value]
    return f"its description says another {wrong[0]}" if wrong else ""


def _following(document: Json) -> dict[str, Json]:
    """Fields of a workload that follow from the document of its description."""
    buffers = document["buffers"]
    return {
        "cluster": digest_of(str(KEY_SCHEME), "cluster", canonical_json(erase(document))),
        "extents": tuple(_extents(document["body"])),
        "flops": sum(flops for flops, _ in _leaf_blocks(document["body"])),
        "bytes_moved": float(sum(_n_bytes(buffers[p[1]]) for p in document["params"] if p[0] == "buffer")),
    }


def erase(node: Json) -> Json:
    """The description without extents, shapes and constants; truth values stay."""
    if isinstance(node, dict):
        return {name: erase(value) for name, value in node.items()}
    if not isinstance(node, list) or not node:
        return node
    if node[0] == "f" or (node[0] == "i" and node[1] != "bool"):
        return node[:2]
    if node[0] == "shape":
        return ["shape", len(node) - 1]
    return [erase(value) for value in node]


def integer_bounds(mod: IRModule) -> dict[int, int]:
    """Exclusive upper bounds of the valid values of integer parameters that index into other buffers.

    Returns:
        The bound by the parameter's position; a parameter that indexes nothing is not in it.
    """
    document = describe(mod).document
    buffers, stores, bounds = document["buffers"], list(_nodes(document["body"], "store")), dict[int, int]()
    for access in (*_nodes(document["body"], "load"), *stores):
        for index, extent in zip(access[2], buffers[access[1]][2][1:], strict=True):
            for load in _nodes(index, "load"):
                bounds[load[1]] = min(bounds.get(load[1], extent[2]), extent[2])
    for store in reversed(stores):  # an index may pass through intermediate buffers
        if store[1] in bounds:
            for load in _nodes(store[3], "load"):
                bounds[load[1]] = min(bounds.get(load[1], bounds[store[1]]), bounds[store[1]])
    positions = {p[1]: position for position, p in enumerate(document["params"]) if p[0] == "buffer"}
    return {positions[b]: bound for b, bound in bounds.items() if b in positions and "int" in buffers[b][1]}


class _Walk:
    """One walk over TIR: numbers variables and buffers in the order it meets them, and keeps the blocks."""

    def __init__(self) -> None:
        self.buffers: list[Json] = []
        self.blocks: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._n_variables = 0
        self._expressions: dict[type, Callable[[Any], Json]] = {
            tirx.IntImm: lambda e: ["i", _dtype(e), int(e.value)],
            tirx.FloatImm: lambda e: ["f", _dtype(e), float(e.value).hex()],
            StringImm: lambda e: ["str", str(e.value)],
            TensorLoad: lambda e: ["load", self.buffer(e.source), [self.expression(i) for i in e.indices]],
            Var: self.variable,
            tirx.Cast: lambda e: ["cast", _dtype(e), self.expression(e.value)],
            tirx.Let: lambda e: ["let", self.expression(e.value), self.variable(e.var), self.expression(e.body)],
            Call: self._call,
            TensorRegion: self._region,
        }
        self._statements: dict[type, Callable[[Any], Json]] = {
            tirx.SeqStmt: lambda s: ["seq", *(self.statement(child) for child in s.seq)],
            tirx.For: self._for,
            SBlockRealize: self._realize,
            tirx.BufferStore: self._store,
            tirx.IfThenElse: lambda s: ["if", self.expression(s.condition), *map(self._optional, (s.then_case, s.else_case))],
            tirx.Bind: lambda s: ["bind", self.expression(s.value), self.variable(s.var)],
            tirx.Evaluate: lambda s: ["evaluate", self.expression(s.value)],
            tirx.While: lambda s: ["while", self.expression(s.condition), self.statement(s.body)],
            tirx.AssertStmt: lambda s: ["assert", self.expression(s.condition)],
            tirx.AllocBuffer: lambda s: ["alloc", self.buffer(s.buffer), _attribute(s.annotations)],
            tirx.DeclBuffer: lambda s: ["decl", self.buffer(s.buffer), self.expression(s.data)],
            tirx.AttrStmt: self._attr,
        }

    def parameter(self, param: Any) -> Json:
        """A parameter of the function: a buffer or a scalar."""
        return ["buffer", self.buffer(param)] if isinstance(param.ty, BufferType) else ["scalar", self.variable(param)]

    def expression(self, node: Any) -> Json:
        """An expression, every kind by its own rule."""
        kind = type(node)
        operands = _OPERANDS.get(kind)
        if operands is not None:
            return [kind.__name__, *(self.expression(getattr(node, name)) for name in operands)]
        return self._rule(self._expressions, kind)(node)

    def statement(self, node: Any) -> Json:
        """A statement, every kind by its own rule."""
        return self._rule(self._statements, type(node))(node)

    def variable(self, var: Any) -> Json:
        """A scalar variable by its number; with its dtype where it is met first."""
        if isinstance(var.ty, BufferType):
            return ["buffer", self.buffer(var)]
        number = self._numbers.get(var)
        if number is not None:
            return ["v", number]
        self._numbers[var] = self._n_variables
        self._n_variables += 1
        return ["v", self._n_variables - 1, str(var.ty)]

    def buffer(self, var: Any) -> int:
        """The number of a buffer; its type goes to `buffers` where it is met first."""
        number = self._numbers.get(var)
        if number is None:
            number = self._numbers[var] = len(self.buffers)
            self.buffers.append([])
            self.buffers[number] = self._buffer_type(var.ty)
        return number

    def block(self, block: Any) -> Json:
        """A block with its iterators, accesses, initial value and body."""
        iterators = [
            ["iter", int(i.iter_type), self.variable(i.var), *self._range(i.dom), *filter(None, [str(i.thread_tag)])]
            for i in block.iter_vars
        ]
        return [
            "block",
            iterators,
            [self._region(region) for region in block.reads],
            [self._region(region) for region in block.writes],
            [["match", self.buffer(m.buffer), self._region(m.source)] for m in block.match_buffers],
            {str(name): _attribute(value) for name, value in block.annotations.items()},
            self._optional(block.init),
            self.statement(block.body),
            sorted(self.buffer(buffer) for buffer in block.alloc_buffers),
        ]

    def _rule(self, rules: Mapping[type, Callable[[Any], Json]], kind: type) -> Callable[[Any], Json]:
        rule = rules.get(kind)
        if rule is None:
            raise NetworkError(
                f"no rule for {kind.__module__}.{kind.__name__} in a workload's description",
                hint=_UNKNOWN,
            )
        return rule

    def _optional(self, node: Any) -> Json:
        return None if node is None else self.statement(node)

    def _buffer_type(self, ty: Any) -> Json:
        strides = [self.expression(s) for s in ty.strides]
        layout = None if ty.layout is None else str(ty.layout)
        shape = ["shape", *(self.expression(s) for s in ty.shape)]
        unusual = [strides, self.expression(ty.elem_offset), layout, [int(ty.data_alignment), int(ty.offset_factor)]]
        usual = [[], ["i", unusual[1][1], 0], None, [64, 1]]
        if addresses := [self.expression(a) for a in ty.allocated_addr]:
            unusual.append(addresses)
        return ["type", str(ty.dtype), shape, str(ty.storage_scope), *([] if unusual == usual else unusual)]

    def _range(self, found: Any) -> Json:
        return [self.expression(found.min), self.expression(found.extent)]

    def _region(self, region: Any) -> Json:
        ranges = [self._range(r) for r in region.region]
        return ["region", self.buffer(region.source), ranges]

    def _call(self, call: Any) -> Json:
        if not isinstance(call.op, Op):  # a call of another function: a workload has one
            self._rule({}, type(call.op))
        attrs = None if call.attrs is None else _attribute(dict(call.attrs.items()))
        types = [str(call.ty), *map(str, call.ty_args)]
        name = str(call.op.name)
        return ["call", _RENAMED.get(name, name), types, attrs, *(self.expression(a) for a in call.args)]

    def _for(self, loop: Any) -> Json:
        bounds = [self.expression(loop.min), self.expression(loop.extent)]
        thread = None if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
        step = None if loop.step is None else self.expression(loop.step)
        annotations = {str(name): _attribute(value) for name, value in loop.annotations.items()}
        kind, var = int(loop.kind), self.variable(loop.loop_var)
        return ["for", kind, var, *bounds, thread, step, annotations, self.statement(loop.body)]

    def _realize(self, realize: Any) -> Json:
        self.blocks.append(realize.block)
        values = [self.expression(value) for value in realize.iter_values]
        return ["realize", values, self.expression(realize.predicate), self.block(realize.block)]

    def _store(self, store: Any) -> Json:
        indices = [self.expression(i) for i in store.indices]
        return ["store", self.buffer(store.buffer), indices, self.expression(store.value)]

    def _attr(self, stmt: Any) -> Json:
        node = stmt.node.var if isinstance(stmt.node, tirx.IterVar) else stmt.node
        about = self.variable(node) if isinstance(node, Var) else _attribute(node)
        return ["attr", str(stmt.attr_key), about, self.expression(stmt.value), self.statement(stmt.body)]


def _only_function(mod: IRModule) -> Any:
    functions = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise NetworkError(f"a workload is a module with one TIR function, this one has {len(functions)}")
    return functions[0]


def _attribute(value: Any) -> Json:
    """An attribute's value as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tirx.IntImm | tirx.FloatImm | StringImm):
        return _attribute(value.value)
    if isinstance(value, Mapping):
        return {str(name): _attribute(v) for name, v in value.items()}
    if isinstance(value, Sequence):
        return [_attribute(v) for v in value]
    raise NetworkError(f"no rule for the attribute {value} in a workload's description", hint=_UNKNOWN)


def _dtype(node: Any) -> str:
    return str(node.ty.dtype)


def _nodes(node: Json, kind: str) -> Iterator[Json]:
    """Every node of a kind, in order, inner ones after outer ones."""
    if isinstance(node, list):
        if node and node[0] == kind:
            yield node
        for child in node:
            yield from _nodes(child, kind)


def _extents(node: Json) -> Iterator[int]:
    """Extents of the blocks' iterators, and of the loops that no block is bound to, in order."""
    if not isinstance(node, list) or not node:
        return
    unbound = node[0] == "for" and next(_nodes(node, "block"), None) is None
    if (node[0] == "iter" or unbound) and node[4][0] == "i":
        yield node[4][2]
    for child in node:
        yield from _extents(child)


def _leaf_blocks(node: Json, times: int = 1) -> Iterator[tuple[float, bool]]:
    """Operations and whether there is a reduction, for each block in order; a block that holds blocks counts nothing."""
    if not isinstance(node, list) or not node:
        return
    if node[0] == "for" and node[4][0] == "i":
        times *= node[4][2]
    if node[0] == "block":
        inner = next((b for b in _nodes(node[1:], "block")), None)
        own = 0.0 if inner is not None else float(_operations(node[7], times))
        yield own, any(i[1] == 2 for i in node[1])
    for child in node:
        yield from _leaf_blocks(child, times)


def _operations(node: Json, times: int) -> int:
    """Arithmetic in stored values; arithmetic on indices and in conditions is not counted."""
    if not isinstance(node, list) or not node:
        return 0
    kind = node[0]
    if kind in ("load", "region", "i", "f"):
        return 0
    if kind == "for" and node[4][0] == "i":
        return _operations(node[8], times * node[4][2])
    if kind == "store":
        return _operations(node[3], times)
    if kind == "Select" or (kind == "call" and node[1] in _CONDITIONALS):
        return sum(_operations(child, times) for child in node[-2:])
    own = times if kind in _ARITHMETIC else 0
    return own + sum(_operations(child, times) for child in node[1:])


def _main_block(body: Json) -> int:
    """Position of the block with a reduction and the most operations, else of the last one."""
    blocks = list(_leaf_blocks(body))
    reductions = [i for i, (_, reduces) in enumerate(blocks) if reduces]
    return max(reductions, key=lambda i: blocks[i][0]) if reductions else len(blocks) - 1


def _n_bytes(buffer: Json) -> int:
    """Bytes of a buffer of constant shape."""
    name = re.match(r"[a-z]+(\d*)", buffer[1])
    bits = int(name[1] or 8) if name else 8
    return math.prod(int(dim[2]) for dim in buffer[2][1:]) * max(bits, 8) // 8
