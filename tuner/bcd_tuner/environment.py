"""What a latency depends on beside the workload, as this process sees it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm.target import Target, codegen

from bcd_registry.model import Environment, Json
from bcd_tuner.targets import canonical_target, isa_features, usable_cores

_CALIBRATION_SIZE = 192
_CALIBRATION_RUNS = 15


def current_environment(target: Target, measurement: Mapping[str, Json]) -> Environment:
    """The environment of what is measured now.

    Args:
        target: What code is generated for.
        measurement: How latency is measured: `WarmPool.measurement`. Its programs run on as many threads as there are cores.
    """
    return Environment(
        {
            "tvm": str(tvm.__version__),
            "tvm_ffi": str(tvm_ffi.__version__),
            "llvm": str(codegen.llvm_version_major(allow_none=True)),
            "target": canonical_target(target),
            "isa": list(isa_features(target)),
            "cores": int(target.attrs.get("num-cores", usable_cores())),
            "measurement": dict(sorted(measurement.items())),
            "cpu_model": cpu_model(),
            "calibration_ms": calibration_ms(),
            "load": machine_load(),
        }
    )


def cpu_model() -> str:
    """The processor's name as the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def machine_load() -> float | None:
    """How many processes ran or waited in the last minute, on average; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def calibration_ms() -> float:
    """How long a fixed amount of single-threaded work takes here, milliseconds; takes well under 100 ms.

    The work is numpy's elementwise arithmetic over arrays that stay in the cache: no BLAS, whose threads and kernels
    differ between installations.
    """
    rng = np.random.default_rng(0)
    values = rng.random((_CALIBRATION_SIZE, _CALIBRATION_SIZE), dtype=np.float32)
    times = []
    for _ in range(_CALIBRATION_RUNS):
        began = time.perf_counter()
        total = values
        for _ in range(16):
            total = np.sqrt(total * values + np.float32(0.5))
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e3, 4)
