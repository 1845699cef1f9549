"""How often a canary raises a false alarm on an idle machine: `python -m tests.benchmarks.canary_noise`.

A small network is tuned once, and nothing changes after that. Every check is a session of its own, with new processes. The
spread between sessions that it prints is what `bcd_tuner.drift.SESSION_NOISE` has to cover. Some 15 minutes for 500 checks.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import beta

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.model import NetworkSpec
from bcd_registry.registry import Registry
from bcd_tuner.canary import CanaryRequest, check_network_records
from bcd_tuner.canary_report import CanaryReport, RecordCheck
from bcd_tuner.drift import RecordVerdict
from bcd_tuner.session import TuneRequest, tune

SOURCE = "package:rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
SHAPE = (1, 3, 48, 192)
_TRIALS = 8
_CONFIDENCE = 0.95
_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Alarms:
    """Alarms among independent trials, with the exact binomial interval.

    Attributes:
        low: Lower end of the 95% interval of the rate (Clopper and Pearson).
        high: Its upper end.
    """

    n_alarms: int
    n: int
    low: float
    high: float

    @classmethod
    def of(cls, n_alarms: int, n: int) -> Alarms:
        """Of so many alarms in n trials."""
        tail = (1 - _CONFIDENCE) / 2
        low = float(beta.ppf(tail, n_alarms, n - n_alarms + 1)) if n_alarms else 0.0
        high = float(beta.ppf(1 - tail, n_alarms + 1, n - n_alarms)) if n_alarms < n else 1.0
        return cls(n_alarms, n, low, high)

    def __str__(self) -> str:
        """The rate with its interval."""
        rate = self.n_alarms / self.n if self.n else 0.0
        return f"{self.n_alarms} of {self.n}: {rate:.2%} ({self.low:.2%} to {self.high:.2%})"


def judged(reports: Sequence[CanaryReport]) -> list[RecordCheck]:
    """Checks of records that have a schedule to doubt."""
    return [check for report in reports for check in report.records if check.verdict is not RecordVerdict.UNTUNED]


def check_often(spec: NetworkSpec, registry: Registry, n_record_checks: int, say: Callable[[str], None]) -> list[CanaryReport]:
    """Check all records of the network until so many record checks are done; nothing is marked."""
    reports: list[CanaryReport] = []
    while (n_done := len(judged(reports))) < n_record_checks:
        request = CanaryRequest(spec, seed=len(reports), mark=False)
        reports.append(check_network_records(request, registry, progress=lambda event: None))
        if len(judged(reports)) == n_done:
            raise SystemExit("the network has no tuned record: more trials?")
        say(f"{len(judged(reports))} of {n_record_checks}: {describe(reports[-1:])[1]}")
    return reports


def describe(reports: Sequence[CanaryReport]) -> list[str]:
    """What is to be known of the noise, a line each."""
    checks = judged(reports)
    bad = [check for check in checks if check.bad]
    moved = [report for report in reports if report.machine is not None and report.machine.moved]
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in Counter(str(check.verdict) for check in checks).most_common())
    factors = np.array([math.log(check.factor) for check in checks if check.factor])
    untuned = np.array([shift for report in reports for shift in _untuned_shifts(report)])
    return [
        f"record checks with an alarm   {Alarms.of(len(bad), len(checks))}",
        f"verdicts                      {verdicts}; measured twice: {sum(check.confirmed for check in checks)}",
        f"checks with an alarm          {Alarms.of(sum(not report.holds for report in reports), len(reports))}",
        f"the machine moved in          {len(moved)} of {len(reports)} checks",
        f"records with an alarm         {len({check.record for check in bad})} of {len({check.record for check in checks})}",
        f"log ratio, beside untuned     {_spread(factors)}",
        f"log ratio of untuned programs {_spread(untuned)}",
    ]


def _untuned_shifts(report: CanaryReport) -> list[float]:
    """What untuned programs did beside the machine: what `SESSION_NOISE` is about, and the noise of runs."""
    machine = report.machine
    pairs = [(check.now_untuned_ms, check.stored_untuned_ms) for check in report.records]
    known = [(now, stored) for now, stored in pairs if now and stored]
    return [math.log(now / stored / machine.factor) for now, stored in known] if machine else []


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    if not values.size:
        return "not known"
    robust = _TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))
    far = float(np.percentile(np.abs(values), 99))
    return f"deviation {float(np.std(values)):.3f}, robust {robust:.3f}, 99% within {far:.3f}"


def main() -> None:
    """Tune, check, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--record-checks", type=int, default=500)
    parser.add_argument("--trials", type=int, default=_TRIALS)
    options = parser.parse_args()
    shapes = {"x": SHAPE} if options.source == SOURCE else {}
    spec = NetworkSpec("noise", "noise", "1", options.source, shapes, trials=options.trials)
    with tempfile.TemporaryDirectory() as folder, SqlCatalog.open_file(Path(folder) / "catalog.db") as catalog:
        registry = Registry(catalog, MemoryBlobs())
        tuned = tune(TuneRequest(spec), registry, progress=lambda event: None)
        print(f"tuned {len(tuned.tasks)} tasks in {tuned.wall_s:.0f} s, {tuned.trials} trials; published: {tuned.checked}")
        reports = check_often(spec, registry, options.record_checks, lambda line: print(line, flush=True))
    print()
    for line in describe(reports):
        print(line)
    for note in sorted({note for report in reports for note in report.notes if not note.startswith("read-only")}):
        print(f"note: {note}")


if __name__ == "__main__":
    main()
