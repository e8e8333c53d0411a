"""Prepares docstrings for the reference of the site: examples become blocks of code, `__new__` is a constructor."""

from __future__ import annotations

import re
import textwrap
from typing import Any, Final

import griffe

_EXAMPLE: Final = re.compile(
    r"^(?:Examples?:\n)?(?P<example>(?P<indent> *)>>> .*(?:\n(?P=indent).*\S.*)*)", re.MULTILINE
)


class PrepareDocstrings(griffe.Extension):
    """Prepare docstrings that are written for Python's `help()`."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Turn the examples of an object into blocks of code."""
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Show the arguments of a class that has `__new__` only."""
        if "__new__" in cls.members and "__init__" not in cls.members:
            cls.set_member("__init__", cls.members["__new__"])


def with_code_blocks(docstring: str) -> str:
    """Return a docstring in which each example, up to an empty line, is a block of code.

    Python's doctest ends an example there, too. The headings *Example* and *Examples* are dropped. Examples are not
    part of other sections, such as *Args*; they may be indented.
    """
    return _EXAMPLE.sub(lambda found: f"```pycon\n{textwrap.dedent(found['example'])}\n```", docstring)
