"""`holdfast jobmanager`: runs the jobs that are submitted, each in a process of its own."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

import click

from holdfast.cli.exit_code import errors_to_exit_codes
from holdfast.cli.script import log_to_stderr, options_of
from holdfast.dispatcher.service.job_manager import JobManager


@click.command()
@click.option("-D", "properties", multiple=True, metavar="KEY=VALUE", help="Set an option; jobs have it as a default.")
def jobmanager(properties: tuple[str, ...]) -> None:
    """Runs the jobs that are submitted with `holdfast submit`, each in a process of its own, until it gets SIGTERM.

    With high-availability.type filesystem, zookeeper or kubernetes several may run: one leads, and when it dies another
    one goes on with all jobs from their newest checkpoints. Without, the jobs that run end with this process; each goes
    on when it is submitted again under its id.
    """
    with errors_to_exit_codes():
        log_to_stderr()
        options = options_of(properties)
        options.validate()
        manager = JobManager(options, [sys.executable, "-m", "holdfast.cli.submitted"])

        def stop(number: int, frame: FrameType | None) -> None:
            # In a thread: what a signal interrupts may hold the lock that this needs, another signal included.
            threading.Thread(target=manager.stop).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        manager.run()
