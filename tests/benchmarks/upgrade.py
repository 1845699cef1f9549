"""What records of TVM 0.26.0 save under this release: `python -m tests.benchmarks.upgrade --seeds 3`, some minutes.

The network of the golden registry is tuned from nothing and from a copy of that registry, both with `--trials 8`: how many
trials each takes, and after how many the second estimates what the first ends with.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bcd_registry.settings import load_settings, open_registry, upgrade_catalog
from bcd_tuner.report import TuneReport
from bcd_tuner.session import TuneRequest, tune
from tests.tuner.upgraded_network import spec_of, write_network

GOLDEN = Path(__file__).parents[1] / "tuner" / "golden" / "tvm-0.26.0"
TRIALS = 8
CLOSE = 1.02
"""An estimate that is so near to another is as good."""


def tuned(network: Path, home: Path, seed: int) -> TuneReport:
    """One tune with the registry in the home."""
    with open_registry(load_settings(home=home)) as registry:
        return tune(TuneRequest(spec_of(network, trials=TRIALS), seed=seed), registry, progress=lambda event: None)


def estimates(report: TuneReport) -> list[tuple[int, float]]:
    """Trials and estimated milliseconds, from the start on."""
    return [(point.trials, point.estimated_ms) for point in report.curve]


def trials_to(report: TuneReport, goal_ms: float) -> int | None:
    """Trials after which the estimate was as good as the goal; None when it never was."""
    return next((trials for trials, estimated_ms in estimates(report) if estimated_ms <= CLOSE * goal_ms), None)


def main(argv: Sequence[str] | None = None) -> None:
    """Tune in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many pairs of tunes (default: %(default)s)")
    options = parser.parse_args(argv)
    saved = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            network = write_network(folder / "upgraded.onnx")
            shutil.copytree(GOLDEN, folder / "golden")
            upgrade_catalog(load_settings(home=folder / "golden"))
            cold = tuned(network, folder / "empty", seed)
            warm = tuned(network, folder / "golden", seed)
        goal_ms = estimates(cold)[-1][1]
        reached = trials_to(warm, goal_ms)
        saved.append(1.0 - (cold.trials if reached is None else reached) / cold.trials)
        print(f"seed {seed}: cold {cold.trials} trials, {goal_ms:.4f} ms; from 0.26.0 {warm.trials} trials", end=", ")
        print(f"{estimates(warm)[-1][1]:.4f} ms; as good as cold after {reached} trials: {saved[-1]:.0%} saved", flush=True)
    print(f"median {statistics.median(saved):.0%} of the trials saved")


if __name__ == "__main__":
    main()
