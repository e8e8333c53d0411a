"""Paths and URIs as text."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigurationError

_ITSELF: Final = re.compile(r"(?:/\.?)+\Z")


def join(directory: str, *names: str) -> str:
    """Return the path or URI of something in a directory."""
    return "/".join([directory.rstrip("/"), *names])


def parent(path: str) -> str:
    """Return the directory of a path or URI."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or slash or "."


def base_name(path: str) -> str:
    """Return the last part of a path or URI."""
    return path.rstrip("/").rpartition("/")[2]


def without_itself(path: str) -> str:
    """Return the path of a directory without what may stand behind its name and leads through a link: `/` and `/.`."""
    return _ITSELF.sub("", path) or "/"


def is_absolute(path: str) -> bool:
    """Whether a path or URI means the same place wherever it is written."""
    return path.startswith(("/", "file:")) or "://" in path


def absolute(path: str) -> str:
    """Return what a path means in this process, for others that work elsewhere, and for itself when it has moved.

    Raises:
        ConfigurationError: It is empty, as that of a variable that is not set.
    """
    if not path.strip():
        raise ConfigurationError("An empty path names no directory; give one, such as /shared/savepoints.")
    return path if is_absolute(path) else str(Path(path).absolute())


def is_in_directory(name: str) -> bool:
    """Whether a relative path stays in the directory that it is taken from, and has no empty part."""
    return {"", ".", ".."}.isdisjoint(name.split("/"))


def local_path(uri: str) -> str | None:
    """Return the local path that a path or ``file:`` URI means, or None for another scheme.

    Raises:
        ConfigurationError: It is no URI, or one of another host.
    """
    if uri.startswith("file:"):
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise ConfigurationError(f"{uri!r:.300} is no path: {error}.") from error
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{uri!r} names a host; write file:///path for a path of this machine (three slashes)."
            )
        return unquote(parts.path)
    return None if "://" in uri else uri


def can_name_a_file(path: str) -> bool:
    """Whether the operating system can be asked about a local path: it has bytes, none of which is zero."""
    if path.isascii():
        return "\0" not in path
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
