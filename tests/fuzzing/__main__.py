"""`python -m tests.fuzzing --inputs 100000`: hostile bytes for every format, in processes that may crash.

It prints for each format how many inputs were taken and verified, how many were refused, the slowest in seconds, and what must
not be: inputs over a second, exceptions that no user can act on, what was taken and does not verify, and crashes and hangs of
the process. `--format NAME --only N` reads one input again, in this process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .child import input_of, open_format, try_input
from .hunt import ALL, Hunted, hunt, share_of


def main(argv: Sequence[str] | None = None) -> int:
    """Hunt, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all formats together (default: %(default)s)")
    parser.add_argument("--format", action="append", choices=ALL, default=[], help="only this; may be given more than once")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (default: %(default)s)")
    parser.add_argument("--only", type=int, help="read the input of this number alone")
    options = parser.parse_args(argv)
    names = options.format or ALL
    if options.only is not None:
        return _read_one(names[0], options.seed, options.only)
    print(Hunted.HEADING)
    sound = True
    for name in names:
        found = hunt(name, share_of(name, options.inputs, names), options.seed)
        print(found.line(), flush=True)
        for finding in found.findings[:20]:
            print(f"    {finding}", flush=True)
        sound &= found.is_sound
    return 0 if sound else 1


def _read_one(name: str, seed: int, number: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = open_format(name, Path(folder))
        data = input_of(found, seed, number)
        print(f"{len(data)} bytes: {data[:400]!r}", flush=True)
        outcome = try_input(found, data)
    print(f"{outcome.kind} in {outcome.seconds:.3f} s: {outcome.detail}")
    return 0 if outcome.kind in ("accepted", "refused") else 1


if __name__ == "__main__":
    sys.exit(main())
