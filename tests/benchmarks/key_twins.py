"""Keys of many pairs of programs: `python -m tests.benchmarks.key_twins --pairs 10000`, some three minutes.

Each pair is a program and one that computes something else after one change: their keys must differ. Each program is written
down twice, under other names and in another order: those keys must agree. Then no two of all programs may share a key unless
they take the same arguments and compute the same of a random input.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bcd_tuner.subgraph import workload_of
from tests.tuner.program_changes import different_pair
from tests.tuner.program_interpreter import fingerprint
from tests.tuner.program_writer import write
from tests.tuner.random_programs import Program


@dataclass(slots=True)
class Found:
    """What was found; the three lists are seeds of pairs and should be empty.

    Attributes:
        kinds: How many pairs there were of each kind of change.
        known: What the program of each key computes.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)
    unequal_twins: list[int] = field(default_factory=list)
    equal_pairs: list[int] = field(default_factory=list)
    collisions: list[int] = field(default_factory=list)

    def look_at(self, seed: int) -> None:
        """One pair."""
        kind, *programs = different_pair(seed)
        self.kinds[kind] += 1
        one, other = (self._key_of(program, seed) for program in programs)
        if one == other:
            self.equal_pairs.append(seed)

    @property
    def is_sound(self) -> bool:
        """Whether every property held."""
        return not (self.unequal_twins or self.equal_pairs or self.collisions)

    def _key_of(self, program: Program, seed: int) -> str:
        first, twin = (workload_of(write(program, 2 * seed + dress)) for dress in (0, 1))
        if (first.key, first.cluster, first.anchor) != (twin.key, twin.cluster, twin.anchor):
            self.unequal_twins.append(seed)
        computed = fingerprint(program)
        if self.known.setdefault(first.key, computed) != computed:
            self.collisions.append(seed)
        return first.key


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the pairs and print what was found."""
    parser = argparse.ArgumentParser(description="Keys of pairs of programs that differ, and of renamed twins.")
    parser.add_argument("--pairs", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first (%(default)s)")
    options = parser.parse_args(argv)
    found, began = Found(), time.monotonic()
    for n, seed in enumerate(range(options.first, options.first + options.pairs), start=1):
        found.look_at(seed)
        if n % 1000 == 0:
            left_s = (time.monotonic() - began) / n * (options.pairs - n)
            print(f"{n} pairs, some {left_s:.0f} s left", flush=True)
    print(f"{options.pairs} pairs, {len(found.known)} keys, in {time.monotonic() - began:.0f} s")
    print("  changes: " + ", ".join(f"{kind} {n}" for kind, n in sorted(found.kinds.items())))
    for name in ("unequal_twins", "equal_pairs", "collisions"):
        seeds = getattr(found, name)
        print(f"  {name.replace('_', ' ')}: {len(seeds)}{f', the first of seed {seeds[0]}' if seeds else ''}")
    return 0 if found.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
