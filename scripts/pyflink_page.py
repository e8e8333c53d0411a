"""Writes docs/from-pyflink.md: the names of PyFlink's DataStream API, and which of them are here.

    python scripts/pyflink_page.py WHEEL [--check]

PyFlink's side is read from the wheel of apache-flink, without importing it; ours is imported. With --check nothing is
written; the exit code says whether the page is current.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "from-pyflink.md"
FOLDERS = ("pyflink/common/", "pyflink/datastream/")
CLASSES = (
    "StreamExecutionEnvironment",
    "DataStream",
    "KeyedStream",
    "ConnectedStreams",
    "WindowedStream",
    "DataStreamSink",
    "RuntimeContext",
    "ValueState",
    "ListState",
    "MapState",
    "ReducingState",
    "AggregatingState",
    "BroadcastState",
    "CheckpointConfig",
    "WatermarkStrategy",
    "JobClient",
    "JobExecutionResult",
    "ExecutionConfig",
    "Configuration",
    "Row",
    "Types",
    "AsyncDataStream",
)
"""Whose methods programs call; of functions and windows the names of the classes are enough."""

REASONS = {
    "Row.set_field_names": "a row is a tuple and does not change; `Row('a', 'b')(1, 2)` has names",
    "DataStream.add_sink": "a `SinkFunction` is a class of Java; `sink_to` takes sinks",
    "KeyedStream.add_sink": "a `SinkFunction` is a class of Java; `sink_to` takes sinks",
    "WatermarkStrategy.with_watermark_alignment": "an epoch is read from all inputs at once",
    "SourceFunction": "a class of Java; `from_source` takes a `Source`",
    "SinkFunction": "a class of Java; `sink_to` takes a `Sink`",
    "Partitioner": "operators without keys have no tasks of their own to choose among",
    "SlotSharingGroup": "resources are those of Spark's executors",
    "MemorySize": "resources are those of Spark's executors",
    "CustomStateBackend": "the option `state.backend.type` takes the class path of a factory",
    "CustomCheckpointStorage": "a class of Java",
    "PredefinedOptions": "there is no RocksDB; the columnar backend stands for it",
    "InputFormat": "a class of Java; `from_source` takes a `Source`",
    "InputDependencyConstraint": "Flink's scheduler, which is Spark's here",
    "RestartStrategies": "the options `restart-strategy.*`",
    "RestartStrategyConfiguration": "the options `restart-strategy.*`",
    "AssignerWithPeriodicWatermarksWrapper": "a class of Java",
    "ConfigOptions": "options are set by their names",
}
"""Why a name is not here, or what takes its place."""

INTRODUCTION = """\
# From PyFlink

This page is generated from the two APIs: `python scripts/pyflink_page.py WHEEL`, where the wheel is that of
apache-flink {version}. What differs in behaviour is told in the [guide](guide.md#coming-from-pyflink).

A program comes over by replacing `pyflink` with `holdfast` in its imports. Module paths are PyFlink's.
"""


class Pyflink:
    """The classes and the exported names of PyFlink, read from its sources."""

    def __init__(self, wheel: Path) -> None:
        self.version = wheel.name.split("-")[1]
        self.classes: dict[str, ast.ClassDef] = {}
        self.exports: dict[str, list[str]] = {}
        with zipfile.ZipFile(wheel) as opened:
            for name in sorted(opened.namelist()):
                if name.startswith(FOLDERS) and name.endswith(".py") and "/tests/" not in name:
                    self._read(name, ast.parse(opened.read(name)))

    def _read(self, path: str, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self.exports[module] = list(ast.literal_eval(node.value))

    def methods(self, name: str) -> Iterator[str]:
        """The public methods of a class, those of its bases included."""
        node = self.classes[name]
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                yield from self.methods(base.id)
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith(("_", "get_java", "j_")):
                yield member.name


def ours(module: str, name: str) -> object | None:
    """What stands at a place of PyFlink's here, None if nothing does."""
    try:
        return getattr(importlib.import_module(module.replace("pyflink", "holdfast", 1)), name, None)
    except ImportError:
        return None


def page(wheel: Path) -> str:
    """The text of the page."""
    theirs = Pyflink(wheel)
    parts = [INTRODUCTION.format(version=theirs.version), *exported(theirs), *members(theirs)]
    return "\n".join(parts) + "\n"


def exported(theirs: Pyflink) -> Iterator[str]:
    """Which of the exported names are here."""
    yield "## Names\n"
    for module in ("pyflink.common", "pyflink.datastream"):
        names = theirs.exports[module]
        missing = [name for name in names if ours(module, name) is None]
        there = ", ".join(f"`{name}`" for name in names if name not in missing)
        told = f"Of the {len(names)} names of `{module}`, {len(names) - len(missing)} are here: {there}."
        yield textwrap.fill(told, 118, break_long_words=False, break_on_hyphens=False) + "\n"
        if missing:
            yield "| not here | |\n|---|---|"
            yield from (f"| `{name}` | {REASONS.get(name, '')} |" for name in missing)
            yield ""


def members(theirs: Pyflink) -> Iterator[str]:
    """Which methods of the classes that programs call are here."""
    yield "## Methods\n"
    yield "| class | of PyFlink's | not here |\n|---|---:|---|"
    for name in CLASSES:
        found = next((ours(module, name) for module in places(theirs, name) if ours(module, name)), None)
        methods = sorted(set(theirs.methods(name)))
        missing = [method for method in methods if not (inspect.isclass(found) and hasattr(found, method))]
        told = [f"`{m}`" + (f" ({REASONS[f'{name}.{m}']})" if f"{name}.{m}" in REASONS else "") for m in missing]
        yield f"| `{name}` | {len(methods) - len(missing)} of {len(methods)} | {'; '.join(told)} |"


def places(theirs: Pyflink, name: str) -> list[str]:
    """The modules that export a name."""
    return [module for module, names in theirs.exports.items() if name in names]


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = page(arguments.wheel)
    if arguments.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
