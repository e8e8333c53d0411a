"""Options of a job, including those of its queryable-state server and its REST interface."""

from __future__ import annotations

from enum import Enum
from typing import Final

from holdfast.kernel.configuration import ConfigOption, DurationType, MemorySize
from holdfast.runtime.graph.input_matching import ANEW, KEEP

JOB_NAME: Final = ConfigOption[str | None](
    "pipeline.name",
    str,
    None,
    "Name of the job if execute() gets none; the default is the script's name. The second such job of a process gets "
    "the suffix `-2`, and so on. On the command line it overrides the name that execute() gets.",
)

JOB_ID: Final = ConfigOption[str | None](
    "pipeline.job-id",
    str,
    None,
    "Id of the job, 32 hexadecimal digits; it names the job's directory. The default is derived from the job's "
    "name, so a job that runs again under the same name resumes.",
)

AUTO_GENERATE_UIDS: Final = ConfigOption(
    "pipeline.auto-generate-uids",
    bool,
    True,
    "Whether operators without a uid get one that is derived from the structure of the program; false makes a missing "
    "uid an error.",
)

DEFAULT_PARALLELISM: Final = ConfigOption[int | None](
    "parallelism.default",
    int,
    None,
    "Number of subtasks of keyed operators that set no parallelism. The default is Spark's default parallelism, and in "
    "real time a quarter of it, with a local master at most half of the cores.",
)

MAX_PARALLELISM: Final = ConfigOption[int | None](
    "pipeline.max-parallelism",
    int,
    None,
    "Number of key groups of operators that set no max parallelism; fixed for the life of their state. "
    "The default is derived from the parallelism.",
)


class RuntimeExecutionMode(Enum):
    """When reductions of a keyed stream emit: after each element, or once a key, at the end of bounded inputs."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2


RUNTIME_MODE: Final = ConfigOption(
    "execution.runtime-mode",
    RuntimeExecutionMode,
    RuntimeExecutionMode.STREAMING,
    "When reductions of keyed streams emit results: after each element ('STREAMING'), or once for each key at the end "
    "of bounded inputs ('BATCH'). 'AUTOMATIC' is 'BATCH' for streams whose inputs are all bounded.",
)

EXECUTION_TRIGGER: Final = ConfigOption(
    "execution.trigger",
    str,
    "continuous",
    "When epochs start: 'continuous' (as soon as there is input), 'available-now' (process the present input, then "
    "stop), or an interval such as '10 s'. With 'real-time' one Spark job processes each record when it arrives, and "
    "epochs end with the barriers of checkpoints. It needs Spark 4.3.",
)


def is_real_time_trigger(text: str) -> bool:
    """Return whether a value of `execution.trigger` is that of real-time jobs."""
    return text.strip().lower() in ("real-time", "realtime")


PACKED_EXCHANGE: Final = ConfigOption(
    "execution.exchange.packed",
    bool,
    True,
    "Whether Python stages send elements to each other as columns, many in one message, and not as rows of Spark. "
    "Elements are always rows before Spark 4.1, from inputs that Spark reads, to operators that order them, and if "
    "`spark.sql.execution.arrow.maxRecordsPerBatch` is 0 or above 200000.",
)

PYTHON_FILES: Final = ConfigOption[list[str]](
    "python.files",
    list,
    [],
    "Modules (.py) and packages (.zip, .egg, .whl) that the job's functions import, by their paths on the host of the "
    "driver: they are sent to all Python workers. `holdfast submit --files` sets it.",
)

START_FRESH: Final = ConfigOption(
    "execution.state-recovery.fresh",
    bool,
    False,
    "Whether the job starts with empty state although it has checkpoints. These are kept until newer ones subsume "
    "them.",
)

KEEP_INPUTS: Final = ConfigOption[list[str]](
    KEEP,
    list,
    [],
    "Uids of inputs that have changed since the checkpoint (another path, topic, format or schema) and keep their "
    "positions. No effect on unchanged inputs.",
)

RENEW_INPUTS: Final = ConfigOption[list[str]](
    ANEW,
    list,
    [],
    "Uids of inputs that have changed since the checkpoint and are read from the beginning. No effect on unchanged "
    "inputs, so it may stay set.",
)

START_REQUEST: Final = ConfigOption(
    "execution.state-recovery.request",
    str,
    "",
    "Name of the start that --fresh or -s requests. Each start happens once: if its process dies and is started again "
    "in the same way, the job continues. Another name makes it another start.",
)

IDENTICAL_FAILURES: Final = ConfigOption(
    "restart-strategy.identical-failures",
    int,
    3,
    "The job fails when the same error of the program has ended this many attempts in a row without a completed "
    "checkpoint in between, whatever the restart strategy is. Errors of the program are a function that raises, at the "
    "same operator, and an input that cannot be read; a file that cannot be read at the same place counts also with "
    "checkpoints in between. Type errors (a value of a wrong type, a null key) fail the job at once. 0 leaves all of "
    "these to the strategy, as in Flink.",
)

IDENTICAL_UNKNOWN_FAILURES: Final = ConfigOption(
    "restart-strategy.identical-unknown-failures",
    int,
    10,
    "The job fails when the same error of unknown kind (neither the program's nor the infrastructure's) has ended "
    "this many attempts in a row without a completed checkpoint in between, whatever the restart strategy is. Numbers "
    "in the message are ignored. 0 leaves it to the strategy, as in Flink.",
)


# Options of queryable state, here so that every job knows them.

QUERY_ENABLE: Final = ConfigOption(
    "queryable-state.enable",
    bool,
    False,
    "Whether the process that runs the job also serves queries of its queryable states.",
)

QUERY_HOST: Final = ConfigOption(
    "queryable-state.host",
    str,
    "127.0.0.1",
    "Address of the query server. For an address other than the loopback set a token, and TLS unless the network is "
    "private.",
)

QUERY_ADVERTISED_HOST: Final = ConfigOption[str | None](
    "queryable-state.advertised-host",
    str,
    None,
    "Host under which other servers and clients reach this server. Default: queryable-state.host, or the machine's "
    "name if that is all addresses (0.0.0.0, ::).",
)

QUERY_PORTS: Final = ConfigOption(
    "queryable-state.proxy.ports",
    str,
    "9069",
    "Port of the server: one port, a list '9069,9071' or a range '9069-9075'; the first free one is used. 0 is any "
    "free port.",
    deprecated_keys=("query.proxy.ports",),
    fallback_keys=("queryable-state.server.ports", "query.server.ports"),
)

QUERY_TOKEN: Final = ConfigOption[str | None](
    "queryable-state.token", str, None, "Bearer token that clients must send; without it any client may query."
)

QUERY_SERVER_TOKEN: Final = ConfigOption[str | None](
    "queryable-state.server-token",
    str,
    None,
    "Bearer token that servers send to each other, and that a server needs to register as the owner of key groups; "
    "default: queryable-state.token.",
)

QUERY_TLS_CERTIFICATE: Final = ConfigOption[str | None](
    "queryable-state.tls.certificate", str, None, "File with the server's certificate chain (PEM). It enables TLS."
)

QUERY_TLS_KEY: Final = ConfigOption[str | None](
    "queryable-state.tls.key", str, None, "File with the key of the server's certificate (PEM)."
)

QUERY_TLS_AUTHORITY: Final = ConfigOption[str | None](
    "queryable-state.tls.authority",
    str,
    None,
    "File with the certificate authorities (PEM) that verify the certificates of other servers.",
)

QUERY_POLL_INTERVAL: Final = ConfigOption(
    "queryable-state.poll-interval",
    DurationType,
    50,
    "How often a server looks for a completed checkpoint of which it was not notified; at most once a second in a job "
    "that has been idle for ten minutes.",
)

QUERY_MAX_MESSAGE: Final = ConfigOption(
    "queryable-state.max-message-size", MemorySize, 16 * 1024 * 1024, "Maximum length of a request and of an answer."
)

QUERY_MAX_KEYS: Final = ConfigOption("queryable-state.max-keys", int, 100_000, "Maximum number of keys of one request.")

QUERY_MAX_IN_FLIGHT: Final = ConfigOption(
    "queryable-state.max-in-flight",
    int,
    256,
    "Maximum number of requests of one connection that wait for a checkpoint or a server.",
)

QUERY_MAX_CONNECTIONS: Final = ConfigOption(
    "queryable-state.max-connections",
    int,
    1_000,
    "Maximum number of connections of a server, by clients and other servers that have sent the token. Other "
    "connections are counted separately.",
)

QUERY_MAX_CONNECTIONS_OF_ADDRESS: Final = ConfigOption(
    "queryable-state.max-connections-per-address",
    int,
    500,
    "Maximum number of these connections from one address (IPv6: from one network of 64 bits).",
)

QUERY_MAX_STRANGERS: Final = ConfigOption(
    "queryable-state.max-unauthenticated-connections",
    int,
    128,
    "Maximum number of connections that have not sent the token yet, or the greeting if there is no token. One more "
    "closes the oldest one of the address with the most of them.",
)

QUERY_GREETING_TIMEOUT: Final = ConfigOption(
    "queryable-state.handshake-timeout",
    DurationType,
    10_000,
    "Time limit for a client to complete the TLS handshake and to send the token.",
)

QUERY_IDLE_TIMEOUT: Final = ConfigOption(
    "queryable-state.idleness-timeout",
    DurationType,
    30 * 60_000,
    "A connection without pending requests is closed after this time without a request, and at the latest after twice "
    "this time. Clients open a new one when they need it.",
)

QUERY_MAX_WAITING: Final = ConfigOption[int | None](
    "queryable-state.max-waiting-size",
    MemorySize,
    None,
    "Maximum total size of waiting requests and unread answers of all connections. Default: 16 times "
    "queryable-state.max-message-size. Further requests are rejected until there is room.",
)

QUERY_WITHOUT_MEANING: Final = tuple(
    ConfigOption(
        f"queryable-state.{part}-threads",
        int,
        0,
        "Accepted without effect: one event loop serves all connections.",
        deprecated_keys=(f"query.{part}-threads",),
    )
    for part in ("proxy.network", "proxy.query", "server.network", "server.query", "client.network")
)
"""Options of Flink's servers, which have thread pools."""


# Options of the job master's REST interface, here so that every job knows them.

REST_ENABLE: Final = ConfigOption(
    "rest.enable",
    bool,
    True,
    "Whether the process that runs the job serves REST on the loopback, to clients that can read the token in the "
    "job's directory. The commands savepoint, checkpoint, stop, cancel and rescale, the web page and Prometheus need "
    "it. A job manager enables it in the processes of its jobs.",
)

REST_PORT: Final = ConfigOption(
    "rest.bind-port",
    str,
    "0",
    "Port of the REST interface: one port, a list '8081,8083' or a range '8081-8090'; the first free one is used. 0 "
    "is any free port.",
    fallback_keys=("rest.port",),
)

REST_STORE_DURATION: Final = ConfigOption(
    "rest.async.store-duration",
    DurationType,
    5 * 60 * 1000,
    "How long the result of a savepoint or checkpoint that was requested over REST is kept. 0: as long as the job "
    "runs.",
)

REST_CONNECTIONS: Final = ConfigOption(
    "rest.server.max-connections",
    int,
    64,
    "Maximum number of REST connections that have sent the token. One more gets 503.",
)

REST_CONNECTIONS_OF_ADDRESS: Final = ConfigOption(
    "rest.server.max-connections-per-address", int, 48, "Maximum number of these connections from one address."
)

REST_STRANGERS: Final = ConfigOption(
    "rest.server.max-unauthenticated-connections",
    int,
    32,
    "Maximum number of REST connections that have not sent the token yet. One more closes the oldest one of the "
    "address with the most of them, with 503.",
)

REST_THREADS: Final = ConfigOption(
    "rest.server.numThreads", int, 8, "Maximum number of requests that are processed at a time; others wait."
)

REST_REQUEST_TIMEOUT: Final = ConfigOption(
    "rest.server.request-timeout",
    DurationType,
    10_000,
    "Time limit for the arrival of a request, for its wait for a thread, and for its client to read the response. The "
    "default of a job manager is one minute.",
)

REST_MAX_HEADER: Final = ConfigOption(
    "rest.server.max-header-size",
    MemorySize,
    16 * 1024,
    "Maximum length of the first line and the headers of a request.",
)

REST_MAX_BODY: Final = ConfigOption(
    "rest.server.max-content-length", MemorySize, 1024 * 1024, "Maximum length of the body of a request."
)

REST_HOSTS: Final = ConfigOption[list[str]](
    "rest.server.allowed-hosts",
    list,
    [],
    "Further names, without a port, that the Host header of a request may have, such as the name of a proxy. "
    "localhost, loopback addresses and, for a job manager, rest.bind-address and rest.address are always allowed. "
    "Other names get 421, which protects against DNS rebinding of browsers.",
)

REST_METRICS_TOKEN_FILE: Final = ConfigOption[str | None](
    "rest.metrics.token-file",
    str,
    None,
    "File with a token that scrapers may send to /metrics instead of the interface's own token, which is new with "
    "each process. It is not valid for other paths.",
)

OTLP_ENDPOINT: Final = ConfigOption[str | None](
    "metrics.reporter.otel.exporter.endpoint",
    str,
    None,
    "URL of an OpenTelemetry collector that accepts metrics by OTLP over HTTP, such as "
    "http://collector:4318/v1/metrics. Headers and certificates are read from the environment "
    "(OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE). Needs the extra 'otel'.",
)

OTLP_INTERVAL: Final = ConfigOption(
    "metrics.reporter.otel.interval", DurationType, 10_000, "Interval between two reports to that collector."
)

HEARTBEAT_INTERVAL: Final = ConfigOption(
    "heartbeat.interval",
    DurationType,
    10_000,
    "Interval at which the driver of a real-time job and its tasks tell each other that they run.",
)

HEARTBEAT_TIMEOUT: Final = ConfigOption(
    "heartbeat.timeout",
    DurationType,
    50_000,
    "Time after which the driver of a real-time job restarts it if a task was silent, and a task ends if the driver "
    "was; more than the interval.",
)

LATENCY_INTERVAL: Final = ConfigOption(
    "metrics.latency.interval",
    DurationType,
    0,
    "Interval at which the sources of a real-time job emit latency markers; 0 for none. Jobs that run by epochs have "
    "none.",
)

LATENCY_HISTORY: Final = ConfigOption(
    "metrics.latency.history-size",
    int,
    128,
    "Number of latency markers of a source, the last ones, over which a task computes the quantiles.",
)

EXCEPTION_HISTORY: Final = ConfigOption(
    "web.exception-history-size",
    int,
    16,
    "How many failures that restarted the job are kept.",
)
