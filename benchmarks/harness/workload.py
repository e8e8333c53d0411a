"""What every engine of a benchmark does: the sizes, where its files lie, and the protocol that it answers to.

Only the standard library is imported here: engines that live in an environment of their own read it too.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

ENGINES = "benchmarks.engines"
PARALLELISM = 2
SINKS = ("parquet", "discard")
SETTINGS_VARIABLE: Final = "HOLDFAST_BENCHMARK_SETTINGS"
"""Spark's settings for one engine, as a JSON object; its process finds them here."""


@dataclass(frozen=True)
class Workload:
    """One measurement.

    Attributes:
        rows: Rows an epoch.
        keys: Number of distinct keys, drawn uniformly.
        sink: ``parquet`` writes every row to Parquet files exactly once, ``discard`` writes none.
        inputs: Directory of generated epochs, shared by all engines and kept for the next run.
        workspace: Directory of this engine alone: its source, its state, its output.
        fill: Rows of each of the epochs with which the state is filled first, in which each key comes once; 0 for none.
        words: How many keys stand in a line of text, which is then all that the input has; 0 for rows with a key each.
        files: How many files an epoch has; tasks read no file together, and Parquet files here have one row group.
    """

    rows: int
    keys: int
    sink: str
    inputs: str
    workspace: str
    fill: int = 0
    words: int = 0
    files: int = 1

    @property
    def fill_epochs(self) -> int:
        """How many epochs it takes until each key has come once."""
        return -(-self.keys // self.fill) if self.fill else 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Workload:
        return Workload(**json.loads(text))


class Engine(Protocol):
    """A counter per key under one engine, which stays alive between rounds."""

    def run(self, epochs: int) -> Sequence[float]:
        """Processes so many more epochs and returns the seconds that each took."""

    def close(self) -> None:
        """Ends everything that it started."""


def engine_names() -> list[str]:
    """All engines there are: one file each in ``benchmarks/engines``, named with dashes."""
    folder = Path(__file__).parents[1] / "engines"
    return sorted(path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py"))


def chosen_engines(text: str, *, settings: bool = False) -> list[str]:
    """The engines of a command line, separated by commas; a name that does not exist ends the program.

    Args:
        text: The names.
        settings: Whether an engine may take part with settings of Spark of its own: ``floor@spark.a=1;spark.b=2``.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        engine, has_settings, of_engine = name.partition("@")
        if engine not in engine_names():
            raise SystemExit(f"there is no engine {engine!r}: choose from {', '.join(engine_names())}")
        if has_settings and not settings:
            raise SystemExit(f"{name!r}: engines take no settings of Spark here")
        if has_settings and hasattr(engine_module(engine), "interpreter"):
            raise SystemExit(f"{name!r}: {engine} does not run on Spark")
        for setting in filter(None, of_engine.split(";")):
            if not setting.startswith("spark.") or "=" not in setting:
                raise SystemExit(f"{setting!r} of {name!r} is no setting of Spark: write spark.NAME=VALUE")
    return names


def settings_of(name: str) -> dict[str, str]:
    """The settings of Spark with which an engine takes part, as they stand behind its name."""
    settings = name.partition("@")[2]
    return dict(setting.split("=", 1) for setting in settings.split(";") if setting)


def engine_module(name: str) -> ModuleType:
    """The module of an engine, with ``make_engine(workload)`` and perhaps ``interpreter(cache)`` and ``SINK``."""
    return importlib.import_module(f"{ENGINES}.{name.partition('@')[0].replace('-', '_')}")


def sink_of(name: str, chosen: str) -> str:
    """The sink that an engine really uses: two have only one, whatever was chosen."""
    return str(getattr(engine_module(name), "SINK", chosen))
