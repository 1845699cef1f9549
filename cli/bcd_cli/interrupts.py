"""Ctrl-C and SIGTERM. They may not raise while the compiler's C++ is on the stack: that ends the process with a crash."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bcd_tuner.report import ProgressEvent, ProgressSink

INTERRUPTED = 130
_STDERR = 2
_FIRST = b"\nstopping after this step; Ctrl-C again stops at once\n"
_SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """Turns both signals into KeyboardInterrupt: at once, or inside `deferred` when the run next reports a step.

    SIGTERM, which CI sends to a cancelled job, ends a run as Ctrl-C does: workers stopped, records kept.

    Attributes:
        arrived: One came while it was deferred.
    """

    def __init__(self) -> None:
        self.arrived = False
        self._deferred = False
        self._raised = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Take both signals over until the block ends."""
        try:
            before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals don't arrive here
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self, sink: ProgressSink) -> Iterator[ProgressSink]:
        """A sink for the run in the block; after a signal its next call raises KeyboardInterrupt, once.

        A second signal ends the process at once: workers end with their parent, and a record is there whole or not.
        """
        self._deferred = True
        try:
            yield lambda event: self._pass_on(sink, event)
        finally:
            self._deferred = False

    def _pass_on(self, sink: ProgressSink, event: ProgressEvent) -> None:
        sink(event)
        if self.arrived and not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: object) -> None:
        if not self._deferred:
            raise KeyboardInterrupt
        if self.arrived:
            if sys.stderr.isatty():
                os.write(_STDERR, _SHOW_CURSOR)
            os._exit(INTERRUPTED)
        self.arrived = True
        os.write(_STDERR, _FIRST)  # not through a buffer: the signal may have come in the middle of a line
