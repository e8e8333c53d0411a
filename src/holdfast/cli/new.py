"""`holdfast new`: a project from the template in this package."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

import click

from holdfast import __version__
from holdfast.cli.output import errors_to_exit_codes, examples
from holdfast.errors import AlreadyExistError, ConfigurationError, StorageError
from holdfast.kernel.ids import new_nonce

_FILES: Final = {
    "README.md": "README.md.txt",
    "$name.py": "program.py.txt",
    "test_$name.py": "test_program.py.txt",
    "config.toml": "config.toml.txt",
    "pytest.ini": "pytest.ini.txt",
    "requirements.txt": "requirements.txt.txt",
    "Dockerfile": "Dockerfile.txt",
    ".gitignore": "gitignore.txt",
    "input/words.txt": "input.txt",
}
"""The files of a project, and those of the template."""

_NAME: Final = re.compile("[a-z][a-z0-9_]{0,59}")
_TAKEN: Final = {"holdfast", "pyspark", "pyspark_holdfast", "pytest"}


@click.command(epilog=examples("holdfast new my_project", "cd my_project && pytest && python my_project.py"))
@click.argument("name", metavar="NAME")
def new(name: str) -> None:
    """Make a project: a program and its test.

    The project is the new directory NAME. It contains a program that counts words with state, its options, tests that
    need neither Spark nor Java, a Dockerfile, and a README that lists the commands.

    NAME is also the name of the program's module: lower-case letters, digits and underscores.
    """
    with errors_to_exit_codes():
        check_name(name)
        made = make_project(name, Path.cwd() / name)
        click.echo(f"Made the project {name!r}:")
        for path in made:
            click.echo(f"  {name}/{path}")
        click.echo("Next:")
        for command in (f"cd {name}", "pip install pytest", "pytest", f"python {name}.py"):
            click.echo(f"  {command}")


def check_name(name: str) -> None:
    """Check the name of a project.

    Raises:
        ConfigurationError: It is not the name of a module, or that of an installed one, which it would hide.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        better = re.sub("[^a-z0-9_]+", "_", name.lower()).strip("_")
        usable = _NAME.fullmatch(better) and not keyword.iskeyword(better)
        raise ConfigurationError(
            f"{name!r:.200} cannot be the name of a Python module. Use at most 60 lower-case letters, digits and "
            f"underscores, a letter first, and no keyword of Python, such as {better if usable else 'my_project'!r}."
        )
    if name in sys.stdlib_module_names or name in _TAKEN or name in _installed_modules():
        raise ConfigurationError(
            f"There is a Python module {name!r} already, which the program would hide. Choose another name, for "
            f"example 'my_{name}'."
        )


@cache  # it reads the metadata of all packages
def _installed_modules() -> Collection[str]:
    return packages_distributions().keys()


def make_project(name: str, directory: Path) -> list[str]:
    """Make a project, whole or not at all, and return the paths of its files in it.

    Args:
        name: The name of its program.
        directory: A directory that does not exist, or is empty.

    Raises:
        AlreadyExistError: It is something else.
        StorageError: It cannot be written.
    """
    template = files(__package__).joinpath("template")
    fields = {"name": name, "version": __version__}
    texts = {
        Template(path).substitute(fields): Template(template.joinpath(file).read_text("utf-8")).substitute(fields)
        for path, file in _FILES.items()
    }
    unfinished = directory.with_name(f".{directory.name}.{new_nonce()}")
    try:
        if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
            raise AlreadyExistError(
                f"{str(directory)!r} exists and is not an empty directory, so nothing was written. Choose another "
                "name, or move it away."
            )
        for path, text in texts.items():
            file = unfinished / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        unfinished.rename(directory)
    except OSError as error:
        raise StorageError(
            f"The project {str(directory)!r} could not be written: {error.strerror or error}. Make its parent "
            "directory writable, or change to another one."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return list(texts)
