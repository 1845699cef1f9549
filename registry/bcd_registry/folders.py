"""Folders and files that survive a power cut, and what the system says about them as errors that a user can act on."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import RegistryError, StoreDenied, StoreUnavailable

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
FULL = {errno.ENOSPC, errno.EDQUOT}
"""Numbers of errors that say a disk, or one's share of it, is full."""

_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}


def store_error(error: OSError, root: Path) -> RegistryError:
    """The error to raise for a failed operation below `root`."""
    where = error.filename or root
    if error.errno in _DENIED:
        return StoreDenied(f"no permission for {where}", hint=f"give this user write access to {root}, or set BCD_HOME")
    if error.errno in FULL:
        return StoreUnavailable(f"no space left for {where}", hint=f"free some space, or move {root} with BCD_HOME")
    if error.errno in _NOT_A_FOLDER:
        return StoreUnavailable(f"{where} is in the way: not a folder", hint="move it away, or set BCD_HOME to a folder")
    return StoreUnavailable(f"cannot use {where}: {error.strerror or error}", hint="check the file system, or set BCD_HOME")


@contextlib.contextmanager
def store_errors(root: Path) -> Iterator[None]:
    """Turn any `OSError` of the block into `StoreDenied` or `StoreUnavailable`.

    Raises:
        StoreDenied: No permission.
        StoreUnavailable: No space, or anything else.
    """
    try:
        yield
    except OSError as error:
        raise store_error(error, root) from error


def make_folder(path: Path) -> None:
    """Make the folder and its parents, so that they survive a power cut."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _flush_folder(path.parent)


def write_whole(path: Path, data: bytes, *, temporary: Path, prefix: str = "", suffix: str = "") -> None:
    """The file is there whole and on the disk, or not at all.

    Args:
        temporary: The folder on the same file system that it is written in first, under `prefix` and `suffix`.
    """
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=temporary)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
