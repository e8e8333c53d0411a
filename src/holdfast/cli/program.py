"""Running a program as `python SCRIPT ARGS` would, with options from the command line; and flags of Flink's."""

from __future__ import annotations

import builtins
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from holdfast.datastream.environment.launch import Program, ProgramPlanned, plan_only
from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.default_log import FORMAT, log_level

_OF_THE_CLUSTER: Final = {
    "-m --jobmanager": "name the cluster of a job manager with -D high-availability.type=... and what belongs to it.",
    "-t --target": "name Spark's master with -D spark.master=..., and a cluster with -D high-availability.type=....",
}
OF_CANCEL: Final = {
    **_OF_THE_CLUSTER,
    "-s --withSavepoint": "stop the job with a savepoint: holdfast stop DIR -p TARGET.",
}
OF_LIST: Final = {
    **_OF_THE_CLUSTER,
    "-s --scheduled": "a job runs as soon as its process does; -a shows those that do not run.",
}
OF_CHECKPOINT: Final = {
    **_OF_THE_CLUSTER,
    "-full --full": "a checkpoint shares files with those before it; take a savepoint: holdfast savepoint DIR TARGET.",
}


def options_of(properties: Sequence[str]) -> Configuration:
    """Return the options given as `key=value`, not validated yet.

    Raises:
        ConfigurationError: One has another form, or an unknown key.
    """
    # These know the options of all packages; without them a mistyped key would be found only at execute().
    import holdfast.datastream.environment.stream_execution_environment
    import holdfast.dispatcher.options  # noqa: F401

    return Configuration.from_properties(properties)


@contextmanager
def as_main_program(script: Path, args: Sequence[str]) -> Iterator[None]:
    """Give the script the arguments, the import path and the main module that `python SCRIPT ARGS` would give it.

    The main module stays until the end: jobs find their classes in it also after the script has ended.
    """
    argv, import_path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, import_path, main


def run_script(script: Path) -> None:
    """Run a script in the main module that `as_main_program` has made."""
    loader = SourceFileLoader("__main__", str(script))
    code = loader.source_to_code(loader.get_data(str(script)), str(script))
    namespace = vars(sys.modules["__main__"])
    namespace.update(__file__=str(script), __loader__=loader, __builtins__=builtins)
    exec(code, namespace)  # noqa: S102 - runs the user's script


def plan_program(script: Path) -> Program:
    """Run a script up to its first `execute()`, in the main module that `as_main_program` has made.

    Raises:
        ConfigurationError: The script ended without executing a job.
    """
    try:
        with plan_only():
            run_script(script)
    except ProgramPlanned as planned:
        return planned.program
    raise ConfigurationError(f"{str(script)!r} ended without executing a job: call env.execute() in it.")


def log_to_stderr() -> None:
    """Log to standard error at the level of HOLDFAST_LOG_LEVEL.

    Raises:
        ConfigurationError: There is no such level.
    """
    level = log_level()
    logging.basicConfig(level=logging.WARNING, format=FORMAT)
    logging.getLogger("holdfast").setLevel(level)


# Flags of Flink's command line without a meaning here. Each is rejected, with what to write instead.

_OF_A_PROGRAM: Final = {
    **_OF_THE_CLUSTER,
    "-py --python": "write the program as it is: SCRIPT -- ARGS.",
    "-pym --pyModule": "write the file of the module: SCRIPT -- ARGS.",
    "-pyfs --pyFiles": "name the modules with -D python.files=a.py,b.zip.",
    "-pyarch --pyArchives": "name the archives with -D spark.archives=env.tar.gz#env.",
    "-pyreq --pyRequirements": "call env.set_python_requirements() in the program.",
    "-pyexec --pyExecutable": "name the Python of the workers with -D spark.pyspark.python=PATH.",
    "-j --jarfile": "jars are for Spark's sources and sinks: -D spark.jars=PATH.",
    "-C --classpath": "jars are for Spark's sources and sinks: -D spark.jars=PATH.",
    "-c --class": "a program is a script of Python: SCRIPT -- ARGS.",
}
OF_SUBMIT: Final = {
    **_OF_A_PROGRAM,
    "-s --fromSavepoint": "name the savepoint with -D execution.state-recovery.path=PATH.",
    "-n --allowNonRestoredState": "drop that state with -D execution.state-recovery.ignore-unclaimed-state=true.",
    "-rm --claimMode --restoreMode": "name the mode with -D execution.state-recovery.claim-mode=MODE.",
    "-d --detached": "that is what it does: the command returns when the job is kept by the cluster.",
}
OF_RUN: Final = {
    **_OF_A_PROGRAM,
    "-d --detached": "the job runs in this process; hand it to a job manager with holdfast submit SCRIPT.",
}


def reject_flags(instead: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add flags to a command that are wrong usage; `instead` has what to write instead, by their names."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for names, text in instead.items():
            command = click.option(
                *names.split(), is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refusal(text)
            )(command)
        return command

    return decorate


def _refusal(text: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def refuse(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            raise click.UsageError(f"{' or '.join(param.opts)} is Flink's, and has no meaning here: {text}", ctx)

    return refuse
