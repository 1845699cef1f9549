"""Leases of clusters: tuners at work on one registry at the same time search different ones, and use what the others found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bcd_registry.errors import BcdError, StoreDenied
from bcd_registry.model import Lease
from bcd_registry.registry import Registry

LEASE_S = 30.0
"""Seconds after which the lease of a tuner that died is anybody's; a living one renews three times as often."""

RETRY_S = 1.0
"""Seconds until a lease that another run holds is asked for again."""


class ClusterLeases:
    """The clusters that one run may search now. `acquire` and `release` belong to one thread; another renews.

    A registry that gives no leases does not stop the run: it then works as if it were alone, and `note` says so.

    Args:
        holder: The run.
        prefix: What the clusters are searched for: the environment's key.
    """

    def __init__(
        self,
        registry: Registry,
        holder: str,
        prefix: str,
        *,
        lease_s: float = LEASE_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.note = ""
        self._alone = False
        self._registry, self._holder, self._prefix = registry, holder, prefix
        self._lease_s, self._retry_s, self._clock = lease_s, retry_s, clock
        self._held: dict[str, Lease] = {}
        self._ask_again_at: dict[str, float] = {}
        self._changes = threading.Lock()
        self._closed = threading.Event()
        self._renewer: threading.Thread | None = None

    def holds(self, cluster: str) -> bool:
        """Whether the run may search the cluster without asking."""
        return self._alone or cluster in self._held

    def acquire(self, cluster: str) -> bool:
        """Take the cluster's lease; False while another run holds it, which is asked once a second at most."""
        if self._clock() < self._ask_again_at.get(cluster, 0.0):
            return False
        try:
            lease = self._registry.acquire_lease(f"{self._prefix}/{cluster}", self._holder, self._lease_s)
        except BcdError as error:
            self._alone = True
            if not isinstance(error, StoreDenied):  # a reader knows that it is one
                self.note = f"work is not shared with other tuners: {error.message}"
            return True
        if lease is None:
            self._ask_again_at[cluster] = self._clock() + self._retry_s
            return False
        with self._changes:
            self._held[cluster] = lease
        if self._renewer is None:
            self._renewer = threading.Thread(target=self._renew_all, name="leases", daemon=True)
            self._renewer.start()
        return True

    def fences(self, cluster: str) -> tuple[Lease, ...]:
        """What a write about the cluster is guarded with: it is refused once another run took the lease."""
        lease = self._held.get(cluster)
        return () if lease is None else (lease,)

    def lose(self, cluster: str) -> None:
        """Forget a lease that another run took."""
        with self._changes:
            self._held.pop(cluster, None)

    def release(self, cluster: str) -> None:
        """Give the lease back."""
        with self._changes:
            lease = self._held.pop(cluster, None)
        if lease is not None:
            try:
                self._registry.release_lease(lease)
            except BcdError:
                return  # it expires by itself

    def close(self) -> None:
        """Give all leases back and stop renewing."""
        self._closed.set()
        if self._renewer is not None:
            self._renewer.join()
        for cluster in list(self._held):
            self.release(cluster)

    def _renew_all(self) -> None:
        while not self._closed.wait(self._lease_s / 3):
            for cluster, lease in list(self._held.items()):
                self._renew(cluster, lease)

    def _renew(self, cluster: str, lease: Lease) -> None:
        try:
            renewed = self._registry.renew_lease(lease, self._lease_s)
        except BcdError:
            return  # tried again; until then another run may take it, and fences keep the two apart
        with self._changes:
            if self._held.get(cluster) is not lease:
                return
            if renewed is None:
                del self._held[cluster]
            else:
                self._held[cluster] = renewed
