"""Module paths that PyFlink has and whose classes stand elsewhere here: importable, and made when they are asked for.

A program says `from pyflink.common.job_status import JobStatus`. With the imports replaced,
`holdfast.common.job_status` must be a module. Each is one line of a table instead of a file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

COMMON: Final[Mapping[str, Mapping[str, str]]] = {
    "completable_future": {"CompletableFuture": "holdfast.runtime.job.control:CompletableFuture"},
    "config_options": {"ConfigOption": "holdfast.kernel.configuration:ConfigOption"},
    "execution_config": {"ExecutionConfig": "holdfast.datastream.environment.settings:ExecutionConfig"},
    "job_client": {"JobClient": "holdfast.runtime.master.job_client:JobClient"},
    "job_execution_result": {"JobExecutionResult": "holdfast.runtime.job.control:JobExecutionResult"},
    "job_id": {"JobID": "holdfast.kernel.ids:JobID"},
    "job_status": {"JobStatus": "holdfast.runtime.job.control:JobStatus"},
    "serializer": {"TypeSerializer": "holdfast.types.serializer:TypeSerializer"},
}
"""Modules of `holdfast.common`, and where their names stand."""

LAZY: Final = {name: place for names in COMMON.values() for name, place in names.items()}
"""Names that `holdfast.common` has too."""


_RESTARTS: Final = "set the options restart-strategy.*"
REFUSED: Final[Mapping[str, str]] = {
    "ConfigOptions": "set options by their names, in a dict, a Configuration or with -D",
    "InputDependencyConstraint": "tasks are scheduled by Spark",
    "InputFormat": "it is a class of Java; env.from_source() takes a Source, env.from_dataframe() what Spark reads",
    "RestartStrategies": _RESTARTS,
    "RestartStrategyConfiguration": _RESTARTS,
    "AssignerWithPeriodicWatermarksWrapper": "it is a class of Java; subclass WatermarkGenerator",
}
"""Names of `pyflink.common` that are not here, and why, or what to use."""

REFUSED_MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "config_options": {"ConfigOptions": REFUSED["ConfigOptions"]},
    "input_dependency_constraint": {"InputDependencyConstraint": REFUSED["InputDependencyConstraint"]},
    "io": {"InputFormat": REFUSED["InputFormat"]},
    "utils": {"JavaObjectWrapper": "there is no class of Java behind what is here"},
    "restart_strategy": dict.fromkeys(("RestartStrategies", "RestartStrategyConfiguration"), _RESTARTS),
}
"""Modules of `pyflink.common` that are not here, by the names that programs import from them."""


def refuse(name: str, instead: Mapping[str, str]) -> None:
    """Tell who imports a name of PyFlink why it is not here.

    Raises:
        ImportError: It is one of them.
    """
    if name in instead:
        raise ImportError(f"PyFlink's {name!r} is not in Holdfast: {instead[name]}.")


def module_getattr(
    module: str, instead: Mapping[str, str], places: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has not all names of PyFlink's.

    Args:
        module: Its name.
        instead: Why names are not there, or what to use.
        places: Where names stand that it has from elsewhere.
    """

    def missing(name: str) -> Any:
        if places and name in places:
            return load(places[name])
        refuse(name, instead)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def load(place: str) -> Any:
    """Return what stands at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


class AliasModule(ModuleType):
    """A module that has its names from elsewhere."""

    def __init__(self, name: str, places: Mapping[str, str], instead: Mapping[str, str] | None = None) -> None:
        super().__init__(
            name, f"Names of PyFlink's {name.replace('holdfast', 'pyflink', 1)}, which stand elsewhere here."
        )
        self.__all__ = sorted(places)
        self._places = places
        self._instead = instead or {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._places:
            refuse(name, self._instead)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return load(self._places[name])

    def __dir__(self) -> Iterable[str]:
        return self.__all__


def register(
    package: str, paths: Mapping[str, Mapping[str, str]], refusals: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Make modules of a package importable; one that has a file of its own is left alone.

    Args:
        package: Its name.
        paths: Modules, and where their names stand.
        refusals: Modules, and why names of theirs are not here.
    """
    instead = refusals or {}
    for name in {**paths, **instead}:
        module = AliasModule(f"{package}.{name}", paths.get(name, {}), instead.get(name))
        if sys.modules.setdefault(module.__name__, module) is module:
            parent, _, last = module.__name__.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], last, module)
