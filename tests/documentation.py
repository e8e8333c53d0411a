"""Code blocks of the documentation, as programs.

A block that begins with three backticks and `python` runs anywhere. One with `python spark` needs a Spark session, one
with `python query` a state server. Each is a program by itself: it imports and defines all names that it uses.
"""

from __future__ import annotations

import builtins
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r"^\| \[[^]]+\]\((guide/\S+\.md)\) \|", re.MULTILINE)
_GUIDE = ROOT / "docs" / "guide.md"
GUIDE = [_GUIDE, *(_GUIDE.parent / name for name in _PART.findall(_GUIDE.read_text(encoding="utf-8")))]
"""The pages of the guide, in their order."""
RECIPES = sorted(page for page in ROOT.glob("docs/how-to/*.md") if page.name != "README.md")
"""The pages of recipes: each has the text of a program in `examples/how_to`, and what it prints."""
_HOW_TO = [ROOT / "docs" / "how-to" / "README.md", *RECIPES]
OF_THE_SITE = [
    ROOT / "docs" / "index.md",
    *(page for place in ("start", "concepts", "reference") for page in sorted(ROOT.glob(f"docs/{place}/*.md"))),
]
"""The pages that were written for the site."""
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(ROOT.glob("docs/*.md")),
    *(*GUIDE[1:], *_HOW_TO, *OF_THE_SITE[1:]),
]
FURTHER_PAGES = [
    page
    for place in ("docs/decisions", "benchmarks", "deploy", "examples")
    for page in sorted(ROOT.glob(f"{place}/**/*.md"))
]

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def padded(self) -> str:
        """The text with empty lines before it, so that line numbers are those of the page."""
        return "\n" * (self.line - 1) + self.text

    def undefined_names(self) -> set[str]:
        """Return the names that the block uses, and neither imports nor defines."""
        whole = symtable.symtable(self.text, str(self.page), "exec")
        defined = {symbol.get_name() for symbol in whole.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        return set(_global_names(whole)) - defined - set(dir(builtins))


def _global_names(scope: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a scope and the scopes in it use."""
    for symbol in scope.get_symbols():
        if symbol.is_referenced() and (scope.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _global_names(inner)


def blocks(page: Path, *infos: str) -> list[Block]:
    """The blocks of a page whose first line says one of these."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start("text")) + 1, match["info"], match["text"])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.info in infos]


def recipe_program(page: Path) -> Path:
    """Return the program of a recipe."""
    return ROOT / "examples" / "how_to" / f"{page.stem.replace('-', '_')}.py"


def recipe_output(page: Path) -> str:
    """Return what a recipe's program prints, as its page shows it."""
    [shown] = blocks(page, "text")
    return shown.text
