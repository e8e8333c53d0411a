"""PyFlink's module paths, as tables: importable modules whose names are loaded from elsewhere on first use.

A program imports `pyflink.common.job_status`; with the prefix replaced, `holdfast.common.job_status` must be a module.
Each such module is a line of a table instead of a file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from opcode import opmap
from types import FrameType, ModuleType
from typing import Any, Final

COMMON: Final[Mapping[str, Mapping[str, str]]] = {
    "completable_future": {"CompletableFuture": "holdfast.runtime.job.control:CompletableFuture"},
    "config_options": {"ConfigOption": "holdfast.kernel.configuration:ConfigOption"},
    "execution_config": {"ExecutionConfig": "holdfast.datastream.environment.execution_config:ExecutionConfig"},
    "job_client": {"JobClient": "holdfast.runtime.master.job_client:JobClient"},
    "job_execution_result": {"JobExecutionResult": "holdfast.runtime.job.control:JobExecutionResult"},
    "job_id": {"JobID": "holdfast.kernel.ids:JobID"},
    "job_status": {"JobStatus": "holdfast.runtime.job.control:JobStatus"},
    "serializer": {"TypeSerializer": "holdfast.types.serializer:TypeSerializer"},
}
"""Names by module of `holdfast.common`, with the `module:name` they are loaded from."""

LAZY: Final = {name: place for names in COMMON.values() for name, place in names.items()}
"""Names that `holdfast.common` itself has too."""


_RESTARTS: Final = "set the options restart-strategy.*"
REFUSED: Final[Mapping[str, str]] = {
    "ConfigOptions": "set options by their names, in a dict, a Configuration or with -D",
    "InputDependencyConstraint": "tasks are scheduled by Spark",
    "InputFormat": "it is a Java class; use env.from_source(), or env.from_dataframe() with what Spark reads",
    "RestartStrategies": _RESTARTS,
    "RestartStrategyConfiguration": _RESTARTS,
    "AssignerWithPeriodicWatermarksWrapper": "it is a Java class; subclass WatermarkGenerator",
}
"""Names of `pyflink.common` that are not available, and what to use instead."""

REFUSED_MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "config_options": {"ConfigOptions": REFUSED["ConfigOptions"]},
    "input_dependency_constraint": {"InputDependencyConstraint": REFUSED["InputDependencyConstraint"]},
    "io": {"InputFormat": REFUSED["InputFormat"]},
    "utils": {"JavaObjectWrapper": "there are no Java objects to wrap"},
    "restart_strategy": dict.fromkeys(("RestartStrategies", "RestartStrategyConfiguration"), _RESTARTS),
}
"""Modules of `pyflink.common` that are not available, by the names that programs import from them."""


def refuse(name: str, instead: Mapping[str, str]) -> None:
    """Reject a name of PyFlink that Holdfast does not have; called by the `__getattr__` of a module.

    Args:
        name: The name that is looked up.
        instead: Names that are not available, and what to use instead.

    Raises:
        AttributeError: The name is one of them.
        ImportError: The same, in a `from` import.
    """
    if name in instead:
        raise refusal(f"Holdfast does not have PyFlink's {name!r}: {instead[name]}.", sys._getframe(2))


def refusal(message: str, caller: FrameType) -> AttributeError | ImportError:
    """Return what the `__getattr__` of a module raises for a name that is not available.

    It is an AttributeError, as `hasattr`, `inspect` and `pickle` expect. A `from` import would replace the message of
    an AttributeError by its own, so there it is an ImportError.

    Args:
        message: Its message.
        caller: The frame that looks the name up.
    """
    is_import = caller.f_lasti >= 0 and caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
    return ImportError(message) if is_import else AttributeError(message)


def module_getattr(
    module: str, instead: Mapping[str, str], places: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that lacks some of PyFlink's names.

    Args:
        module: Name of the module.
        instead: Names that are not available, and what to use instead.
        places: Names that are loaded from elsewhere, with their `module:name`.
    """

    def missing(name: str) -> Any:
        if places and name in places:
            return load(places[name])
        refuse(name, instead)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def load(place: str) -> Any:
    """Import the object at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


class AliasModule(ModuleType):
    """A module whose names are loaded from elsewhere on first use."""

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
    """Make the modules of a package importable; a module with a file of its own is kept.

    Args:
        package: Name of the package.
        paths: Names by module, with their `module:name`.
        refusals: Names that are not available by module, and what to use instead.
    """
    instead = refusals or {}
    for name in {**paths, **instead}:
        module = AliasModule(f"{package}.{name}", paths.get(name, {}), instead.get(name))
        if sys.modules.setdefault(module.__name__, module) is module:
            parent, _, last = module.__name__.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], last, module)
