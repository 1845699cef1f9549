"""The benchmark, in parts of at most 150 minutes. Without --part it lists them.

    .venv/bin/python -m tests.benchmarks.run --part 1

Each result is written when it comes, and what has a result is not run again. Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .networks import PAIRS, Pair, spec_of, torch_file, torch_names
from .parts import PARTS, Comparison, missing_modes, needs_first
from .report import RESULTS, ROOT, write
from .results import Job, Result, append_result, read_results

MOST_LOAD = 0.5
"""Mean of waiting processes over the last minute above which nothing is measured."""

CHECKS: Mapping[str, tuple[str, int]] = {
    "keys": ("tests.benchmarks.key_twins", 3),
    "hostile-bytes": ("tests.fuzzing", 15),
    "upgrade": ("tests.benchmarks.upgrade", 10),
}
"""What is not about speed: a module that checks by itself, and about how many minutes it takes."""

EXIT_MISSING = 3
_LEAST_S = 300.0


@dataclass(frozen=True, slots=True)
class Sitting:
    """One call of this script.

    Attributes:
        ends_at: `time.monotonic` after which no mode goes on.
        facts: What every result of it carries.
    """

    work: Path
    results: Path
    ends_at: float
    facts: dict[str, Any]

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.ends_at - time.monotonic()


class OutOfTime(Exception):
    """The sitting is over; what is missing runs in the next."""


def run_part(comparisons: Sequence[Comparison], sitting: Sitting) -> bool:
    """Every mode that has no result yet; False when the time ran out first."""
    _export([PAIRS[c.pair] for c in comparisons], sitting)
    try:
        for comparison in comparisons:
            run_comparison(comparison, sitting)
    except OutOfTime as stopped:
        print(stopped, flush=True)
        return False
    return True


def run_comparison(comparison: Comparison, sitting: Sitting) -> None:
    """The modes of one comparison, v1 before the first that needs its registry.

    Raises:
        OutOfTime: Too little is left for another mode, or one was ended.
    """
    job = job_of(comparison, sitting.work)
    for mode in missing_modes(comparison, read_results(sitting.results)):
        if needs_first(mode):
            _fill_registry(job, sitting)
        _run_mode(mode, job, sitting)


def _fill_registry(job: Job, sitting: Sitting) -> None:
    """Tune v1, unless this revision has done so."""
    mark = Path(job.home, "complete")
    if not mark.exists() or mark.read_text(encoding="utf-8") != sitting.facts["revision"]:
        _run_mode("v1", job, sitting)
        mark.write_text(sitting.facts["revision"], encoding="utf-8")


def job_of(comparison: Comparison, work: Path) -> Job:
    """What the modes of a comparison are told."""
    pair = PAIRS[comparison.pair]
    name = pair.second.torch
    onnx = torch_file(name, work, ".onnx") if name else None
    return Job(
        pair=pair.name,
        seed=comparison.seed,
        second=spec_of(pair, pair.second, work),
        first=spec_of(pair, pair.first, work) if pair.first else None,
        home=str(work / "registries" / f"{pair.name}-{comparison.seed}"),
        light_share=pair.light_share,
        torch=name,
        onnx=str(onnx) if onnx and onnx.exists() else "",
        small=pair.small,
    )


def _run_mode(mode: str, job: Job, sitting: Sitting) -> None:
    if sitting.left_s < _LEAST_S:
        raise OutOfTime("the time is up; run the part again to go on")
    print(f"{_now():%H:%M:%S} {job.pair} seed {job.seed}: {mode}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder, "job.json"), Path(folder, "result.json")
        given.write_text(json.dumps(job.as_json()), encoding="utf-8")
        command = [sys.executable, "-m", "tests.benchmarks.modes", mode, "--job", str(given), "--output", str(output)]
        log = sitting.work / "logs" / f"{job.pair}-{job.seed}-{mode}.log"
        if _run_process(command, log, sitting.left_s):
            result = Result.from_json(json.loads(output.read_text(encoding="utf-8")))
            result = dataclasses.replace(result, facts={**result.facts, **sitting.facts})
            append_result(sitting.results, result)
            print(f"         {result.trials} trials, {result.tuning_s:.0f} s, {result.final_ms:.3g} ms estimated", flush=True)


def _run_process(command: Sequence[str], log: Path, limit_s: float) -> bool:
    """Whether it succeeded. Its words go to the log; its whole group ends when the time is up or this process is stopped."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired as late:
            raise OutOfTime("the time is up: the mode in work was ended; run the part again to go on") from late
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
        print(f"         {'left out' if code == EXIT_MISSING else 'failed'}: {last}; see {log}", flush=True)
    return code == 0


def _export(pairs: Sequence[Pair], sitting: Sitting) -> None:
    """The files of the torch networks, in another process: torch does not come into this one.

    Raises:
        SystemExit: They cannot be made.
    """
    names = torch_names(pairs)
    if not all(torch_file(name, sitting.work, suffix).exists() for name in names for suffix in (".pt2", ".onnx")):
        command = [sys.executable, "-m", "tests.benchmarks.torch_networks", "--work", str(sitting.work), *names]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit("the networks of torch cannot be exported: install the extra `bench`")


def begin(work: Path, results: Path, limit_minutes: float) -> Sitting:
    """A sitting from now on."""
    now = _now()
    facts = {"date": f"{now:%Y-%m-%d}", "sitting": f"{now:%Y-%m-%dT%H:%M:%S}", "revision": _revision()}
    return Sitting(work, results, time.monotonic() + 60 * limit_minutes, facts)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _revision() -> str:
    """The commit that is measured, with a mark when the product's folders differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--", "registry", "tuner") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def listing(results: Sequence[Result]) -> Iterator[str]:
    """The parts, and what each lacks."""
    for number, part in enumerate(PARTS, start=1):
        minutes = sum(comparison.minutes for comparison in part)
        yield f"make bench PART={number}   about {minutes} minutes"
        for comparison in part:
            left = missing_modes(comparison, results)
            state = f"missing {', '.join(left)}" if left else "measured"
            yield f"    {comparison.label}: {', '.join(comparison.modes)}; {state}"
    for name, (module, minutes) in CHECKS.items():
        yield f"make bench PART={name}   about {minutes} minutes"
        yield f"    python -m {module}"


def _refuse_load(force: bool) -> None:
    load = os.getloadavg()[0]
    if load > MOST_LOAD and not force:
        raise SystemExit(f"something else is running: the load is {load:.2f}, {MOST_LOAD} at most; wait, or give --force")


def main() -> None:
    """List the parts, or run one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*map(str, range(1, len(PARTS) + 1)), *CHECKS])
    parser.add_argument("--limit-minutes", type=float, default=150.0)
    parser.add_argument("--force", action="store_true", help="measure although something else is running")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.part is None:
        print("\n".join(listing(read_results(given.results))))
        return
    if given.part in CHECKS:
        raise SystemExit(subprocess.run([sys.executable, "-m", CHECKS[given.part][0]], cwd=ROOT, check=False).returncode)
    _refuse_load(given.force)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what runs ends with it
    finished = run_part(PARTS[int(given.part) - 1], begin(given.work.absolute(), given.results, given.limit_minutes))
    write(read_results(given.results))
    raise SystemExit(0 if finished else 1)


if __name__ == "__main__":
    main()
