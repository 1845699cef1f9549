"""What the options before a command's name say, and what is opened from them."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bcd_cli.interrupts import Interrupts

if TYPE_CHECKING:
    from rich.console import Console

    from bcd_registry.registry import Registry
    from bcd_registry.settings import Settings


@dataclass
class State:
    """The options before the command's name, and what is opened from them when it is first needed.

    Attributes:
        interrupts: What Ctrl-C and SIGTERM do.
    """

    home: Path | None = None
    config: Path | None = None
    debug: bool = False
    read_only: bool = False
    require_registry: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts, repr=False)
    _settings: Settings | None = field(default=None, repr=False)
    _scratch: Path | None = field(default=None, repr=False)
    _consoles: dict[bool, Console] = field(default_factory=dict, repr=False)

    @property
    def settings(self) -> Settings:
        """Flags before environment before file.

        Raises:
            ConfigError: The file or a value in it is wrong.
        """
        if self._settings is None:
            from bcd_registry.settings import load_settings

            self._settings = load_settings(
                home=self.home,
                config=self.config,
                read_only=self.read_only or None,
                require_registry=self.require_registry or None,
            )
        return self._settings

    @contextlib.contextmanager
    def open_registry(self) -> Iterator[Registry]:
        """The registry that the settings name, closed at the end."""
        from bcd_registry.settings import open_registry

        with open_registry(self.settings) as registry:
            yield registry

    @property
    def scratch(self) -> Path:
        """A folder that goes with the process."""
        if self._scratch is None:
            from bcd_tuner.scratch import Scratch

            scratch = Scratch()
            atexit.register(scratch.close)
            self._scratch = scratch.path
        return self._scratch

    @property
    def out(self) -> Console:
        """Standard output, for results only."""
        return self._console(stderr=False)

    @property
    def err(self) -> Console:
        """Standard error, for everything else."""
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        from bcd_cli.rendering.console import make_console

        if stderr not in self._consoles:
            self._consoles[stderr] = make_console(stderr=stderr)
        return self._consoles[stderr]


def state_of(ctx: typer.Context) -> State:
    """The state that the options before the command's name made."""
    state = ctx.obj
    if not isinstance(state, State):
        raise TypeError("the command was called without its group")
    return state
