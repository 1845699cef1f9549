"""A compiled network beside the untuned one on inputs of many kinds, and the untuned one beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compile import CompiledNetwork, import_difference
from .networks import ImportedNetwork, make_inputs, reference_outputs
from .worker_checks import TOLERANCES, difference

Array = NDArray[Any]

_LARGE = {"float16": 16.0}
_LARGE_ELSE = 1e3
_SMALL = {"float16": 1e-2}
_SMALL_ELSE = 1e-6
_DISTURBANCE = 0.1


@dataclass(frozen=True, slots=True)
class VerifiedCase:
    """One comparison.

    Attributes:
        inputs: What was given: `random`, `zeros`, `ones`, `negative`, `large` or `small`.
        equal: Every output of the tuned network is within the tolerance of its dtype, or `magnified`.
        max_abs_error: The largest difference of any element from the untuned network's.
        max_rel_error: The same in units of the element or the output's root mean square.
        error: What differs; empty when equal.
        import_error: How the untuned network differs from onnxruntime; empty when it does not, None when nobody knows.
        magnified: Outputs differ by more than the tolerance, but by no more than the untuned network's own when its inputs are
            disturbed by a tenth of it: there it magnifies rounding, and nobody can say which of both is nearer to the truth.
    """

    inputs: str
    equal: bool
    max_abs_error: float
    max_rel_error: float
    error: str = ""
    import_error: str | None = None
    magnified: bool = False


def verify(network: ImportedNetwork, untuned: CompiledNetwork, tuned: CompiledNetwork, seed: int) -> list[VerifiedCase]:
    """Compare both on each kind of inputs. Integer inputs are 0 and 1 in all of them, so that they index in bounds.

    Raises:
        MeasureError: The inputs do not fit into memory.
    """
    return [_compare(name, network, untuned, tuned, inputs) for name, inputs in iter_inputs(network, seed)]


def iter_inputs(network: ImportedNetwork, seed: int) -> Iterator[tuple[str, list[Array]]]:
    """Random inputs, and those on which programs go wrong that random ones do not show.

    `large` and `small` are as far from 1 as inputs that a network was made for get, and not the ends of the dtype: there a sum
    in another order overflows where the first did not.
    """
    random = make_inputs(network, seed)
    kinds: dict[str, Callable[[Array], Array]] = {
        "zeros": np.zeros_like,
        "ones": np.ones_like,
        "negative": lambda x: _floats(x, -np.abs(x)),
        "large": lambda x: _floats(x, x * _LARGE.get(str(x.dtype), _LARGE_ELSE)),
        "small": lambda x: _floats(x, x * _SMALL.get(str(x.dtype), _SMALL_ELSE)),
    }
    yield "random", random
    for name, change in kinds.items():
        yield name, [change(x) for x in random]


def _floats(given: Array, changed: Array) -> Array:
    """The changed array for floats, the given one for others."""
    return given if given.dtype.kind in "biu" else changed.astype(given.dtype)


def _compare(
    name: str, network: ImportedNetwork, untuned: CompiledNetwork, tuned: CompiledNetwork, inputs: list[Array]
) -> VerifiedCase:
    expected, given = untuned(inputs), tuned(inputs)
    found = difference(expected, given)
    reference = reference_outputs(network, inputs)
    import_error = None if reference is None else import_difference(reference, expected)
    magnified = False
    if not found.equal or import_error:
        disturbed = untuned([_disturbed(x) for x in inputs])
        magnified = not found.equal and _within(expected, given, disturbed)
        import_error = "" if reference is not None and _within(expected, reference, disturbed) else import_error
    error = "" if magnified else found.error
    return VerifiedCase(name, not error, found.max_abs_error, found.max_rel_error, error, import_error, magnified)


def _disturbed(given: Array) -> Array:
    """Each float changed by a tenth of the tolerance of its dtype, which is more than a network's own rounding."""
    step = _DISTURBANCE * TOLERANCES.get(str(given.dtype), max(TOLERANCES.values()))
    return _floats(given, given * (1 + step * np.random.default_rng(0).choice((-1.0, 1.0), given.shape)))


def _within(expected: Sequence[Array], found: Sequence[Array], disturbed: Sequence[Array]) -> bool:
    """Whether each output is as near to the expected one as the tolerance asks, or as the disturbed one is."""

    def error(a: Array, b: Array) -> float:
        compared = difference([a], [b])
        return 0.0 if compared.equal else max(compared.max_rel_error, compared.max_abs_error if a.dtype.kind in "biu" else 0.0)

    return all(error(a, b) <= error(a, c) for a, b, c in zip(expected, found, disturbed, strict=True))
