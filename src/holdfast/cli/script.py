"""Running a program as `python SCRIPT ARGS` would, with options from the command line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.kernel.configuration import Configuration
from holdfast.kernel.default_log import FORMAT, log_level


def options_of(properties: Sequence[str]) -> Configuration:
    """The options that were given as `key=value`, not validated yet.

    Raises:
        ConfigurationError: One has another form, or a key that is not known.
    """
    # The environment knows the options of all packages; without it a mistyped key would be found only at execute().
    import holdfast.datastream.environment.stream_execution_environment  # noqa: F401

    return Configuration.from_properties(properties)


@contextmanager
def as_main_program(script: Path, args: Sequence[str]) -> Iterator[None]:
    """The script sees the arguments and the import path that `python SCRIPT ARGS` would give it."""
    argv, import_path = sys.argv, sys.path[:]
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, import_path


def log_to_stderr() -> None:
    """Lets the package log to standard error at the level of HOLDFAST_LOG_LEVEL.

    Raises:
        ConfigurationError: There is no such level.
    """
    level = log_level()
    logging.basicConfig(level=logging.WARNING, format=FORMAT)
    logging.getLogger("holdfast").setLevel(level)
