"""Small tensor programs by chance: what a program is, and how one is drawn.

A `Program` has no names and no order in which its parts were made: `program_writer` writes it down as TIR, with other names for
each seed, `program_interpreter` computes it with numpy, and `program_changes` changes one thing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("float32", "float32", "float16", "float64", "int32", "int64", "int8", "uint8")
BINARY = ("Add", "Sub", "Mul", "Min", "Max")
UNARY = ("exp", "sqrt", "tanh", "abs")
COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")
REDUCERS = ("Add", "Max", "Min")


@dataclass(frozen=True, slots=True)
class Affine:
    """Iterators times coefficients and a constant; the remainder of that when there is a modulus."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0
    modulus: int = 0


@dataclass(frozen=True, slots=True)
class Indirect:
    """What a buffer of integers holds at a place."""

    buffer: int
    indices: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """An index against a number."""

    op: str
    left: Affine
    right: int


@dataclass(frozen=True, slots=True)
class Load:
    buffer: int
    indices: tuple[Affine | Indirect, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    value: float


@dataclass(frozen=True, slots=True)
class Unary:
    function: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Cast:
    source: str
    dtype: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two values; a lazy one reads only what it takes."""

    lazy: bool
    conditions: tuple[Compare, ...]
    then: Expression
    otherwise: Expression


Expression = Load | Constant | Unary | Binary | Cast | Choice


@dataclass(frozen=True, slots=True)
class Stage:
    """One block: loops, where it stores and what.

    Attributes:
        reduced: Which of the iterators are reduced over.
        reducer: How values are combined; empty when they are just stored.
        start: What a reduction begins with.
        predicate: Where it stores at all.
    """

    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    target: int
    indices: tuple[Affine, ...]
    value: Expression
    reducer: str = ""
    start: float = 0.0
    predicate: tuple[Compare, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor.

    Attributes:
        role: `in`, `mid` or `out`.
        padded: Its rows lie one element further apart than they are long.
        bound: Its values index something of so many rows; 0 when they do not.
    """

    shape: tuple[int, ...]
    dtype: str
    role: str
    padded: bool = False
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors.

    Attributes:
        free: Inputs whose layout is free, in order.
    """

    index_dtype: str
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    free: tuple[int, ...] = ()

    @property
    def parameters(self) -> list[int]:
        """Inputs in order, then the output."""
        numbers = range(len(self.buffers))
        return sorted((n for n in numbers if self.buffers[n].role != "mid"), key=lambda n: self.buffers[n].role == "out")


def generate(seed: int, grown: int = -1) -> Program:
    """A program of one to three stages.

    Args:
        grown: Which of the extents drawn is one larger than it would be.
    """
    draft = _Draft(seed, grown)
    x = draft.given(tuple(draft.extent() for _ in range(draft.pick((1, 2, 2, 3, 3, 4)))), draft.pick(DTYPES))
    for _ in range(draft.pick((1, 1, 2, 2, 3))):
        x = draft.pick(_RECIPES)(draft, x)
    return draft.program(x)


def nodes(node: Any, *kinds: type) -> Iterator[Any]:
    """Every part of these kinds, outer ones first."""
    return (found for _, found in sites(node, *kinds))


def sites(node: Any, *kinds: type) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every part of these kinds with the way to it."""
    if isinstance(node, kinds):
        yield (), node
    if dataclasses.is_dataclass(node):
        parts: Iterator[tuple[Any, Any]] = ((f.name, getattr(node, f.name)) for f in dataclasses.fields(node))
    elif isinstance(node, tuple):
        parts = iter(enumerate(node))
    else:
        return
    for name, part in parts:
        for way, found in sites(part, *kinds):
            yield (name, *way), found


def put(node: Any, way: Sequence[Any], new: Any) -> Any:
    """The tree with another part at the end of the way."""
    if not way:
        return new
    first, rest = way[0], way[1:]
    if isinstance(node, tuple):
        return tuple(put(part, rest, new) if i == first else part for i, part in enumerate(node))
    return dataclasses.replace(node, **{first: put(getattr(node, first), rest, new)})


class _Draft:
    """A program in the making; every choice is drawn from one seed."""

    def __init__(self, seed: int, grown: int) -> None:
        self.rng = np.random.default_rng([seed, 0])
        self.buffers: list[Buffer] = []
        self.stages: list[Stage] = []
        self.free: list[int] = []
        self._index_dtype = self.pick(("int32", "int64"))
        self._grown, self._n_extents = grown, itertools.count()

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def likely(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def extent(self, most: int = 5) -> int:
        return int(self.rng.integers(2, most + 1)) + (next(self._n_extents) == self._grown)

    def given(self, shape: tuple[int, ...], dtype: str, *, weight: bool = False, bound: int = 0) -> int:
        """Another input; a weight is often one whose layout is free."""
        self.buffers.append(Buffer(shape, dtype, "in", padded=not bound and self.likely(0.05), bound=bound))
        if weight and self.likely(0.6):
            self.free.append(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def constant(self) -> Constant:
        return Constant(self.pick((1.0, 2.0, 3.0, 5.0, 0.5, 0.25)))

    def stage(
        self, shape: tuple[int, ...], value: Expression, *, dtype: str = "", over: tuple[int, ...] = (), **options: Any
    ) -> int:
        """A stage that fills a new buffer, element for element; `over` are the extents of its reduction."""
        of = dtype or self.buffers[next(nodes(value, Load)).buffer].dtype
        self.buffers.append(Buffer(shape, of, "mid"))
        reduced = (*[False] * len(shape), *[True] * len(over))
        made = Stage((*shape, *over), reduced, len(self.buffers) - 1, _identity(len(shape)), value, **options)
        self.stages.append(made)
        return made.target

    def program(self, output: int) -> Program:
        self.buffers[output] = dataclasses.replace(self.buffers[output], role="out")
        return Program(self._index_dtype, tuple(self.buffers), tuple(self.stages), tuple(self.free))


def _identity(rank: int) -> tuple[Affine, ...]:
    return tuple(Affine(((axis, 1),)) for axis in range(rank))


def _elementwise(draft: _Draft, x: int) -> int:
    """Some operators in a row, with constants and inputs that are broadcast."""
    shape, dtype = draft.buffers[x].shape, draft.buffers[x].dtype
    value: Expression = Load(x, _identity(len(shape)))
    for _ in range(draft.pick((1, 1, 2, 3))):
        other = draft.constant() if draft.likely(0.5) else _broadcast(draft, shape, dtype)
        if dtype.startswith("float") and draft.likely(0.3):
            value = Unary(draft.pick(UNARY), value)
        elif draft.likely(0.15):
            value = Choice(False, (_somewhere(draft, shape),), value, other)
        else:
            value = Binary(draft.pick(BINARY), *((value, other) if draft.likely(0.7) else (other, value)))
    predicate = (_somewhere(draft, shape),) if draft.likely(0.1) else ()
    return draft.stage(shape, value, predicate=predicate)


def _broadcast(draft: _Draft, shape: tuple[int, ...], dtype: str) -> Load:
    kept = [axis for axis in range(len(shape)) if draft.likely(0.6)]
    given = draft.given(tuple(shape[axis] for axis in kept) or (1,), dtype)
    return Load(given, tuple(Affine(((axis, 1),)) for axis in kept) or (Affine(),))


def _somewhere(draft: _Draft, shape: tuple[int, ...]) -> Compare:
    axis = int(draft.rng.integers(len(shape)))
    return Compare(draft.pick(COMPARISONS), Affine(((axis, 1),)), int(draft.rng.integers(shape[axis])))


def _cast(draft: _Draft, x: int) -> int:
    shape, source = draft.buffers[x].shape, draft.buffers[x].dtype
    dtype = draft.pick([d for d in DTYPES if d != source])
    return draft.stage(shape, Cast(source, dtype, Load(x, _identity(len(shape)))), dtype=dtype)


def _pad(draft: _Draft, x: int) -> int:
    shape = draft.buffers[x].shape
    axis, before, after = int(draft.rng.integers(len(shape))), draft.pick((0, 1, 2)), draft.pick((1, 2))
    padded = tuple(n + (before + after if i == axis else 0) for i, n in enumerate(shape))
    inside = [Compare("LT", Affine(((axis, 1),)), before + shape[axis])]
    if before:
        inside.insert(0, Compare("GE", Affine(((axis, 1),)), before))
    indices = tuple(Affine(((i, 1),), -before if i == axis else 0) for i in range(len(shape)))
    return draft.stage(padded, Choice(True, tuple(inside), Load(x, indices), Constant(draft.pick((0.0, 0.0, 1.0)))))


def _move(draft: _Draft, x: int) -> int:
    """Transposed, reversed or rotated along one axis."""
    shape = draft.buffers[x].shape
    how = draft.pick(("transpose", "reverse", "rotate"))
    if how == "transpose":
        order = [int(axis) for axis in draft.rng.permutation(len(shape))]
        indices = tuple(Affine(((order.index(axis), 1),)) for axis in range(len(shape)))
        return draft.stage(tuple(shape[axis] for axis in order), Load(x, indices))
    axis = int(draft.rng.integers(len(shape)))
    n = shape[axis]
    moved = Affine(((axis, -1),), n - 1) if how == "reverse" else Affine(((axis, 1),), int(draft.rng.integers(1, n + 1)), n)
    return draft.stage(shape, Load(x, tuple(moved if i == axis else a for i, a in enumerate(_identity(len(shape))))))


def _reduce(draft: _Draft, x: int) -> int:
    shape = draft.buffers[x].shape
    axis = int(draft.rng.integers(len(shape)))
    kept = tuple(n for i, n in enumerate(shape) if i != axis) or (1,)
    places = iter(range(len(kept)))
    indices = tuple(Affine(((len(kept) if i == axis else next(places), 1),)) for i in range(len(shape)))
    value: Expression = Load(x, indices)
    if draft.likely(0.3):
        value = Binary("Mul", value, value)
    return draft.stage(kept, value, over=(shape[axis],), reducer=draft.pick(REDUCERS))


def _matmul(draft: _Draft, x: int) -> int:
    """With a weight, plain or transposed, or with another activation."""
    *rows, inner = draft.buffers[x].shape
    columns, transposed = draft.extent(), draft.likely(0.5)
    shape = (*rows, columns)
    k, j = Affine(((len(shape), 1),)), Affine(((len(rows), 1),))
    weight_shape = (columns, inner) if transposed else (inner, columns)
    weight = draft.given(weight_shape, draft.buffers[x].dtype, weight=draft.likely(0.7))
    left, right = Load(x, (*_identity(len(rows)), k)), Load(weight, (j, k) if transposed else (k, j))
    return draft.stage(shape, Binary("Mul", left, right), over=(inner,), reducer="Add")


def _window(draft: _Draft, x: int) -> int:
    """A convolution or a pooling over the last axis or two."""
    shape, dtype = draft.buffers[x].shape, draft.buffers[x].dtype
    n_axes = min(len(shape), 2 if draft.likely(0.5) else 1)
    outer, inner = shape[: len(shape) - n_axes], shape[len(shape) - n_axes :]
    kernel = draft.pick((1, 2, 2, 3))
    stride, dilation = draft.pick((1, 1, 2)), draft.pick((1, 1, 2))
    sizes = [(n - dilation * (kernel - 1) - 1) // stride + 1 for n in inner]
    if min(sizes) < 1:
        return _elementwise(draft, x)
    if outer and draft.likely(0.7):  # the last outer axis is that of the channels
        filters = draft.extent()
        spatial = (*outer[:-1], filters, *sizes)
        over = (outer[-1], *[kernel] * n_axes)
        weight = draft.given((filters, *over), dtype, weight=True)
        first = len(outer) - 1
        windows = [Affine(((first + 1 + a, stride), (len(spatial) + 1 + a, dilation))) for a in range(n_axes)]
        data = Load(x, (*_identity(first), Affine(((len(spatial), 1),)), *windows))
        taps = Load(weight, (Affine(((first, 1),)), *(Affine(((len(spatial) + a, 1),)) for a in range(n_axes + 1))))
        return draft.stage(spatial, Binary("Mul", data, taps), over=over, reducer="Add")
    spatial = (*outer, *sizes)
    windows = [Affine(((len(outer) + a, stride), (len(spatial) + a, dilation))) for a in range(n_axes)]
    pooled = Load(x, (*_identity(len(outer)), *windows))
    return draft.stage(spatial, pooled, over=(kernel,) * n_axes, reducer=draft.pick(REDUCERS))


def _gather(draft: _Draft, x: int) -> int:
    """Rows at places that another input tells."""
    rows, *rest = draft.buffers[x].shape
    ids = draft.given((draft.extent(),), draft.pick(("int32", "int64")), bound=rows)
    shape = (*draft.buffers[ids].shape, *rest)
    return draft.stage(shape, Load(x, (Indirect(ids, (Affine(((0, 1),)),)), *_identity(len(shape))[1:])))


_RECIPES: Sequence[Callable[[_Draft, int], int]] = (
    *(_elementwise, _elementwise, _cast, _pad, _move, _reduce, _matmul, _matmul, _window, _window, _gather),
)
