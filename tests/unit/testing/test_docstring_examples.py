"""The examples in docstrings of test tools and of the state processor run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import tempfile
from pathlib import Path

import pytest

from holdfast import state_processor, testing

PACKAGES = [testing, state_processor]
MODULES = [
    name
    for package in PACKAGES
    for name in (
        package.__name__,
        *(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
    )
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert not result.failed


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_public_name_has_an_example(package: object) -> None:
    names = [name for name in package.__all__ if name != "ManualClock"]  # type: ignore[attr-defined]
    assert [name for name in names if ">>>" not in (getattr(package, name).__doc__ or "")] == []
