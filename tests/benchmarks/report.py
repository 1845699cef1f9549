"""BENCHMARKS.md and its picture, made from the results alone.

.venv/bin/python -m tests.benchmarks.report
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from . import sections
from .compare import Table
from .curves import draw
from .results import Result, read_results
from .scale import SCALES, Scale, read_scales

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "benchmarks" / "results.jsonl"
DOCUMENT = ROOT / "BENCHMARKS.md"
PICTURE = ROOT / "docs" / "benchmark-curves.png"

_INTRODUCTION = """\
# Benchmarks

Made by `python -m tests.benchmarks.report` from `tests/benchmarks/results.jsonl`; do not edit.

| mode | what runs |
|---|---|
| (a) | TVM's `tune_relax`, untouched |
| (b) | the same evolutionary search, cost model and gradient scheduler on our warm workers, with our measurement; both \
ready before the clock starts |
| (c) | ours, cold: an empty registry |
| (d) | ours, warm: the registry holds the earlier version; the time of tuning that is not counted |
| (e) | ours, zero trials: exact records, and one guess for every other task, measured only to report it |

Every mode runs in a process of its own, on the same lowered tasks; the modes of one comparison follow each other in one
sitting. Each is granted the same trials: on `det` and `bert`, which carry the claims, 64 for the tasks that make up 90% of the
expected untuned time and 16 for the others; elsewhere 16 a task. (a) and (b) measure 16 a round, ours at most 8.

Latencies of a whole network are *estimated* unless it says end to end: the tasks' own latencies times their calls, added up; a
task of which nothing was measured yet counts untuned. A ratio above 1 is in our favour. Figures are medians over seeds with
their range; means are geometric, over networks.
"""
_HOW = """\
## Run it

```sh
make bench          # the parts, and what is measured
make bench PART=1   # one of them, with nothing else on the machine; again goes on where it stopped

python -m tests.benchmarks.catalog_scale --keep --records 100000
python -m tests.benchmarks.catalog_scale --keep --records 1000000 --database postgresql
python -m tests.benchmarks.report
```

A result is measured once. To measure it anew, after a change for example, remove its line from
`tests/benchmarks/results.jsonl`.
"""


def render(results: Sequence[Result], picture: str = "", scales: Sequence[Scale] = ()) -> str:
    """The whole document."""
    table = Table(results)
    curves = f"![Estimated latency against seconds of tuning]({picture})\n" if picture and results else ""
    parts = [
        _INTRODUCTION,
        sections.goals_section(table),
        sections.missing_section(results),
        sections.ratios_section(table),
        sections.section("Curves", curves),
        sections.times_section(table),
        sections.origins_section(table),
        sections.end_to_end_section(table),
        sections.memory_section(table),
        sections.ablations_section(table),
        sections.conditions_section(results),
        sections.scale_section(scales),
        _HOW,
    ]
    return "\n".join(part for part in parts if part)


def write(results: Sequence[Result], document: Path = DOCUMENT, picture: Path = PICTURE, scales: Path = SCALES) -> None:
    """Write the document and, once there are results, the picture."""
    if results:
        draw(results, picture)
    document.write_text(render(results, str(picture.relative_to(document.parent)), read_scales(scales)), encoding="utf-8")


def main() -> None:
    """Write BENCHMARKS.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    write(read_results(given.results))


if __name__ == "__main__":
    main()
