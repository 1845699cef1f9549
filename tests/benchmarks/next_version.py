"""How much sooner a network's next version is tuned from the first one's priors than alone.

For each seed: v1 into an empty registry, then v2 from that registry (warm), and v2 into an empty registry (alone). The target
is the estimated latency that v2 alone has at the end of its budget; the figure is when each of the two reaches it.

    .venv/bin/python -m tests.benchmarks.next_version --seeds 0 1 2 --trials 32 8 --output next_version.jsonl

Run it with nothing else on the machine. A seed whose line is in the output already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def tune(model: str, home: Path, seed: int, more: Sequence[str]) -> Json:
    """One run of the command in its own process; the object that it prints."""
    script = Path(sys.executable).with_name("bcd-registry")
    command = [str(script), "--home", str(home), "tune", "--model", model, "--seed", str(seed), "--json", *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    report: Json = json.loads(done.stdout)
    return report


def seconds_to(report: Json, target_ms: float) -> float | None:
    """Seconds of tuning until the estimated latency was at most the target; None when it never was."""
    return next((p["seconds"] for p in report["curve"] if p["estimated_ms"] <= target_ms), None)


def trials_to(report: Json, target_ms: float) -> int | None:
    """The same in trials."""
    return next((p["trials"] for p in report["curve"] if p["estimated_ms"] <= target_ms), None)


def compare(warm: Json, alone: Json) -> Json:
    """The figures of one seed."""
    target_ms = alone["curve"][-1]["estimated_ms"]
    reached = seconds_to(warm, target_ms)
    alone_s = sum(alone["time_s"].values())
    return {
        "target_ms": target_ms,
        "alone_s": alone_s,
        "warm_s": reached,
        "ratio": None if reached is None else alone_s / reached,
        "alone_trials": alone["trials"],
        "warm_trials": trials_to(warm, target_ms),
        "warm_final_ms": warm["curve"][-1]["estimated_ms"],
        "warm_all_s": sum(warm["time_s"].values()),
        "warm_all_trials": warm["trials"],
    }


def one_seed(v1: str, v2: str, seed: int, trials: Sequence[int]) -> Json:
    """Three runs, two registries that are thrown away. Which of the two v2 runs goes first alternates with the seed."""
    with tempfile.TemporaryDirectory() as folder:
        taught, empty = Path(folder, "taught"), Path(folder, "empty")
        budgets = [("--trials", str(n)) for n in trials]
        first = tune(v1, taught, seed, budgets[0])
        runs = [("warm", taught), ("alone", empty)]
        reports = {name: tune(v2, home, seed, budgets[1]) for name, home in (runs if seed % 2 == 0 else reversed(runs))}
    summary = compare(reports["warm"], reports["alone"])
    return {"seed": seed, "trials": list(trials), **summary, "reports": {"v1": first, **reports}}


def median_and_range(values: Sequence[float]) -> str:
    """For people."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--v1", default="v1")
    parser.add_argument("--v2", default="v2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, nargs=2, default=[16, 16], help="of v1, and of v2 both times")
    given = parser.parse_args()
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    results = {row["seed"]: row for row in map(json.loads, lines)}
    for seed in given.seeds:
        if seed not in results:
            results[seed] = one_seed(given.v1, given.v2, seed, given.trials)
            with given.output.open("a") as file:
                file.write(json.dumps(results[seed]) + "\n")
        row = {k: v for k, v in results[seed].items() if k != "reports"}
        print(json.dumps(row), flush=True)
    ratios = [results[seed]["ratio"] or 0.0 for seed in given.seeds]
    print(f"v2 alone / v2 from v1's registry, seconds to the same estimated latency: {median_and_range(ratios)}")


if __name__ == "__main__":
    main()
