"""What people see, compared with files. To accept a change: `BCD_ACCEPT=1 pytest tests/cli`, then read the diff."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

GOLDEN = Path(__file__).with_name("golden")
_ACCEPT = bool(os.environ.get("BCD_ACCEPT"))  # before the tests clean the environment
_COMMAND = "  bcd-registry "
"""How lines begin that are not broken, so that they can be copied."""


def text_of(renderable: RenderableType) -> str:
    """Its text on 80 columns, without blanks at the ends of lines."""
    file = io.StringIO()
    Console(file=file, width=80, color_system=None).print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def assert_golden(name: str, renderable: RenderableType) -> None:
    """It looks as it did, and fits."""
    path, text = GOLDEN / f"{name}.txt", text_of(renderable)
    if _ACCEPT:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(len(line) for line in text.splitlines() if not line.startswith(_COMMAND)) <= 80
