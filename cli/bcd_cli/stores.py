"""What a run reads from and writes to: the registry, or in its place a spool on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bcd_registry.errors import StoreUnavailable
from bcd_registry.registry import Registry
from bcd_registry.settings import Settings, open_registry
from bcd_registry.spool import Outbox, open_spool, publish_at_start


@dataclass(frozen=True, slots=True)
class Stores:
    """The registry of a run, and the way of what it finds.

    Attributes:
        registry: What the settings name, or an empty one in memory when that does not answer.
        missing: Why it does not answer; empty when it does.
        unread: Takes in memory what a registry that is only read refuses; None when it takes it itself.
        notes: Lines for people.
    """

    settings: Settings
    registry: Registry
    missing: str = ""
    unread: Registry | None = None
    notes: tuple[str, ...] = ()

    def open_outbox(self, run_id: str) -> Outbox:
        """To the registry, and to the spool of the run while that does not answer; nowhere when the registry is only read."""
        if self.unread is not None:
            return Outbox(self.unread, None)
        spool = open_spool(self.settings, run_id)
        return Outbox(None if self.missing else self.registry, spool, reason=self.missing)


@contextlib.contextmanager
def open_stores(settings: Settings, *, required: bool = False) -> Iterator[Stores]:
    """Open the registry, and publish what earlier runs have spooled for it.

    A team's registry that does not answer is stood in for, unless it is required. The home's own is not: a spool would lie on
    the same disk.

    Args:
        required: Whether a registry that does not answer is an error, whatever the settings say.

    Raises:
        RegistryError: It cannot be used, or does not answer and must.
    """
    with contextlib.ExitStack() as opened:
        missing = ""
        try:
            registry = opened.enter_context(open_registry(settings))
        except StoreUnavailable as error:
            if required or settings.require_registry or (settings.database_url is None and settings.blobs_url is None):
                raise
            missing = error.message
        if missing or settings.read_only:
            in_memory = opened.enter_context(open_registry(replace(settings, registry_enabled=False, read_only=False)))
        if missing:
            note = f"the registry does not answer, so the run works without it: {missing}"
            yield Stores(settings, in_memory, missing, notes=(note,))
        elif settings.read_only:
            yield Stores(settings, registry, unread=in_memory, notes=("read-only: what is found is not published",))
        else:
            published = publish_at_start(registry, settings)
            yield Stores(settings, registry, notes=(published,) if published else ())
