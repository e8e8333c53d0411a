"""`holdfast replay`: run the epochs after a checkpoint once more, and write nothing outside a temporary directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, read_newest
from holdfast.checkpoint.metadata import encode
from holdfast.checkpoint.replay import RecordedClock, Replay, prepare_replay
from holdfast.cli.locate import checkpoint_at, where_option
from holdfast.cli.output import errors_to_exit_codes, examples, moment
from holdfast.cli.program import as_main_program, log_to_stderr, options_of, plan_program
from holdfast.cli.state import show_state_of_key
from holdfast.datastream.environment.launch import Program, program_overrides
from holdfast.datastream.sinks.driver_sinks import PrintSink
from holdfast.errors import ConfigurationError
from holdfast.kernel.debugger import DebuggerServer
from holdfast.runtime.graph.source_positions import stored_splits
from holdfast.runtime.graph.stream_graph import SinkNode
from holdfast.runtime.job.engine import Job
from holdfast.runtime.job.progress import EpochProgress
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state_processor import SavepointReader
from holdfast.storage.file_system import local_path
from holdfast.storage.job_directory import METADATA_NAME

_REPLAY_OPTIONS = {
    "execution.trigger": "available-now",
    "execution.checkpointing.interval": "0 ms",
    "execution.checkpointing.create-subdir": "true",
    "execution.state-recovery.claim-mode": "NO_CLAIM",
    "high-availability.type": "none",
    "queryable-state.enable": "false",
    "rest.enable": "false",
    "restart-strategy.type": "none",
    "state.compaction.enabled": "false",
}


@click.command(
    epilog=examples(
        "holdfast replay /data/savepoints/savepoint-3f2a1c-9d job.py --epochs 3",
        "holdfast replay /data/savepoints/savepoint-3f2a1c-9d job.py --key N14228 --pdb",
    )
)
@click.argument("path", metavar="CHECKPOINT")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="How many epochs.")
@click.option("--key", metavar="KEY", help="Show how the state of this key changes: a text, or JSON for other keys.")
@click.option("--pdb", "is_debugged", is_flag=True, help="Stop in pdb where a function fails or calls breakpoint().")
@where_option
def replay(
    path: str,
    script: Path,
    args: tuple[str, ...],
    epochs: int,
    key: str | None,
    is_debugged: bool,
    properties: tuple[str, ...],
) -> None:
    """Run the epochs after CHECKPOINT once more.

    The command prints what these epochs emit. ARGS after -- are SCRIPT's own.

    The command writes to a temporary directory only. Sinks print, and the sources are read from the positions in
    CHECKPOINT. If the next checkpoint still exists, the first epoch has exactly the original rows and processing time.
    Otherwise it has the rows that the sources have now, and a later processing time. Event time continues from the
    watermarks of the checkpoint.

    Of a real-time job, the rows between two checkpoints run as one epoch. Results that depend on timing, such as early
    triggers and timers of processing time, can differ.

    SCRIPT may be a changed program with the same uids, for example to test a repair.

    With --pdb a breakpoint() of the program, or an exception of a function, stops in pdb in this terminal. This needs a
    local master of Spark, whose workers are on this machine.
    """
    with errors_to_exit_codes(), _scratch() as scratch:
        log_to_stderr()
        checkpoint = checkpoint_at(path, properties)
        if local_path(checkpoint.path) is None:
            raise ConfigurationError(
                f"{checkpoint.path!r} is in an object store, and replay needs a local directory: copy it "
                "with SavepointWriter.from_existing_savepoint(None, path).write(directory), and replay the copy."
            )
        _refuse_real_time_positions(checkpoint)
        replay_input = prepare_replay(checkpoint)
        start = scratch / "start"
        start.mkdir()
        (start / METADATA_NAME).write_bytes(encode(replay_input.metadata))
        options = options_of(properties)
        for name, text in _overridden(scratch, start).items():
            options.set_string(name, text)
        options.validate()
        when = "an unknown time" if replay_input.recorded is None else moment(replay_input.recorded)
        click.echo(f"epoch {checkpoint.metadata.epoch + 1} of {checkpoint.metadata.job_name!r}, at {when}", err=True)
        debugger = DebuggerServer(str(scratch / "pdb")) if is_debugged else nullcontext()
        with debugger, program_overrides(options), as_main_program(script, args):
            after = _run(plan_program(script), replay_input, epochs)
        if key is not None:
            show_state_of_key(SavepointReader(None, checkpoint), SavepointReader(None, after), key)


def _refuse_real_time_positions(checkpoint: CompletedCheckpoint) -> None:
    positions = checkpoint.metadata.source_positions
    inputs = sorted({leaf.uid for split in stored_splits(positions) for leaf in split.leaves})
    if inputs:
        raise ConfigurationError(
            f"A replay runs epochs, and only a real-time job can continue {', '.join(map(repr, inputs))} from "
            f"{checkpoint.path!r}: these inputs are sources of your own, or were read in part. To run the job from "
            "there beside the other one, use holdfast run -s with another execution.checkpointing.dir, and sinks that "
            "may get its output."
        )


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="holdfast-replay-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _overridden(scratch: Path, start: Path) -> dict[str, str]:
    return {
        **_REPLAY_OPTIONS,
        "execution.checkpointing.dir": str(scratch / "checkpoints"),
        "execution.state-recovery.path": str(start),
    }


def _run(program: Program, replay_input: Replay, epochs: int) -> CompletedCheckpoint:
    """Run some epochs of the job with sinks that print; return the checkpoint after them.

    Raises:
        ConfigurationError: There was no epoch.
        HoldfastError: One has failed.
    """
    from holdfast.spark.launch import job_on_spark

    master_of_spark = program.session.sparkContext.master
    if DebuggerServer.is_listening() and not master_of_spark.startswith("local"):
        raise ConfigurationError(
            f"--pdb needs a local master of Spark, whose workers are on this machine, not {master_of_spark!r}: let "
            "the program make such a session."
        )
    for node in program.graph.of(SinkNode):
        node.sink = PrintSink(node.element_type, node.identity)
    clock = RecordedClock(replay_input.now)
    job = job_on_spark(program.graph, program.name, program.configuration, program.session, clock)
    master = JobMaster(job)
    seen: list[EpochProgress] = []

    def stop_after(progress: EpochProgress) -> None:
        seen.append(progress)
        if len(seen) >= epochs:
            master.control.stop()

    master.progress.listen(stop_after)
    master.run()
    found = _newest(job)
    if not seen or found is None:
        raise ConfigurationError("There is no epoch after the checkpoint: no source has new rows, and no timer is due.")
    return found


def _newest(job: Job) -> CompletedCheckpoint | None:
    return read_newest(job.directory, job.register.read())
