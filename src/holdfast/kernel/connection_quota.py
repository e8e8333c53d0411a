"""How many connections a server has, in all and of each address, and who goes when there are too many."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

C = TypeVar("C", bound=Hashable)
_NETWORK_BITS: Final = 64


class ConnectionQuota(Generic[C]):
    """Counts the connections of one server; belongs to one thread.

    Whoever has connected and has not shown yet that he may is a *stranger*. Strangers are counted apart, so that they
    take nobody's place, and a new one is always taken: if there are too many, the one of the address with the most of
    them goes who has been there longest. So who says at once who he is comes in, however many say nothing.

    Args:
        most: Connections of those who may.
        of_one_address: The same, of one address.
        strangers: Connections of strangers.
    """

    def __init__(self, most: int, of_one_address: int, strangers: int) -> None:
        self._most = most
        self._of_one_address = of_one_address
        self._most_strangers = strangers
        self._strangers: dict[str, dict[C, None]] = {}
        self._admitted: dict[str, set[C]] = {}
        self._origins: dict[C, str] = {}

    def arrived(self, connection: C, host: str) -> C | None:
        """Count a stranger, and return the one that has to go, which counts no more.

        Args:
            connection: The stranger's.
            host: The address from which it came.
        """
        origin = _origin_of(host)
        self._origins[connection] = origin
        self._strangers.setdefault(origin, {})[connection] = None
        if sum(map(len, self._strangers.values())) <= self._most_strangers:
            return None
        busiest: dict[C, None] = max(self._strangers.values(), key=len)
        longest = next(iter(busiest))
        self.left(longest)
        return longest

    def admit(self, connection: C) -> str | None:
        """Count a stranger among those who may, or return why there is no place for it; then it stays a stranger."""
        origin = self._origins.get(connection)
        if origin is None:
            return "The connection has ended."
        same = self._admitted.get(origin, set())
        if sum(map(len, self._admitted.values())) >= self._most:
            return f"The server has {self._most} connections already. Try again later."
        if len(same) >= self._of_one_address:
            return f"The server has {self._of_one_address} connections of {origin} already. Try again later."
        self.left(connection)
        self._origins[connection] = origin
        self._admitted.setdefault(origin, set()).add(connection)
        return None

    def left(self, connection: C) -> None:
        """Count a connection no more, if it counts."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        strangers, admitted = self._strangers.get(origin, {}), self._admitted.get(origin, set())
        strangers.pop(connection, None)
        admitted.discard(connection)
        if not strangers:
            self._strangers.pop(origin, None)
        if not admitted:
            self._admitted.pop(origin, None)


def _origin_of(host: str) -> str:
    """What counts as one address: of IPv6 the network, in which anybody has as many addresses as he likes."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
