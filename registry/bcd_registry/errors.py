"""The whole hierarchy of errors, each with the exit code that a script may rely on."""

from __future__ import annotations


class BcdError(Exception):
    """An error that a user can act on.

    Attributes:
        message: One line: what is wrong.
        hint: One line: what to do next; empty when the message says it.
        exit_code: What the command line returns.
    """

    exit_code = 5

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(BcdError):
    """A wrong option, shape, target, network name or configuration file."""

    exit_code = 2


class NetworkError(BcdError):
    """A network that cannot be read or imported."""

    exit_code = 3


class RegistryError(BcdError):
    """The registry cannot be used: the parent of what stores report."""

    exit_code = 4


class NotFound(RegistryError):
    """A blob or a row that is not there."""


class Conflict(RegistryError):
    """The key holds other bytes."""


class CorruptBlob(RegistryError):
    """Bytes that do not match their digest, or a record that cannot be read."""


class SchemaMismatch(RegistryError):
    """The database has an older, newer or unknown revision."""


class StoreUnavailable(RegistryError):
    """The store does not answer, is full, or is locked."""


class StoreDenied(RegistryError):
    """The store refuses this user."""


class ReadOnly(StoreDenied):
    """A write where the registry is only read: it was told so, and nothing was sent."""

    exit_code = 9


class MeasureError(BcdError):
    """Building, running or checking failed where it must not."""


class CostModelError(BcdError):
    """A cost model that cannot be loaded or trained."""


class FrozenMismatch(BcdError):
    """What a lock or a compiled folder names is missing, damaged or of something else.

    Attributes:
        problems: One line each, when there may be several.
    """

    exit_code = 7

    def __init__(self, message: str, *, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems
