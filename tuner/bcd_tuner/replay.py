"""Records and schedules: a schedule becomes a record's trace and decisions, and a trace becomes a schedule again."""

from __future__ import annotations

import json
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace
from tvm.tirx import FloatImm, IntImm

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Json

from .trace_forms import checked_trace


def trace_as_json(schedule: Schedule) -> Json:
    """The whole trace, postprocessing included, as plain JSON."""
    return json.loads(json.dumps(schedule.trace.as_json(), default=_plain_number))


def _plain_number(value: Any) -> int | float:
    """TVM leaves its own numbers in the JSON."""
    if isinstance(value, IntImm):
        return int(value.value)
    if isinstance(value, FloatImm):
        return float(value.value)
    raise TypeError(f"a trace holds a {type(value).__name__}, which no JSON can carry")


def replay(mod: Any, trace: Json) -> Schedule:
    """Apply a stored trace to a task's module.

    Raises:
        CorruptBlob: The trace is none, or does not fit the module.
    """
    checked = checked_trace(trace)
    schedule = Schedule(mod)
    try:
        Trace.apply_json_to_schedule(checked, schedule)
    except Exception as error:  # TVM raises whatever its C++ does; each of them means that the trace does not fit
        raise CorruptBlob(f"the trace does not replay: {str(error).strip().splitlines()[-1][:200]}") from error
    return schedule
