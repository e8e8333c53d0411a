"""The pages of recipes: each has its program as it is in the file, and the parts in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation import RECIPES, ROOT, blocks, recipe_output, recipe_program

MOST_LINES = 40
HEADINGS = ["Output", "How it works", "Limits", "See also"]


def test_each_program_has_a_page() -> None:
    programs = sorted((ROOT / "examples" / "how_to").glob("*.py"))
    assert [recipe_program(page) for page in RECIPES] == programs
    assert len(programs) == 12


def test_the_index_has_each_recipe_under_its_title() -> None:
    index = (ROOT / "docs" / "how-to" / "README.md").read_text(encoding="utf-8")
    for page in RECIPES:
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert index.count(f"[{title}]({page.name})") == 1, page.name


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_page_has_the_text_of_its_program(page: Path) -> None:
    [shown] = blocks(page, "python spark")
    assert shown.text == recipe_program(page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_program_is_short(page: Path) -> None:
    assert len(recipe_program(page).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_page_has_its_parts_in_order(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert recipe_output(page).strip()
    assert f"`python examples/how_to/{recipe_program(page).name}" in text
