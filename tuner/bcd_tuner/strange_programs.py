"""What a child process does with programs and traces that strangers wrote: load, make canonical, replay.

TVM checks neither well, and either may crash its C++. So nothing here is called in the process that holds the registry.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, IRModule, Op
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.analysis import verify_well_formed
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Decision, Json, Workload, canonical_json

from .renaming import block_names, carry
from .replay import trace_as_json
from .space import read_decisions
from .subgraph import workload_of
from .tasks import canonicalise

MAX_TRACE_BYTES = 1 << 20
"""Largest trace: a real one has some 10 KB."""

_PURE = int(tirx.expr.CallEffectKind.ReadState.value)
"""Calls up to this effect compute a value and do nothing else."""

_LENGTH_BYTES = 8
_EFFECT = "TCallEffectKind"
_OUTSIDE = re.compile(r"extern|packed|_ffi")
_CODE = re.compile(r"import_(llvm|c)\b")
_LABEL = re.compile(r"[\w+.-]{1,120}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A stranger's program.

    Attributes:
        module: It under canonical names, as this TVM writes it.
    """

    workload: Workload
    module: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """A stranger's trace as it is on the canonical program."""

    trace: Json
    sketch: str
    decisions: tuple[Decision, ...]


def load_workload(line: bytes) -> Loaded:
    """The program in a line of a `database_workload.json`; the hash beside it is not looked at.

    Raises:
        CorruptBlob: It is no such line, or no program of one TIR function, or it calls outside functions.
        NetworkError: No key can be given to it.
    """
    source, canonical = _modules(line)
    label = "+".join(name for name in block_names(source) if name != "root")
    workload = workload_of(canonical, label if _LABEL.fullmatch(label) else "imported")
    return Loaded(workload, tvm.ir.save_json(canonical))


def replay_on_line(line: bytes, trace: Json) -> Replayed:
    """A trace replayed on the program in a line.

    Raises:
        CorruptBlob: It is no trace, does not fit, is too large, or adds code of its own to the program.
    """
    return _replayed(trace, *_modules(line))


def replay_on_module(module: str, trace: Json) -> Replayed:
    """A trace replayed on a canonical module in TVM's JSON; it raises what `replay_on_line` does."""
    canonical = _parsed(module)
    return _replayed(trace, canonical, canonical)


@functools.lru_cache(maxsize=4)
def _modules(line: bytes) -> tuple[IRModule, IRModule]:
    """The program as it is written, whose names its traces use, and under canonical names as another process reads it."""
    value = json.loads(line)
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise CorruptBlob("it is not a hash and a program")
    source = tvm.ir.load_json(_text(value[1]))
    functions = list(source.functions.values()) if isinstance(source, IRModule) else []
    if len(functions) != 1 or not isinstance(functions[0], tirx.PrimFunc):
        raise CorruptBlob("it is not a program of one TIR function")
    if not verify_well_formed(source, assert_mode=False):
        raise CorruptBlob("it is not a well-formed program")
    _require_own_code(source)
    return source, tvm.ir.load_json(tvm.ir.save_json(canonicalise(source)))


def _text(encoded: str) -> str:
    """The JSON of a program as TVM encodes it: base64 over its length and itself."""
    data = base64.b64decode(encoded, validate=True)
    length, text = data[:_LENGTH_BYTES], data[_LENGTH_BYTES:]
    if int.from_bytes(length, "little") != len(text):
        raise CorruptBlob("its program is not as long as it says")
    return text.decode()


@functools.lru_cache(maxsize=4)
def _parsed(module: str) -> IRModule:
    return tvm.ir.load_json(module)


def _replayed(trace: Json, source: IRModule, canonical: IRModule) -> Replayed:
    _require_trace(trace)
    schedule = carry(trace, source, canonical)
    _require_own_code(schedule.mod)
    _rehearse(schedule)
    carried = trace_as_json(schedule)
    _require_trace(carried)
    return Replayed(carried, *read_decisions(schedule))


def _rehearse(schedule: Schedule) -> None:
    """Do here what measuring does with a schedule in its own process."""
    ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(schedule.mod)
    tvm.ir.load_json(tvm.ir.save_json(schedule.mod))


def _require_trace(trace: Json) -> None:
    if not _is_trace(trace):
        raise CorruptBlob("its trace is not a list of instructions and one of decisions")
    if len(canonical_json(trace)) > MAX_TRACE_BYTES:
        raise CorruptBlob(f"its trace has more than {MAX_TRACE_BYTES >> 20} MiB")


def _is_trace(trace: Json) -> bool:
    """Whether it has the shape of one: kind, inputs, attributes and outputs of each instruction, and numbered decisions."""
    if not (isinstance(trace, list) and len(trace) == 2 and all(isinstance(part, list) for part in trace)):
        return False
    instructions, decisions = trace
    return all(map(_is_instruction, instructions)) and all(
        isinstance(d, list) and len(d) == 2 and type(d[0]) is int and 0 <= d[0] < len(instructions) for d in decisions
    )


def _is_instruction(value: Json) -> bool:
    if not (isinstance(value, list) and len(value) == 4 and isinstance(value[0], str)):
        return False
    return all(isinstance(part, list) for part in value[1:])


def _require_own_code(mod: IRModule) -> None:
    """Refuse a program that runs more than what it computes: outside functions, or code in an annotation.

    Raises:
        CorruptBlob: It would, once it is built.
    """
    for name in sorted(_called(mod)):
        raise CorruptBlob(f"it calls {name}, which can do more than compute a value")
    for name in _annotations(mod):
        if _CODE.search(name):
            raise CorruptBlob(f"it brings code of its own in `{name:.80}`")


def _called(mod: IRModule) -> set[str]:
    """Names of what is called beside plain operators."""
    return {str(getattr(call.op, "name", call.op)) for call in _all(mod, Call) if not _is_plain(call.op)}


def _is_plain(op: Any) -> bool:
    if not isinstance(op, Op) or _OUTSIDE.search(str(op.name)):
        return False
    effect = op.get_attr(_EFFECT)
    return effect is not None and int(effect) <= _PURE


def _annotations(mod: IRModule) -> Iterable[str]:
    for node in (*_all(mod, SBlock), *_all(mod, tirx.For)):
        yield from map(str, node.annotations)
    yield from (str(statement.attr_key) for statement in _all(mod, tirx.AttrStmt))


def _all(mod: IRModule, kind: type) -> list[Any]:
    found: list[Any] = []
    for function in mod.functions.values():
        tvm_ffi.structural_walk(function, (kind, found.append))
    return found
