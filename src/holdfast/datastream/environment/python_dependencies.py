"""Python packages of a program: packed once beside the driver, unpacked beside each worker."""

from __future__ import annotations

import atexit
import itertools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from holdfast.errors import ConfigurationError

_LONGEST_OUTPUT: Final = 1000
_numbers = itertools.count()


def ship_requirements(context: Any, requirements: str, cache: str | None) -> None:
    """Install the packages of a requirements file, and put them on the import path of all workers. Blocks.

    They go in an archive that Spark unpacks, not in a zip that Python reads, because compiled modules cannot be in one.

    Args:
        context: A `SparkContext`.
        requirements: Path of a requirements file of pip.
        cache: A directory with the packages, instead of the network; None for pip's own ways.

    Raises:
        ConfigurationError: There is no such file, pip cannot install it, or this Spark cannot send it to workers.
    """
    if not Path(requirements).is_file():
        raise ConfigurationError(f"set_python_requirements(): there is no file {requirements!r}.")
    place = _new_directory(context, "set_python_requirements()")
    _install(requirements, cache, place / "installed")
    _ship(context, place, place / "installed")


def ship_directory(context: Any, directory: str) -> None:
    """Put the modules and packages in a directory, as they are now, on the import path of all workers.

    Raises:
        ConfigurationError: This Spark cannot send them.
    """
    _ship(context, _new_directory(context, "add_python_file()"), Path(directory))


def _new_directory(context: Any, caller: str) -> Path:
    """Return a new directory for files of workers."""
    if not isinstance(getattr(context, "_python_includes", None), list):
        raise ConfigurationError(
            f"{caller}: this Spark cannot extend the import path of its workers: pack an environment (venv-pack, "
            "conda-pack) and name it in the option spark.archives."
        )
    place = Path(tempfile.mkdtemp(prefix="holdfast-python-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)  # executors that come later fetch the archive, too
    return place


def _ship(context: Any, place: Path, directory: Path) -> None:
    name = f"holdfast-python-{next(_numbers)}"
    archive = shutil.make_archive(str(place / name), "zip", directory)
    context.addArchive(f"{archive}#{name}")
    context._python_includes.append(name)


def _install(requirements: str, cache: str | None, target: Path) -> None:
    offline = [] if cache is None else ["--no-index", "--find-links", cache]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *offline, "-r", requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"set_python_requirements({requirements!r}): pip could not install it: "
            f"{done.stderr.strip()[-_LONGEST_OUTPUT:]}"
        )
    target.mkdir(exist_ok=True)  # pip makes no directory for a file that names nothing
