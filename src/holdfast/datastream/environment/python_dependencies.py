"""Python packages of a program: packed once beside the driver, unpacked beside each worker."""

from __future__ import annotations

import atexit
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.errors import ConfigurationError
from holdfast.storage.file_system import local_path

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
        ConfigurationError: There is no such file or cache, pip cannot install it, or this Spark cannot send it to
            workers.
    """
    caller = "set_python_requirements()"
    if not Path(requirements).is_file():
        raise _missing_error(caller, "file", requirements)
    if cache is not None and not Path(cache).is_dir():
        raise _missing_error(caller, "directory", cache)
    place = _new_directory(context, caller)
    _install(requirements, cache, place / "installed")
    _ship(context, place, place / "installed")


def ship_modules(context: Any, path: str) -> None:
    """Put a module, a zipped package, or what is in a directory now, on the import path of all workers.

    Raises:
        ConfigurationError: There is nothing at the path, or this Spark cannot send it.
    """
    caller = "add_python_file()"
    local = require_file(caller, path)
    if local is not None and local.is_dir():
        _ship(context, _new_directory(context, caller), local)
    else:
        _add(context.addPyFile, caller, path)


def ship_archive(context: Any, path: str, name: str | None) -> None:
    """Unpack an archive beside all workers, in a directory of that name or of its own.

    Raises:
        ConfigurationError: There is no such archive, or Spark cannot send it.
    """
    caller = "add_python_archive()"
    require_file(caller, path.partition("#")[0])
    _add(context.addArchive, caller, f"{path}#{name}" if name else path)


def require_file(caller: str, path: str) -> Path | None:
    """Return the local path of a path or URI; None for one of another file system, which only Spark can check.

    Raises:
        ConfigurationError: It is local, and there is nothing.
    """
    local = local_path(path)
    if local is None or path.startswith("local:"):
        return None
    if not Path(local).exists():
        raise _missing_error(caller, "file", path)
    return Path(local)


def _missing_error(caller: str, kind: str, path: str) -> ConfigurationError:
    where = "" if Path(path).is_absolute() or ":" in path else f" in {Path.cwd()}"
    return ConfigurationError(f"{caller}: there is no {kind} {path!r}{where}.")


def _add(add: Callable[[str], Any], caller: str, path: str) -> None:
    from holdfast.spark.failure import FATAL_IN_SPARK, root_cause, translate

    try:
        add(path)
    except Exception as failure:
        error = translate(failure, caller)
        if isinstance(error, FATAL_IN_SPARK):
            raise error from failure
        raise ConfigurationError(
            f"{caller}: Spark cannot send {path!r} to the workers: {root_cause(failure)}"
        ) from failure


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
