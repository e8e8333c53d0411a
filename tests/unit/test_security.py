"""The page on security names a test for each promise, and it is there."""

from __future__ import annotations

import re

import pytest

from tests.documentation import ROOT

PAGE = ROOT / "docs" / "security.md"
PROMISE = re.compile(r"^\| (?P<promise>[^|]+) \| (?P<test>[^|]*) \|$", re.MULTILINE)


def promises() -> list[tuple[str, str]]:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- promises -->")[2].partition("\n## ")[0]
    return [(match["promise"], match["test"]) for match in PROMISE.finditer(table)][1:]


@pytest.mark.parametrize(("promise", "test"), promises())
def test_a_promise_has_a_test(promise: str, test: str) -> None:
    if not test.strip():
        assert promise.startswith("**"), "only the name of a group may do without"
        return
    file, name = test.strip("`").split("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


def test_the_page_has_promises() -> None:
    assert len([test for _, test in promises() if test.strip()]) > 25
