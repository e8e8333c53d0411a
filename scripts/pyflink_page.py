"""Write docs/from-pyflink.md: the names of PyFlink's DataStream API, which of them are available, compared programs.

    python scripts/pyflink_page.py [--check] [--wheel WHEEL]

The names of PyFlink are in `scripts/pyflink_api.json`, so that the page can be made without PyFlink. For a new version
of PyFlink, `--wheel` with the wheel of apache-flink records them again. With --check nothing is written; the exit code
tells whether the page, and with a wheel the record, is current.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
import textwrap
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.common.flink_paths import REFUSED as COMMON
from holdfast.datastream.flink_paths import REFUSED as DATASTREAM
from holdfast.datastream.flink_paths import REFUSED_FORMATS, REFUSED_MODULES, REFUSED_OF_FILES, REFUSED_OF_KAFKA
from holdfast.datastream.no_effect import NO_EFFECT

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pyflink_programs import Program, programs  # noqa: E402

PAGE = ROOT / "docs" / "from-pyflink.md"
RECORD = ROOT / "scripts" / "pyflink_api.json"
BEHAVIOUR = ROOT / "scripts" / "pyflink_behaviour.md"
"""Lines of a table: what is so here, and why."""

FOLDERS = ("pyflink/common/", "pyflink/datastream/", "pyflink/metrics/")
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
    "ReduceFunction",
    "AggregateFunction",
    "KeyedProcessFunction",
    "ProcessWindowFunction",
    "Trigger",
    "ProcessAllWindowFunction",
    "AsyncFunction",
    "CoMapFunction",
    "KeyedCoProcessFunction",
    "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction",
    "TimerService",
    "StateTtlConfig",
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "MergingWindowAssigner",
    "TumblingEventTimeWindows",
    "SlidingEventTimeWindows",
    "EventTimeSessionWindows",
    "CountTrigger",
    "TimeWindow",
    "Duration",
    "Time",
    "Instant",
    "JobStatus",
    "MetricGroup",
    "Counter",
    "Meter",
    "Distribution",
    "SlotSharingGroup",
    "MemorySize",
    "NumberSequenceSource",
    "FileSource",
    "FileSink",
    "OutputFileConfig",
    "KafkaSource",
    "KafkaSink",
    "EmbeddedRocksDBStateBackend",
    "FileSystemCheckpointStorage",
)
"""Whose methods programs call; of functions and windows the names of the classes are enough."""

REASONS = {
    **COMMON,
    **DATASTREAM,
    **REFUSED_FORMATS,
    **REFUSED_OF_KAFKA,
    **REFUSED_OF_FILES,
    "Configuration.parse_list_value": "a helper of PyFlink's own",
    "FileSink.get_transformer": "a helper of PyFlink's own",
    "KafkaSink.get_transformer": "a helper of PyFlink's own",
    "BulkWriterFactory": "it is in `connectors.file_system`",
}
"""Why a name is not here, or what takes its place."""

REFUSALS = {"Raise an error": "rejected", "Accept False only": "rejected if true"}
"""How docstrings of methods that refuse begin, and how the page says it."""

INTRODUCTION = """\
# From PyFlink

    sed -i -E 's/^( *)(from|import) pyflink\\b/\\1\\2 holdfast/' job.py

To move a program, replace `pyflink` with `holdfast` in its imports. Module paths are the same. If a name is not
available, its import fails and the error names the replacement from these tables.

Contents: [names](#names), [methods](#methods), [methods without effect](#accepted-without-effect),
[arguments](#arguments), [different behaviour](#behaviour), [compared programs](#programs).

`python scripts/pyflink_page.py` generates this page from both APIs. PyFlink's is that of apache-flink {version}.
"""


@dataclass(frozen=True)
class Pyflink:
    """The names of PyFlink that the page compares.

    Attributes:
        version: The version of apache-flink.
        exports: The exported names of each module.
        classes: The public methods of `CLASSES`, those of their bases included, with their arguments.
    """

    version: str
    exports: dict[str, list[str]]
    classes: dict[str, dict[str, list[str]]]

    @classmethod
    def recorded(cls) -> Pyflink:
        """Return what `RECORD` has."""
        return cls(**json.loads(RECORD.read_text(encoding="utf-8")))

    def record(self) -> None:
        """Write it to `RECORD`."""
        RECORD.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


class Wheel:
    """The sources of PyFlink in a wheel of apache-flink. They are read, not imported."""

    def __init__(self, path: Path) -> None:
        self._version = path.name.split("-")[1]
        self._classes: dict[str, ast.ClassDef] = {}
        self._exports: dict[str, list[str]] = {}
        with zipfile.ZipFile(path) as opened:
            for name in sorted(opened.namelist()):
                if name.startswith(FOLDERS) and name.endswith(".py") and "/tests/" not in name:
                    self._read(name, ast.parse(opened.read(name)))

    def api(self) -> Pyflink:
        """Return what the page compares."""
        classes = {
            name: {method: self._arguments(name, method) for method in sorted(set(self._methods(name)))}
            for name in CLASSES
        }
        return Pyflink(self._version, self._exports, classes)

    def _read(self, path: str, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, node)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self._exports[module] = list(ast.literal_eval(node.value))

    def _methods(self, name: str) -> Iterator[str]:
        node = self._classes[name]
        for base in self._bases(node):
            yield from self._methods(base)
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith(("_", "get_java", "j_")):
                yield member.name

    def _bases(self, node: ast.ClassDef) -> list[str]:
        names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        return [name.id for name in names if isinstance(name, ast.Name) and name.id in self._classes]

    def _arguments(self, name: str, method: str) -> list[str]:
        node = self._classes[name]
        for member in reversed(node.body):  # the last of those that overload each other
            if isinstance(member, ast.FunctionDef) and member.name == method:
                names = [argument.arg for argument in (*member.args.posonlyargs, *member.args.args)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                return names + ([f"*{member.args.vararg.arg}"] if member.args.vararg else [])
        base = next(base for base in self._bases(node) if method in set(self._methods(base)))
        return self._arguments(base, method)


def ours(module: str, name: str) -> object | None:
    """What stands at a place of PyFlink's here, None if nothing does."""
    try:
        return getattr(importlib.import_module(module.replace("pyflink", "holdfast", 1)), name, None)
    except ImportError:
        return None


def page(theirs: Pyflink) -> str:
    """The text of the page."""
    parts = [
        INTRODUCTION.format(version=theirs.version),
        *exported(theirs),
        *elsewhere(),
        *members(theirs),
        *without_effect(),
    ]
    parts += [*keywords(theirs), *behaviour(), *compared(theirs)]
    return "\n".join(parts) + "\n"


def exported(theirs: Pyflink) -> Iterator[str]:
    """Yield the exported names that are available, and those that are not."""
    yield "## Names\n"
    for module in ("pyflink.common", "pyflink.datastream"):
        names = theirs.exports[module]
        missing = [name for name in names if ours(module, name) is None]
        there = ", ".join(f"`{name}`" for name in names if name not in missing)
        told = f"`{module}` has {len(names)} names. {len(names) - len(missing)} are available: {there}."
        yield textwrap.fill(told, 118, break_long_words=False, break_on_hyphens=False) + "\n"
        if missing:
            yield "| not available | what to use instead |\n|---|---|"
            yield from (f"| `{name}` | {REASONS.get(name, '')} |" for name in missing)
            yield ""


def members(theirs: Pyflink) -> Iterator[str]:
    """Yield the available methods of the classes that programs call."""
    yield "## Methods\n"
    yield "| class | available methods | missing or rejected methods |\n|---|---:|---|"
    for name in CLASSES:
        found = next((ours(module, name) for module in places(theirs, name) if ours(module, name)), None)
        methods = list(theirs.classes[name])
        missing = [method for method in methods if not (inspect.isclass(found) and hasattr(found, method))]
        told = [f"`{m}`" + (f" ({REASONS[f'{name}.{m}']})" if f"{name}.{m}" in REASONS else "") for m in missing]
        refusals = {m: reason for m in methods if (reason := refusal(found, m))}
        told += [f"`{m}` ({reason})" for m, reason in refusals.items()]
        here = len(methods) - len(missing) - len(refusals)
        yield f"| `{name}` | {here} of {len(methods)} | {'; '.join(told)} |"
    yield ""


def without_effect() -> Iterator[str]:
    """Which methods are accepted and do nothing, and why."""
    yield "## Accepted without effect\n"
    yield "Programs may call these methods. They change nothing, and return the same values as in PyFlink.\n"
    yield "| class | methods | why they have no effect |\n|---|---|---|"
    for name, rows in NO_EFFECT.items():
        reasons: dict[str, list[str]] = {}
        for row in rows:
            reasons.setdefault(row.why, []).extend(f"`{method}`" for method in row.methods())
        yield from (f"| `{name}` | {', '.join(methods)} | {why} |" for why, methods in reasons.items())
    yield ""


def refusal(kind: object, method: str) -> str | None:
    """Return why a method does nothing, by the first sentence of its docstring; None if it does something."""
    first, *_ = (inspect.getdoc(getattr(kind, method, None)) or "").splitlines() or [""]
    for begin, shown in REFUSALS.items():
        if first.startswith(begin):
            return shown + first.removeprefix(begin).removesuffix(".")
    return None


def elsewhere() -> Iterator[str]:
    """Connectors and formats of PyFlink that something else stands for."""
    yield "These connectors and formats are not available:\n"
    yield "| PyFlink | what to use instead |\n|---|---|"
    for module, names in REFUSED_MODULES.items():
        if module.startswith(("connectors.", "formats.")):
            yield f"| `{module}` | {next(iter(names.values()))} |"
    for table in (REFUSED_OF_KAFKA, REFUSED_OF_FILES, REFUSED_FORMATS):
        yield from (f"| `{name}` | {reason} |" for name, reason in table.items())
    yield ""


def keywords(theirs: Pyflink) -> Iterator[str]:
    """Arguments that have another name here, which matters to who passes them by name."""
    yield "## Arguments\n"
    told = [
        f"| `{name}.{method}` | {listed(wanted)} | {listed(found)} |"
        for name in CLASSES
        for method, wanted, found in differing(theirs, name)
    ]
    if told:
        yield "These arguments have other names. Change them where you pass them by name:\n"
        yield "| method | PyFlink | Holdfast |\n|---|---|---|"
        yield from told
    else:
        yield "All arguments of these methods have PyFlink's names, in PyFlink's order."


def differing(theirs: Pyflink, name: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The methods of a class that take arguments of other names, with these."""
    kind = next((ours(module, name) for module in places(theirs, name) if ours(module, name)), None)
    for method, wanted in theirs.classes[name].items():
        member = getattr(kind, method, None)
        if not callable(member):
            continue
        found = of_ours(member)
        if found is not None and wanted != ["*args"] and found[: len(wanted)] != wanted:
            yield method, wanted, found


def of_ours(member: object) -> list[str] | None:
    """The arguments of a method here; None if it takes any."""
    parameters = list(inspect.signature(member).parameters.values())  # type: ignore[arg-type]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    names = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in parameters]
    return names[1:] if names[:1] == ["self"] else names


def listed(names: list[str]) -> str:
    """Names with commas."""
    return ", ".join(f"`{name}`" for name in names)


def behaviour() -> Iterator[str]:
    """What is otherwise although the names agree."""
    yield "\n## Behaviour\n"
    yield "These behave differently under the same name:\n"
    yield "| in Holdfast | reason |\n|---|---|"
    yield BEHAVIOUR.read_text(encoding="utf-8").rstrip()


def compared(theirs: Pyflink) -> Iterator[str]:
    """Programs that were run on both, and what is printed otherwise here."""
    told = programs()
    same = [program for program in told if program.reason is None]
    yield "\n## Programs\n"
    said = (
        f"{len(told)} short programs, each for one use case, were run on PyFlink {theirs.version}, and their output "
        f"was [recorded](../tests/programs/pyflink/README.md). With their imports replaced, {len(same)} of them print "
        "the same on Holdfast, in the order of each key:"
    )
    yield textwrap.fill(said, 118, break_on_hyphens=False, break_long_words=False)
    yield "\n| program | use case |\n|---|---|"
    yield from (f"| {linked(program)} | {program.paragraphs[0]} |" for program in same)
    yield f"\nThe other {len(told) - len(same)} print different results by design:"
    yield "\n| program | use case | difference |\n|---|---|---|"
    others = (program for program in told if program.reason is not None)
    yield from (f"| {linked(program)} | {program.paragraphs[0]} | {program.reason} |" for program in others)


def linked(program: Program) -> str:
    """Its name, with a link to it."""
    return f"[`{program.name}`](../{program.path.relative_to(ROOT)})"


def places(theirs: Pyflink, name: str) -> list[str]:
    """The modules that export a name."""
    return [module for module, names in theirs.exports.items() if name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    theirs = Pyflink.recorded() if given.wheel is None else Wheel(given.wheel).api()
    text = page(theirs)
    if given.check:
        return int(PAGE.read_text(encoding="utf-8") != text or Pyflink.recorded() != theirs)
    theirs.record()
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
