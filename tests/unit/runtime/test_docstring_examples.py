"""The examples in docstrings of functions run, and print what they say; those of windows need an environment."""

import doctest
import importlib
import pkgutil

import pytest

from holdfast.runtime import function

MODULES = [module.name for module in pkgutil.walk_packages(function.__path__, f"{function.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(name)).failed
