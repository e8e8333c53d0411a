"""The structure of the package: documented folders, no import circles, one meaning for each class name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
CIRCLES_OF_ANNOTATIONS = [
    # A stream knows its environment and names the streams that it returns, which as in PyFlink may be made of it.
    {
        "datastream.environment.stream_execution_environment",
        "datastream.stream.connected",
        "datastream.stream.data_stream",
        "datastream.stream.interval_join",
        "datastream.stream.keyed_stream",
        "datastream.stream.stream_factory",
        "datastream.stream.windowed",
    },
]
"""`make layers` finds every other kind of circle."""


@cache
def modules() -> dict[str, ast.Module]:
    """All modules of the package, by their names below it."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def imported(tree: ast.Module, names: Mapping[str, object]) -> Iterator[str]:
    """The modules that a module names in an import, also for annotations alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("holdfast."):
            base = node.module.removeprefix("holdfast.")
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base


def test_every_room_says_what_it_holds() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_circles_are_of_annotations_and_named_here() -> None:
    trees = modules()
    arrows = {name: set(imported(tree, trees)) - {name} for name, tree in trees.items()}
    for circle in CIRCLES_OF_ANNOTATIONS:
        for name in circle:
            assert arrows[name] & circle, f"{name!r} is in no circle any more"
            arrows[name] -= circle
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from None


def test_a_public_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
