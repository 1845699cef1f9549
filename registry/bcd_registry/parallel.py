"""Small requests to a store, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

N_THREADS = 8
"""A request to a store is mostly waiting."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """What `call` returns for each item, in their order.

    Of several errors the first in that order is raised; what has not begun by then is not called.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(N_THREADS, len(items)), thread_name_prefix="store") as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            return [each.result() for each in calls]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
