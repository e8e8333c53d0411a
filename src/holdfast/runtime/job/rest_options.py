"""Options of the job master's REST interface; here and not beside the server, so that every job knows them."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.option import ConfigOption, DurationType, MemorySize

REST_ENABLE: Final = ConfigOption(
    "rest.enable",
    bool,
    True,
    "Whether the process that runs the job serves REST on the loopback, to those who can read the token in the job's "
    "directory. The commands savepoint, checkpoint, stop, cancel and rescale need it, and the web page and Prometheus. "
    "A job manager turns it on in the processes of its jobs.",
)

REST_PORT: Final = ConfigOption(
    "rest.bind-port",
    str,
    "0",
    "Port of the REST interface: one, a list '8081,8083' or a range '8081-8090', of which the first free one is taken; "
    "0 is any.",
    fallback_keys=("rest.port",),
)

REST_STORE_DURATION: Final = ConfigOption(
    "rest.async.store-duration",
    DurationType,
    5 * 60 * 1000,
    "How long the outcome of a savepoint or checkpoint that was asked for over REST can be fetched. 0: as long as the "
    "job runs.",
)

REST_CONNECTIONS: Final = ConfigOption(
    "rest.server.max-connections",
    int,
    64,
    "Most connections of the REST interface that have shown the token; one more is answered with 503.",
)

REST_CONNECTIONS_OF_ADDRESS: Final = ConfigOption(
    "rest.server.max-connections-per-address", int, 48, "Most of these connections that come from one address."
)

REST_STRANGERS: Final = ConfigOption(
    "rest.server.max-unauthenticated-connections",
    int,
    32,
    "Most connections of the REST interface that have not shown the token yet. When there is one more, the one of the "
    "address with the most of them is answered with 503 that has waited longest.",
)

REST_THREADS: Final = ConfigOption(
    "rest.server.numThreads", int, 8, "Most requests that are answered at one time; others wait."
)

REST_REQUEST_TIMEOUT: Final = ConfigOption(
    "rest.server.request-timeout",
    DurationType,
    10_000,
    "How long a request may take until it has arrived, how long it waits for a thread, and how long its client may "
    "take to read the answer. A job manager gives a minute unless this is set.",
)

REST_MAX_HEADER: Final = ConfigOption(
    "rest.server.max-header-size", MemorySize, 16 * 1024, "Longest first line and headers of a request."
)

REST_MAX_BODY: Final = ConfigOption(
    "rest.server.max-content-length", MemorySize, 1024 * 1024, "Longest body of a request."
)

REST_HOSTS: Final = ConfigOption[list[str]](
    "rest.server.allowed-hosts",
    list,
    [],
    "Names, without a port, such as that of a proxy in front, that the Host header of a request may have besides "
    "localhost, addresses of the loopback and, of a job manager, rest.bind-address and rest.address. Others are "
    "answered with 421: a page in a browser may have been led here.",
)

REST_METRICS_TOKEN_FILE: Final = ConfigOption[str | None](
    "rest.metrics.token-file",
    str,
    None,
    "File with a token that scrapers may show at /metrics instead of the interface's own, which is new with each "
    "process. It is good for nothing else.",
)

OTLP_ENDPOINT: Final = ConfigOption[str | None](
    "metrics.reporter.otel.exporter.endpoint",
    str,
    None,
    "Where an OpenTelemetry collector takes metrics by OTLP over HTTP, such as http://collector:4318/v1/metrics. "
    "Headers and certificates are taken from the environment, as OTEL_EXPORTER_OTLP_HEADERS and _CERTIFICATE. Needs "
    "the extra 'otel'.",
)

OTLP_INTERVAL: Final = ConfigOption(
    "metrics.reporter.otel.interval", DurationType, 10_000, "How long it is between two reports to that collector."
)

EXCEPTION_HISTORY: Final = ConfigOption(
    "web.exception-history-size",
    int,
    16,
    "How many of the failures that made the job restart are remembered.",
)
