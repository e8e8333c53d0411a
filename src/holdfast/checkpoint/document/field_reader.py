"""Takes the fields of a checkpoint's document out of its JSON, each with its type and bounds."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

from holdfast.errors import CorruptFileError
from holdfast.kernel.malformed import MALFORMED
from holdfast.state.run.run_file import RunHandle


class FieldReader:
    """Takes the fields of an object out one by one, each with its type."""

    def __init__(self, fields: dict[str, Any], path: str, where: str = "") -> None:
        self._fields = fields
        self._path = path
        self._where = where

    def wrong(self, what: str) -> CorruptFileError:
        """Make the error for a field."""
        return CorruptFileError(self._path, None, f"{self._where}{what}.")

    def take(self, name: str) -> Any:
        """Take any value out."""
        if name not in self._fields:
            raise self.wrong(f"field {name!r} is missing")
        return self._fields.pop(name)

    def text(self, name: str) -> str:
        """Take a text out that has bytes."""
        value: str = self._typed(name, str, "a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.wrong(f"field {name!r} is {value!r:.80}") from error
        return value

    def whole(self, name: str, least: int | None = None, most: int | None = None) -> int:
        """Take a whole number out, within its bounds."""
        value: int = self._typed(name, int, "a whole number")
        if least is not None and value < least:
            raise self.wrong(f"field {name!r} is {value!r:.40}, below {least}")
        if most is not None and value > most:
            raise self.wrong(f"field {name!r} is {value!r:.40}, above {most}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Take an object out."""
        return dict(self._typed(name, dict, "an object"))

    def sequence(self, name: str) -> list[Any]:
        """Take a list out."""
        return list(self._typed(name, list, "a list"))

    def objects(self, name: str) -> Iterator[FieldReader]:
        """Take a list of objects out, each with a reader of its own."""
        for index, item in enumerate(self.sequence(name)):
            where = f"{self._where}{name}[{index}]: "
            if not isinstance(item, dict):
                raise CorruptFileError(self._path, None, f"{where}{reprlib.repr(item)} is not an object.")
            yield FieldReader(item, self._path, where)

    def run(self) -> RunHandle:
        """Read all fields as the handle of a run."""
        try:
            return RunHandle.from_json(self._fields)
        except MALFORMED as error:
            raise self.wrong(f"not the handle of a run: {error!r:.300}") from error

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self._fields:
            raise self.wrong(f"fields {reprlib.repr(sorted(self._fields))} are not known")

    def _typed(self, name: str, kind: type, words: str) -> Any:
        value = self.take(name)
        if type(value) is not kind:
            raise self.wrong(f"field {name!r} is {reprlib.repr(value)}, not {words}")
        return value
