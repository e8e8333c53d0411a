"""Options of queryable state; here and not beside the server, so that every job knows them."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.option import ConfigOption, DurationType, MemorySize

ENABLE: Final = ConfigOption(
    "queryable-state.enable",
    bool,
    False,
    "Whether the process that runs the job also answers queries of its queryable states.",
)

HOST: Final = ConfigOption(
    "queryable-state.host",
    str,
    "127.0.0.1",
    "Where queries are answered. For another address than that of the loopback set a token, and TLS where the network "
    "is not private.",
)

ADVERTISED_HOST: Final = ConfigOption[str | None](
    "queryable-state.advertised-host",
    str,
    None,
    "Host under which other servers and clients reach this server; else queryable-state.host, or the machine's name "
    "where that stands for all addresses (0.0.0.0, ::).",
)

PORTS: Final = ConfigOption(
    "queryable-state.proxy.ports",
    str,
    "9069",
    "Port of the server: one, a list '9069,9071' or a range '9069-9075', of which the first free one is taken; 0 is "
    "any.",
    deprecated_keys=("query.proxy.ports",),
    fallback_keys=("queryable-state.server.ports", "query.server.ports"),
)

TOKEN: Final = ConfigOption[str | None](
    "queryable-state.token", str, None, "Bearer token that clients must show; without it anybody who connects may ask."
)

SERVER_TOKEN: Final = ConfigOption[str | None](
    "queryable-state.server-token",
    str,
    None,
    "Bearer token that servers show to each other, and without which no server registers as the holder of key groups; "
    "else queryable-state.token.",
)

TLS_CERTIFICATE: Final = ConfigOption[str | None](
    "queryable-state.tls.certificate", str, None, "File with the server's certificate chain (PEM); turns TLS on."
)

TLS_KEY: Final = ConfigOption[str | None](
    "queryable-state.tls.key", str, None, "File with the key of the server's certificate (PEM)."
)

TLS_AUTHORITY: Final = ConfigOption[str | None](
    "queryable-state.tls.authority",
    str,
    None,
    "File with the certificates that other servers' certificates are checked against (PEM).",
)

POLL_INTERVAL: Final = ConfigOption(
    "queryable-state.poll-interval",
    DurationType,
    50,
    "How often a server looks for a completed checkpoint that nobody told it of; once a second at most in a job in "
    "which nothing has happened for ten minutes.",
)

MAX_MESSAGE: Final = ConfigOption(
    "queryable-state.max-message-size", MemorySize, 16 * 1024 * 1024, "Longest request and longest answer."
)

MAX_KEYS: Final = ConfigOption("queryable-state.max-keys", int, 100_000, "Most keys of one request.")

MAX_IN_FLIGHT: Final = ConfigOption(
    "queryable-state.max-in-flight", int, 256, "Most requests of one connection that wait for a checkpoint or a server."
)

MAX_CONNECTIONS: Final = ConfigOption(
    "queryable-state.max-connections",
    int,
    1_000,
    "Most connections of a server, of clients and other servers that have shown the token; others count apart.",
)

MAX_CONNECTIONS_OF_ADDRESS: Final = ConfigOption(
    "queryable-state.max-connections-per-address",
    int,
    500,
    "Most of these connections that come from one address (of IPv6: from one network of 64 bits).",
)

MAX_STRANGERS: Final = ConfigOption(
    "queryable-state.max-unauthenticated-connections",
    int,
    128,
    "Most connections on which no token, or without one no greeting, has been shown yet. When there is one more, the "
    "one of the address with the most of them ends that has waited longest.",
)

GREETING_TIMEOUT: Final = ConfigOption(
    "queryable-state.handshake-timeout",
    DurationType,
    10_000,
    "How long a client may take until it has shown the token; the handshake of TLS is within that time.",
)

IDLE_TIMEOUT: Final = ConfigOption(
    "queryable-state.idleness-timeout",
    DurationType,
    30 * 60_000,
    "After this time without a request a connection ends on which nothing is waited for, after twice the time at "
    "most. Clients make another one when they need it.",
)

MAX_WAITING: Final = ConfigOption[int | None](
    "queryable-state.max-waiting-size",
    MemorySize,
    None,
    "Most bytes of requests that wait and of answers that are not read yet, of all connections together; else 16 times "
    "queryable-state.max-message-size. Beyond that requests are refused until there is room again.",
)

WITHOUT_MEANING: Final = tuple(
    ConfigOption(
        f"queryable-state.{part}-threads",
        int,
        0,
        "Accepted and without meaning: one event loop serves all connections.",
        deprecated_keys=(f"query.{part}-threads",),
    )
    for part in ("proxy.network", "proxy.query", "server.network", "server.query", "client.network")
)
"""Options of Flink's servers, which have pools of threads."""
