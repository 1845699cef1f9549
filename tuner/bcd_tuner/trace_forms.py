"""What a trace may hold: the instructions that schedules of a CPU are made of, each with its inputs, attributes and outputs.

TVM looks at little of a stored trace before it follows it: a null for a name or a decision for an instruction that is not
there ends the process. So every instruction is looked at here first, by the table below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Json

from .index_maps import current_index_map

MAX_INSTRUCTIONS = 2000
"""Most instructions of a trace: the longest of PP-OCRv6's have 74."""

_MAX_VALUES = 256
_MAX_TEXT = 256
_MAX_TILES = 16
_NOTHING = "None"
_ANNOTATION = re.compile(r"meta_schedule\.\w+|pragma_auto_unroll_max_step|pragma_unroll_explicit|schedule_rule", re.ASCII)
"""Names of annotations; others may bring code of their own into a program, as `pragma_import_c` does."""


@dataclass(frozen=True, slots=True)
class _Form:
    """An instruction's form, a letter for each value.

    Inputs and outputs: `b` a block, `l` a loop, `v` a number that was sampled, `k` a block or a loop, `x` a number of any kind,
    `a` an annotation's value, `c` a list of blocks, `m` an index map. The last one may be there any number of times with `*`.
    Attributes: `s` text, `i` a whole number, `t` a truth value, `n` a number of tiles, `I` whole numbers, `F` numbers, `A` the
    name of an annotation, `?` nothing.
    """

    inputs: str = ""
    attributes: str = ""
    outputs: str = ""


_FORMS: Mapping[str, _Form] = {
    "GetSBlock": _Form("", "ss", "b"),
    "GetLoops": _Form("b", "", "l*"),
    "GetChildBlocks": _Form("k", "", "b*"),
    "GetProducers": _Form("b", "", "b*"),
    "GetConsumers": _Form("b", "", "b*"),
    "GetOutputBlocks": _Form("b", "", "b*"),
    "SamplePerfectTile": _Form("l", "ni", "v*"),
    "SampleCategorical": _Form("", "IF", "v"),
    "SampleComputeLocation": _Form("b", "", "l"),
    "Split": _Form("lx*", "tt", "l*"),
    "Fuse": _Form("l*", "t", "l"),
    "Reorder": _Form("l*"),
    "AddUnitLoop": _Form("k", "", "l"),
    "Parallel": _Form("l"),
    "Vectorize": _Form("l"),
    "Unroll": _Form("l"),
    "Bind": _Form("l", "s"),
    "CacheRead": _Form("bc", "is", "b"),
    "CacheWrite": _Form("bc", "is", "b"),
    "ReIndex": _Form("b", "ii", "b"),
    "ComputeAt": _Form("bl", "ti"),
    "ReverseComputeAt": _Form("bl", "ti"),
    "ComputeInline": _Form("b"),
    "ReverseComputeInline": _Form("b"),
    "DecomposeReduction": _Form("bl", "", "b"),
    "RFactor": _Form("l", "i", "b"),
    "Blockize": _Form("k", "t", "b"),
    "Tensorize": _Form("k", "st"),
    "SetScope": _Form("b", "is"),
    "StorageAlign": _Form("b", "iiii"),
    "Annotate": _Form("ka", "A"),
    "Unannotate": _Form("k", "A"),
    "TransformLayout": _Form("bm", "ii?t"),
    "EnterPostproc": _Form(),
}
_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"


def checked_trace(trace: Json) -> Json:
    """The trace as this TVM reads it, index maps of an older release included.

    Raises:
        CorruptBlob: It is none, or holds what no schedule of a CPU has.
    """
    if not (isinstance(trace, list) and len(trace) == 2 and all(isinstance(part, list) for part in trace)):
        raise _bad("it is not a list of instructions and one of decisions")
    instructions, decisions = trace
    if len(instructions) > MAX_INSTRUCTIONS:
        raise _bad(f"it has more than {MAX_INSTRUCTIONS} instructions")
    known: dict[str, str] = {}
    checked = [_instruction(value, known) for value in instructions]
    for decision in decisions:
        _require(isinstance(decision, list) and len(decision) == 2, "a decision is none")
        place, value = decision
        _require(_is_whole(place) and 0 <= place < len(checked), "a decision is for no instruction")
        _require(_is_decision(checked[place], value), "a decision is none of its instruction's")
    return [checked, decisions]


def _instruction(value: Json, known: dict[str, str]) -> list[Json]:
    """The instruction; `known` has the sort of every name so far, and takes in its outputs."""
    _require(isinstance(value, list) and len(value) == 4 and isinstance(value[0], str), "an instruction is none")
    kind, inputs, attributes, outputs = value
    form = _FORMS.get(kind)
    if form is None:
        raise _bad(f"it has an instruction `{kind:.40}`, which no schedule of a CPU has")
    _require(all(isinstance(part, list) and len(part) <= _MAX_VALUES for part in value[1:]), f"a {kind} is none")
    sorts = _spread(form.inputs, len(inputs))
    _require(len(sorts) == len(inputs) and len(form.attributes) == len(attributes), f"a {kind} has other parts")
    _require(all(_is_input(i, sort, known) for i, sort in zip(inputs, sorts, strict=True)), f"an input of a {kind} is none")
    for name in (a for a, letter in zip(attributes, form.attributes, strict=True) if letter == "A"):
        allowed = not isinstance(name, str) or _ANNOTATION.fullmatch(name)
        _require(bool(allowed), f"its annotation `{ascii(name)[1:41]}` could bring code of its own")
    _require(all(map(_is_attribute, attributes, form.attributes)), f"an attribute of a {kind} is none")
    made = _spread(form.outputs, len(outputs))
    _require(len(made) == len(outputs) and all(_is_text(name) for name in outputs), f"an output of a {kind} is none")
    _require(kind != _TILE or len(outputs) == attributes[0], "tiles are not as many as they state")
    _require(kind != _CHOICE or len(attributes[0]) == len(attributes[1]) > 0, "a choice has not a weight for each value")
    known.update(zip(outputs, made, strict=True))
    if "m" in form.inputs:
        inputs = [current_index_map(i) if sort == "m" else i for i, sort in zip(inputs, sorts, strict=True)]
    return [kind, inputs, attributes, outputs]


def _spread(letters: str, n: int) -> str:
    """A letter for each of `n` values; of another length when there cannot be so many."""
    if not letters.endswith("*"):
        return letters
    fixed, repeated = letters[:-2], letters[-2]
    return fixed + repeated * max(0, n - len(fixed))


def _is_input(value: Json, sort: str, known: Mapping[str, str]) -> bool:
    if sort == "c":
        return isinstance(value, list) and len(value) <= _MAX_VALUES and all(_is_input(v, "b", known) for v in value)
    if sort == "m":
        return isinstance(value, str)
    if sort == "k":
        return _is_input(value, "b", known) or _is_input(value, "l", known)
    if sort == "x":
        return _is_whole(value) or value == _NOTHING or _is_input(value, "v", known)
    if sort == "a":
        return _is_annotation_value(value) or _is_input(value, "v", known)
    return isinstance(value, str) and known.get(value) == sort


def _is_annotation_value(value: Json) -> bool:
    if isinstance(value, str):
        return 2 <= len(value) <= _MAX_TEXT and value[0] == value[-1] == '"'
    if isinstance(value, list):
        return len(value) <= _MAX_VALUES and all(_is_whole(v) for v in value)
    return isinstance(value, bool) or _is_number(value)


def _is_attribute(value: Json, letter: str) -> bool:
    match letter:
        case "s":
            return _is_text(value)
        case "A":
            return isinstance(value, str) and _ANNOTATION.fullmatch(value) is not None
        case "i":
            return _is_whole(value)
        case "t":
            return isinstance(value, bool) or value in (0, 1)
        case "n":
            return _is_whole(value) and 1 <= value <= _MAX_TILES
        case "I":
            return _is_list(value) and all(_is_whole(v) for v in value)
        case "F":
            return _is_list(value) and all(_is_number(v) and v >= 0.0 for v in value)
        case _:
            return value is None


def _is_decision(instruction: Sequence[Any], value: Json) -> bool:
    kind, _, attributes, _ = instruction
    if kind == _TILE:
        return _is_list(value) and len(value) == attributes[0] and all(_is_whole(v) and v > 0 for v in value)
    if kind == _CHOICE:
        return _is_whole(value) and 0 <= value < len(attributes[0])
    return bool(kind == _LOCATION) and _is_whole(value) and value >= -2


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_list(value: Json) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_VALUES


def _is_whole(value: Json) -> bool:
    return type(value) is int and abs(value) < 2**31


def _is_number(value: Json) -> bool:
    return _is_whole(value) or (type(value) is float and math.isfinite(value))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _bad(otherwise)


def _bad(reason: str) -> CorruptBlob:
    return CorruptBlob(f"the trace does not replay: {reason}")
