"""How much lies in a folder, known without looking at every file in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bcd_registry.folders import write_whole


class SizeLedger:
    """A file of numbers, one a line: what a folder held when it was last counted, and what was put into it since.

    Processes share it: each appends its lines whole, and one that has counted replaces them. It is a guess, above the truth
    when something was put twice or deleted; who finds too much in it counts anew. What goes wrong with the file is no error.
    """

    def __init__(self, path: Path) -> None:
        """Use the file, in a folder that is there once something was put into it."""
        self._path = path

    def read(self) -> int | None:
        """The bytes; None when nobody has counted yet, or the file cannot be read."""
        try:
            numbers = [int(line) for line in self._path.read_text(encoding="ascii").split()]
        except (OSError, ValueError):
            return None
        return sum(numbers) if numbers else None

    def add(self, n_bytes: int) -> None:
        """Note what was put. The file is not made: without a count it would tell too little."""
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(handle, f"{n_bytes}\n".encode())
            finally:
                os.close(handle)

    def replace(self, n_bytes: int) -> None:
        """Note what was counted."""
        with contextlib.suppress(OSError):
            write_whole(self._path, f"{n_bytes}\n".encode(), temporary=self._path.parent, prefix=self._path.name)
