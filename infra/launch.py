"""Becomes a server that ends with its starter, however that ends: `launch.py PARENT SIGNAL UID GID COMMAND...`.

Run for its effect on the process only: it knows nothing of the servers, and imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(parent: int, death_signal: int, uid: int, gid: int, command: Sequence[str]) -> None:
    """Replaces this process by the command.

    Args:
        parent: Process id that must be this process's parent.
        death_signal: What the kernel sends when the parent ends.
        uid: User to become; only root can become another.
        gid: That user's only group.
    """
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which makes the kernel forget it.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    os.execv(command[0], list(command))


if __name__ == "__main__":
    _parent, _death_signal, _uid, _gid = map(int, sys.argv[1:5])
    main(_parent, _death_signal, _uid, _gid, sys.argv[5:])
