"""Packages that a program asks for its workers: installed once beside the driver, unpacked beside each worker."""

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

_TOLD: Final = 1000
_numbers = itertools.count()


def give_requirements(context: Any, requirements: str, cache: str | None) -> None:
    """Install what a file of requirements names, and put it on the path of all Python workers of a Spark context.

    It is an archive that Spark unpacks, not a zip that Python reads, because compiled modules cannot be in one.

    Args:
        context: A `SparkContext`.
        requirements: Path of a file as pip takes it.
        cache: A directory with the packages, in which case no network is asked; None for pip's own ways.

    Raises:
        ConfigurationError: There is no such file, pip cannot install it, or this Spark has no way to do so.
    """
    if not Path(requirements).is_file():
        raise ConfigurationError(f"set_python_requirements(): there is no file {requirements!r}.")
    if not isinstance(getattr(context, "_python_includes", None), list):
        raise ConfigurationError(
            "set_python_requirements(): this Spark does not say what is on the path of its workers: pack an "
            "environment (venv-pack, conda-pack) and name it in the option spark.archives."
        )
    place = Path(tempfile.mkdtemp(prefix="holdfast-requirements-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)  # executors that come later fetch the archive, too
    _install(requirements, cache, place / "installed")
    name = f"holdfast-requirements-{next(_numbers)}"
    archive = shutil.make_archive(str(place / name), "zip", place / "installed")
    context.addArchive(f"{archive}#{name}")
    context._python_includes.append(name)


def _install(requirements: str, cache: str | None, target: Path) -> None:
    offline = [] if cache is None else ["--no-index", "--find-links", cache]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *offline, "-r", requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"set_python_requirements({requirements!r}): pip could not install it: {done.stderr.strip()[-_TOLD:]}"
        )
    target.mkdir(exist_ok=True)  # pip makes no directory for a file that names nothing
