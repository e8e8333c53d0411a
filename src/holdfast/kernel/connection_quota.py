"""Limits on the connections of a server, in total and per address."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

C = TypeVar("C", bound=Hashable)
_NETWORK_BITS: Final = 64


class ConnectionQuota(Generic[C]):
    """The connections of one server, counted. Used by one thread.

    A connection counts as unauthenticated until `admit` is called. Unauthenticated connections have a limit of their
    own, and a new one is always accepted: above the limit, the oldest one of the busiest address is dropped. So a
    client that authenticates at once gets in, however many idle connections there are.

    Args:
        max_connections: Authenticated connections, in total.
        max_per_address: Authenticated connections of one address.
        max_unauthenticated: Unauthenticated connections, in total.
    """

    def __init__(self, max_connections: int, max_per_address: int, max_unauthenticated: int) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._max_unauthenticated = max_unauthenticated
        self._unauthenticated: dict[str, dict[C, None]] = {}
        self._admitted: dict[str, set[C]] = {}
        self._origins: dict[C, str] = {}

    def add(self, connection: C, host: str) -> C | None:
        """Count a new, unauthenticated connection.

        Args:
            connection: The new connection.
            host: The address of the client.

        Returns:
            The connection that must be closed because there are too many; it counts no longer. None if there is room.
        """
        origin = _origin_of(host)
        self._origins[connection] = origin
        self._unauthenticated.setdefault(origin, {})[connection] = None
        if sum(map(len, self._unauthenticated.values())) <= self._max_unauthenticated:
            return None
        busiest: dict[C, None] = max(self._unauthenticated.values(), key=len)
        oldest = next(iter(busiest))
        self.remove(oldest)
        return oldest

    def admit(self, connection: C) -> str | None:
        """Count a connection as authenticated.

        Returns:
            None, or why there is no room; the connection then stays unauthenticated.
        """
        origin = self._origins.get(connection)
        if origin is None:
            return "The connection is closed."
        same = self._admitted.get(origin, set())
        if sum(map(len, self._admitted.values())) >= self._max_connections:
            return f"The server already has {self._max_connections} connections. Try again later."
        if len(same) >= self._max_per_address:
            return f"The server already has {self._max_per_address} connections from {origin}. Try again later."
        self.remove(connection)
        self._origins[connection] = origin
        self._admitted.setdefault(origin, set()).add(connection)
        return None

    def remove(self, connection: C) -> None:
        """Stop counting a connection; unknown ones are ignored."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        waiting, admitted = self._unauthenticated.get(origin, {}), self._admitted.get(origin, set())
        waiting.pop(connection, None)
        admitted.discard(connection)
        if not waiting:
            self._unauthenticated.pop(origin, None)
        if not admitted:
            self._admitted.pop(origin, None)


def _origin_of(host: str) -> str:
    """Return the address to count by; for IPv6 its /64 network, in which a client has any number of addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
