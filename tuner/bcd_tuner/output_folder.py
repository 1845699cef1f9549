"""A folder that appears whole or not at all, and that takes the place of nothing but an earlier one of its kind."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from bcd_registry.errors import ConfigError

from .loader import read_manifest
from .shipped.load import MANIFEST

_ELSEWHERE = "give a new or an empty folder with -o"
_LEFT_BY_PYTHON = "__pycache__"


def check_free(folder: Path) -> Path:
    """The folder's real path, when it may be written.

    Raises:
        ConfigError: Something else is there.
    """
    try:
        real = folder.expanduser().resolve()
        if real.exists():
            _require_own(folder, {path.name for path in real.iterdir()})
        _require_writable(folder, next(path for path in real.parents if path.exists()))
    except NotADirectoryError as error:
        raise ConfigError(f"{folder} is not a folder", hint=_ELSEWHERE) from error
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, or no home
        raise ConfigError(f"cannot use {folder}: {getattr(error, 'strerror', None) or error}", hint=_ELSEWHERE) from error
    return real


@contextlib.contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside the real path, which takes its name when the block ends well and is removed otherwise.

    Raises:
        ConfigError: It cannot be written, or something else is there by now.
    """
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        with write_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft.mkdir()
        yield draft
        check_free(folder)
        with write_errors(folder):
            _flush(draft)
            _take_place(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """What the system refuses is an error that a user can mend.

    Raises:
        ConfigError: It refuses to write the folder.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}", hint=_ELSEWHERE) from error


def _require_writable(folder: Path, above: Path) -> None:
    """Refuse early: a draft is written beside the folder."""
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise ConfigError(f"cannot write {folder}: {above} is not a folder that this user may write", hint=_ELSEWHERE)


def _require_own(folder: Path, names: set[str]) -> None:
    """Refuse what this command did not write: the whole folder is going to be replaced."""
    if not names:
        return
    if MANIFEST not in names:
        raise ConfigError(f"{folder} is not empty, and not a compiled network", hint=_ELSEWHERE)
    extra = sorted(names - {MANIFEST, _LEFT_BY_PYTHON, *read_manifest(folder)["files"]})
    if extra:
        raise ConfigError(f"{folder} holds what is not part of a compiled network: {extra[0]}", hint=_ELSEWHERE)


def _take_place(draft: Path, folder: Path) -> None:
    if not folder.exists():
        draft.rename(folder)
        return
    old = draft.with_suffix(".old")
    folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
