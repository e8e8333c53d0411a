"""The examples in docstrings of functions, windows and aggregates run, and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

from holdfast.runtime import function, window, window_operator

MODULES = [
    module.name
    for package in (function, window, window_operator)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(name)).failed
