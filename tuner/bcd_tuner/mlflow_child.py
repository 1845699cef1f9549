"""The process that logs a tune: what MLflow does to it, hanging included, the tune does not feel.

It reads lines of JSON: first `{"uri", "experiment"}`, then `{"entry"}`, the folder of the run that is to be logged. It says
`{"ready"}` once MLflow is imported, and for a store without a server once that is open, then `{"run_id", "experiment_id"}` or
`{"error"}`. Until then it ends when its input does. Afterwards it logs the runs of the clusters, whatever becomes of the tune,
for a minute at most: each of them takes three requests, and there are dozens.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

_TIMEOUT_S = 10.0
_ALONE_S = 60
_LOWER_PRIORITY = 10


def main() -> None:
    """Serves one run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_LOWER_PRIORITY)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    alone = threading.Event()
    threading.Thread(target=_read, args=(lines, alone), daemon=True).start()
    try:
        _log(json.loads(lines.get()), lines, answers, alone)
    except Exception as error:  # noqa: BLE001 - whatever MLflow, its database or its server throws
        _say(answers, {"error": _described(error)})
    os._exit(0)  # threads of MLflow may hang, and nothing is left to be done


def _log(settings: dict[str, str], lines: queue.SimpleQueue[str], answers: IO[str], alone: threading.Event) -> None:
    from bcd_tuner.mlflow_spool import holding, read_entry, remove_entry
    from bcd_tuner.mlflow_store import MlflowStore, quiet, set_patience

    set_patience(_TIMEOUT_S, retries=1)
    served = settings["uri"].startswith("http")
    if served:
        _say(answers, {"ready": True})
    with quiet():
        store = MlflowStore(settings["uri"], settings["experiment"])
        store.open()
        if not served:
            _say(answers, {"ready": True})
        folder = Path(json.loads(lines.get())["entry"])
        with holding(folder) as mine:
            if not mine:
                raise FileNotFoundError(f"another process logs {folder}")
            entry = read_entry(folder)
            logged = store.write_run(entry.log, entry.pictures)
            alone.set()
            signal.alarm(_ALONE_S)
            _say(answers, {"run_id": logged.run_id, "experiment_id": logged.experiment_id})
            store.write_clusters(entry.log, logged)
            remove_entry(folder)


def _read(lines: queue.SimpleQueue[str], alone: threading.Event) -> None:
    """Hand lines on; the end of the input is the end of the tune, and of this process while it has not logged the run."""
    for line in sys.stdin:
        lines.put(line)
    if not alone.is_set():
        os._exit(0)


def _say(answers: IO[str], message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        answers.write(json.dumps(message) + "\n")
        answers.flush()


def _described(error: Exception) -> str:
    from bcd_tuner.run_log import without_secrets

    return without_secrets(" ".join(str(error).split()) or type(error).__name__)[:300]


if __name__ == "__main__":
    main()
