"""Options of the job master's REST interface; here and not beside the server, so that every job knows them."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.option import ConfigOption, DurationType

REST_ENABLE: Final = ConfigOption(
    "rest.enable",
    bool,
    True,
    "Whether the process that runs the job serves REST on the loopback, to those who can read the token in the job's "
    "directory. The commands savepoint, stop, cancel and rescale need it.",
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

EXCEPTION_HISTORY: Final = ConfigOption(
    "web.exception-history-size",
    int,
    16,
    "How many of the failures that made the job restart are remembered.",
)
