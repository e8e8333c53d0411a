"""Short PyFlink programs, what they print on Flink, and how that is compared with what they print here.

`programs/pyflink` holds the programs; beside each is what PyFlink printed (`.txt`), and where that is not what is
printed here, what is (`.holdfast.txt`). A docstring says, in paragraphs that begin so, `Order:` that lines are compared
as a bag, and `Here:` why something else is printed here. Without `Order:` the order of lines counts among those that
have their first word in common, which is a key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "programs" / "pyflink"


@dataclass(frozen=True)
class Program:
    """A program, by its path below the folder and without a suffix: `state/first_of_each`."""

    name: str

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def on_flink(self) -> Path:
        """What PyFlink printed."""
        return FOLDER / f"{self.name}.txt"

    @property
    def here(self) -> Path:
        """What is printed here, where that differs."""
        return FOLDER / f"{self.name}.holdfast.txt"

    @cached_property
    def paragraphs(self) -> list[str]:
        """Those of the docstring, each in one line."""
        said = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        return [" ".join(paragraph.split()) for paragraph in said.split("\n\n")]

    @property
    def reason(self) -> str | None:
        """Why something else is printed here."""
        return next((text.removeprefix("Here: ") for text in self.paragraphs if text.startswith("Here: ")), None)

    @property
    def ordered(self) -> bool:
        return not any(text.startswith("Order: ") for text in self.paragraphs)

    def replaced(self) -> str:
        """Its text with `pyflink` replaced in the imports, and nothing else."""
        text = self.path.read_text(encoding="utf-8")
        return re.sub(r"^(\s*)(from|import) pyflink\b", r"\1\2 holdfast", text, flags=re.MULTILINE)

    def expected(self) -> list[str]:
        """The lines that are to be printed here."""
        return (self.here if self.here.exists() else self.on_flink).read_text(encoding="utf-8").splitlines()

    def arranged(self, lines: Sequence[str]) -> object:
        """What is compared of lines that were printed."""
        if not self.ordered:
            return sorted(lines)
        by_key: dict[str, list[str]] = {}
        for line in lines:
            by_key.setdefault(key(line), []).append(line)
        return by_key


def key(line: str) -> str:
    """The first word of a line, or the first field of a tuple or a row."""
    return re.split(r"[ ,:\])]", line.removeprefix("+I[").removeprefix("("), maxsplit=1)[0]


def programs() -> list[Program]:
    """All of them, in the order of their names."""
    return [Program(str(path.relative_to(FOLDER).with_suffix(""))) for path in sorted(FOLDER.rglob("*.py"))]
