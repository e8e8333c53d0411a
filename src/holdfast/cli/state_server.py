"""`holdfast state-server`: answer queries from the checkpoints in a directory."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import click

from holdfast.cli.locate import directories_at
from holdfast.cli.output import errors_to_exit_codes, examples
from holdfast.cli.program import log_to_stderr, options_of
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.checkpoint_recovery import RegisterCheckpointRecoveryFactory
from holdfast.ha.job_register import file_register_of
from holdfast.ha.leader_election import LeaderRetrievalService
from holdfast.ha.options import ha_type
from holdfast.ha.services import HighAvailabilityServices, create_high_availability_services
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.ids import JobID
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.checkpoint_view import Share
from holdfast.queryable.server.proxy import parse_address
from holdfast.queryable.server.server import StateServer, all_key_groups, settings_from, share_of
from holdfast.queryable.wire.location import Address
from holdfast.runtime.job.options import (
    QUERY_ADVERTISED_HOST,
    QUERY_HOST,
    QUERY_PORTS,
    QUERY_SERVER_TOKEN,
    QUERY_TLS_AUTHORITY,
    QUERY_TLS_CERTIFICATE,
    QUERY_TLS_KEY,
    QUERY_TOKEN,
)
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.register import FencedRegister

logger = get_logger(__name__)
_LOOK_SECONDS = 1.0


@click.command(
    "state-server",
    epilog=examples(
        "holdfast state-server /data/checkpoints",
        "holdfast state-server /data/checkpoints --part 1/2 --leader 10.0.0.5:9069",
    ),
)
@click.argument("directory", metavar="DIR")
@click.option("--host", help="Address to listen at.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORTS", help="9069, 9069,9071 or 9069-9075; 0: any.  [default: 9069]")
@click.option("--advertise", metavar="HOST", help="Host at which others reach this server, if not --host.")
@click.option("--part", metavar="I/N", help="Serve one of N equal parts of the key groups; I from 1.")
@click.option("--key-groups", metavar="A-B", help="Serve these key groups.")
@click.option("--leader", metavar="HOST:PORT", help="Query server of the job master; register there.")
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="high-availability.*: find the register and the leader; queryable-state.*: as for the server of a job.",
)
@click.option("--token", envvar="HOLDFAST_QUERY_TOKEN", help="Bearer token of clients; or HOLDFAST_QUERY_TOKEN.")
@click.option(
    "--server-token",
    envvar="HOLDFAST_QUERY_SERVER_TOKEN",
    help="Bearer token of servers, if not that of clients; or HOLDFAST_QUERY_SERVER_TOKEN.",
)
@click.option("--tls-certificate", metavar="FILE", help="Certificate chain (PEM); turns TLS on.")
@click.option("--tls-key", metavar="FILE", help="Key of the certificate (PEM).")
@click.option("--tls-authority", metavar="FILE", help="Certificates that verify those of other servers (PEM).")
def state_server(
    directory: str,
    host: str | None,
    port: str | None,
    advertise: str | None,
    part: str | None,
    key_groups: str | None,
    leader: str | None,
    properties: tuple[str, ...],
    token: str | None,
    server_token: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_authority: str | None,
) -> None:
    """Answer queries of the jobs in DIR.

    The server runs until it is interrupted. Jobs can start and end meanwhile. DIR is the directory of a job, or the one
    set as execution.checkpointing.dir. With high availability, the server registers with the leader of each job, else
    with --leader, if it is given.
    """
    if part is not None and key_groups is not None:
        raise click.UsageError("--part and --key-groups both say which key groups to hold: choose one of them.")
    with errors_to_exit_codes(), ExitStack() as stack:
        share = _share(part, key_groups)
        configuration = options_of(properties)
        configuration.validate()
        use_s3_options(configuration)
        elects = ha_type(configuration) != "none"
        if elects and leader is not None:
            raise click.UsageError("--leader names the leader that high availability finds: choose one of them.")
        if (part or key_groups) and leader is None and not elects:
            raise click.UsageError(
                "A server of a part needs --leader, or -D high-availability.type=...: the leader knows where the rest "
                "is."
            )
        given: tuple[tuple[ConfigOption[Any], str | None], ...] = (
            (QUERY_HOST, host),
            (QUERY_PORTS, port),
            (QUERY_ADVERTISED_HOST, advertise),
            (QUERY_TOKEN, token),
            (QUERY_SERVER_TOKEN, server_token),
            (QUERY_TLS_CERTIFICATE, tls_certificate),
            (QUERY_TLS_KEY, tls_key),
            (QUERY_TLS_AUTHORITY, tls_authority),
        )
        for option, value in given:
            if value is not None:
                configuration.set(option, value)
        settings = settings_from(configuration)
        log_to_stderr()
        stop = _until_interrupted()
        services = _services(configuration, stack) if elects else None
        server = stack.enter_context(StateServer(settings))
        jobs = _Jobs(server, directory, share, parse_address(leader) if leader is not None else None, services)
        jobs.look()
        click.echo("listening at {}:{}".format(*server.get_server_address()))
        sys.stdout.flush()
        while not stop.wait(_LOOK_SECONDS):
            jobs.look()


class _Jobs:
    """The jobs in a directory; each is served from when it is first seen."""

    def __init__(
        self,
        server: StateServer,
        directory: str,
        share: Share,
        leader: Address | None,
        services: HighAvailabilityServices | None,
    ) -> None:
        self._server = server
        self._directory = directory
        self._share = share
        self._leader = leader
        self._services = services
        self._complaints: set[str] = set()

    def look(self) -> None:
        """Serve new jobs, and drop those whose directory was removed."""
        try:
            found = directories_at(self._directory)
        except HoldfastError as error:
            self._complain(f"cannot look for jobs in {self._directory!r}: {error}")
            return
        for gone in set(self._server.jobs()) - {str(directory.job_id) for directory in found}:
            self._server.drop_job(JobID.from_hex(gone))
            logger.info("job %s is gone, with its directory", gone)
        for directory in found:
            if str(directory.job_id) not in self._server.jobs():
                try:
                    register, leader = self._register(directory), self._leader_of(directory)
                    self._server.serve_job(directory, register, share=self._share, leader=leader)
                    logger.info("following job %s", directory.job_id)
                except HoldfastError as error:
                    self._complain(f"job {directory.job_id} cannot be served: {error}")

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            logger.warning(text)

    def _register(self, directory: JobDirectory) -> FencedRegister:
        if self._services is None:
            return file_register_of(directory)
        factory = self._services.get_checkpoint_recovery_factory()
        if not isinstance(factory, RegisterCheckpointRecoveryFactory):
            raise ConfigurationError(f"{type(self._services).__name__} has no registers that could be followed.")
        return factory.get_register(directory.job_id)

    def _leader_of(self, directory: JobDirectory) -> LeaderRetrievalService | Address | None:
        if self._services is None:
            return self._leader
        return self._services.get_job_manager_leader_retriever(directory.job_id)


def _services(configuration: Configuration, stack: ExitStack) -> HighAvailabilityServices:
    executor = stack.enter_context(ThreadPoolExecutor(1))
    services = create_high_availability_services(configuration, executor)
    stack.callback(services.close)
    return services


def _share(part: str | None, key_groups: str | None) -> Share:
    try:
        if part is not None:
            index, count = map(int, part.split("/"))
            if not 1 <= index <= count:
                raise click.UsageError(f"There is no part {index} of {count}; they are numbered from 1.")
            return share_of(index - 1, count)
        if key_groups is not None:
            first, last = map(int, key_groups.split("-"))
            if first > last:
                raise click.UsageError(f"--key-groups {key_groups} is no key group: write the lower one first.")
            held = KeyGroupRange(first, last)
            return lambda maximum: tuple(
                within for within in (held.intersection(KeyGroupRange(0, maximum - 1)),) if within
            )
    except ValueError:
        raise click.UsageError("Write --part as 1/2 and --key-groups as 0-63.") from None
    return all_key_groups


def _until_interrupted() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # In a thread: what a signal interrupts may hold the lock that this needs.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    return stop
