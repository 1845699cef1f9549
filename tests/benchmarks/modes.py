"""One mode of one comparison, in a process of its own.

    .venv/bin/python -m tests.benchmarks.modes c --job job.json --output result.json

`run.py` makes the jobs. Exit code 3 says that the engine lacks a switch which the mode needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bcd_tuner.targets import resolve_target, use_threads

from . import ours, stock
from .memory import PeakMemory
from .outcome import facts, light_share
from .results import Job, Result
from .stock import threads_of

EXIT_MISSING = 3

MODES: Mapping[str, Callable[[Job], Result]] = {
    "a": stock.untouched,
    "b": stock.fair,
    "v1": ours.first_version,
    "c": ours.cold,
    "d": ours.warm,
    "e": ours.guessed,
    **{name: functools.partial(ours.ablated, name=name) for name in ours.ABLATIONS},
}


def run_mode(mode: str, job: Job) -> Result:
    """The result of a mode, with what the process took.

    Raises:
        Missing: The engine lacks a switch that the mode needs, or v1 was not tuned.
    """
    began = time.monotonic()
    threads = use_threads(threads_of(resolve_target(job.second.target)))  # before the first kernel, which starts them
    with light_share(job.light_share), PeakMemory() as memory:
        result = MODES[mode](job)
    return dataclasses.replace(
        result, wall_s=time.monotonic() - began, peak_rss_bytes=memory.peak_bytes, facts={**facts(), "threads": threads}
    )


def main() -> None:
    """Run the mode that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    try:
        result = run_mode(given.mode, Job.from_json(json.loads(given.job.read_text(encoding="utf-8"))))
    except ours.Missing as missing:
        print(f"{given.mode} cannot run: {missing}", file=sys.stderr)
        raise SystemExit(EXIT_MISSING) from missing
    given.output.write_text(json.dumps(result.as_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
