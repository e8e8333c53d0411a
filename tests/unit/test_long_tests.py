"""The list of long tests names tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long_tests import LONG

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("entry", LONG)
def test_an_entry_names_tests(entry: str) -> None:
    file, *parts = entry.split("::")
    if not parts:
        assert (ROOT / file).exists()
        return
    contracts = [path.read_text() for path in (ROOT / "src" / "holdfast" / "testing").rglob("*.py")]
    contracts += [path.read_text() for path in (ROOT / "tests" / "contract").glob("*.py")]
    own = (ROOT / file).read_text()
    assert all(f"class {name}" in own for name in parts[:-1])
    assert any(f"def {parts[-1]}" in text for text in (own, *contracts))
