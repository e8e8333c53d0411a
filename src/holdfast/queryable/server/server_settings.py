"""How a server listens, and who may ask it."""

from __future__ import annotations

import hmac
import socket
import ssl as tls_module
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.option import ConfigOption
from holdfast.queryable.replica.follower import DEFAULT_POLL
from holdfast.queryable.wire.errors import UnauthorizedError
from holdfast.queryable.wire.limits import Limits

_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})
_PORTS: Final = 65536


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens that a server asks for.

    Attributes:
        readers: Of whoever reads; None if anybody may.
        servers: Of servers that register what they hold; None if it is that of readers.
    """

    readers: str | None = None
    servers: str | None = None

    def is_of_readers(self, given: Any) -> bool:
        """Whether somebody with this token may read."""
        return self.readers is None or _same(given, self.readers)

    def is_of_servers(self, given: Any) -> bool:
        """Whether somebody with this token may also say that he holds state: others will read it from him."""
        return self.is_of_readers(given) if self.servers is None else _same(given, self.servers)

    def check(self, given: Any) -> bool:
        """Return whether a token is that of servers.

        Raises:
            UnauthorizedError: It is that of nobody.
        """
        is_server = self.is_of_servers(given)
        if not is_server and not self.is_of_readers(given):
            raise UnauthorizedError("The bearer token is missing or wrong. Give the one that the server has.")
        return is_server


def _same(given: Any, wanted: str) -> bool:
    """Compare in a time that tells nothing about the token."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())


@dataclass(frozen=True)
class ServerSettings:
    """How a server listens.

    Attributes:
        host: The address to listen at.
        ports: The first free one is taken; 0 is any.
        token: Bearer token that clients must show; None if anybody may ask.
        server_token: Bearer token that servers show to each other and without which none registers here; None if it is
            the same.
        tls: Of the listening side.
        peer_tls: For connections to other servers.
        limits: What clients may do.
        poll: Seconds between two looks for a completed checkpoint that nobody told of.
        advertised: The host under which others reach this server; if empty the one to listen at, or the machine's name
            where that is all addresses (0.0.0.0, ::).
    """

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (0,)
    token: str | None = None
    server_token: str | None = None
    tls: tls_module.SSLContext | None = None
    peer_tls: tls_module.SSLContext | None = None
    limits: Limits = field(default_factory=Limits)
    poll: float = DEFAULT_POLL
    advertised: str = ""

    @property
    def tokens(self) -> Tokens:
        """What others must show."""
        return Tokens(self.token, self.server_token)

    @property
    def shown_token(self) -> str | None:
        """What this server shows to others."""
        return self.token if self.server_token is None else self.server_token

    @property
    def shown_host(self) -> str:
        """The host that others are told."""
        return self.advertised or (socket.gethostname() if self.host in _ALL_ADDRESSES else self.host)


def ports_from(configuration: Configuration, option: ConfigOption[str]) -> tuple[int, ...]:
    """Return the ports of `9069`, `9069,9071` or `9069-9075`.

    Raises:
        ConfigurationError: It is something else.
    """
    text = configuration.get(option)
    ports: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            begin, end = int(first), int(last if dash else first)
            if not 0 <= begin <= end < _PORTS:
                raise ValueError(part)
            ports.extend(range(begin, end + 1))
    except ValueError:
        raise ConfigurationError(
            f"Option {option.key!r}: {text!r} names no ports; write '9069', '9069,9071' or '9069-9075'."
        ) from None
    return tuple(ports)
