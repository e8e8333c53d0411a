"""What earlier releases wrote otherwise: former names of modules, and classes of the program by value.

Pickled state, pickled watermark generators and serializer snapshots name classes by their module. A module that such a
class may come from is never moved without an entry here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, Final

from holdfast.types.program_classes import find_class, find_object

FORMER_MODULES: Final[Mapping[str, str]] = {
    "holdfast.datastream.connectors.kafka.record.record_serialization": "holdfast.datastream.connectors.kafka.records",
    "holdfast.datastream.formats.text_lines": "holdfast.datastream.formats.input_format",
    "holdfast.kernel.option": "holdfast.kernel.configuration",
    "holdfast.runtime.function.broadcast": "holdfast.runtime.function.user_function",
    "holdfast.runtime.function.two_inputs": "holdfast.runtime.function.user_function",
    "holdfast.runtime.job.status": "holdfast.runtime.job.control",
    "holdfast.runtime.operator.vectorised.batch_function": "holdfast.runtime.operator.batch_function",
    "holdfast.runtime.window.built_in_trigger": "holdfast.runtime.window.trigger",
    "holdfast.runtime.window.time_window_assigner": "holdfast.runtime.window.window_assigner",
    "holdfast.runtime.window.window_function": "holdfast.runtime.window.window",
    "holdfast.state.declaration.api": "holdfast.state.api",
    "holdfast.state.declaration.descriptor": "holdfast.state.descriptor",
    "holdfast.state.declaration.function": "holdfast.state.descriptor",
    "holdfast.state.declaration.ttl_config": "holdfast.state.descriptor",
    "holdfast.types.encoder": "holdfast.types.serialization",
    "holdfast.types.information.abstract_type": "holdfast.types.type_information",
    "holdfast.types.information.atomic_type": "holdfast.types.atomic",
    "holdfast.types.information.changelog_type": "holdfast.types.changelog_type",
    "holdfast.types.information.collection_type": "holdfast.types.collection",
    "holdfast.types.information.decimal_type": "holdfast.types.atomic",
    "holdfast.types.information.opaque_type": "holdfast.types.opaque",
    "holdfast.types.information.record_type": "holdfast.types.composite",
    "holdfast.types.information.sealed_type": "holdfast.types.opaque",
    "holdfast.types.information.struct_type": "holdfast.types.composite",
    "holdfast.types.information.type_information": "holdfast.types.types",
    "holdfast.types.instant": "holdfast.types.atomic",
    "holdfast.types.row_kind": "holdfast.types.row",
    "holdfast.types.serialization_schema": "holdfast.types.serialization",
}
"""Current modules by their former names."""
_BY_VALUE: Final = b"_make_skeleton_"
"""In every pickle that has a class by value, as earlier releases wrote those of the program."""
_OF_NAMEDTUPLE: Final = frozenset({"__new__", "_make", "_replace", "__repr__", "_asdict", "__getnewargs__"})
"""Methods that named tuples get with the last part of their name only."""
_SHORTEST: Final = 200
"""Bytes of a pickle that may have one. Most values are shorter, and need not be searched."""


def current_module(module: str) -> str:
    """Return the present name of a module that durable data names."""
    return FORMER_MODULES.get(module, module)


_loads: Final = pickle.loads


class DurableUnpickler(pickle.Unpickler):
    """Reads pickles that an older release may have written."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._file = file
        self._present: set[int] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Import a class from the module in which it lies now."""
        found = super().find_class(current_module(module), name)
        if module.startswith("cloudpickle.") and name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return partial(self._class, found)
        return partial(self._set_state, found) if name == "_class_setstate" else found

    def _class(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return the class that the program has now; that of the pickle if it has none of this name."""
        if len(arguments) == 7:
            _, _, name, _, module, *_ = arguments
            present = find_object(f"{module}:{name}")
        else:
            _, name, _, attributes, tracked, *_ = arguments
            present = self._find_class(attributes.get("__module__"), name, tracked)
        if not isinstance(present, type):
            return make(*arguments)
        self._present.add(id(present))
        return present

    def _find_class(self, module: str, name: str, tracked: str) -> Any:
        if tracked not in _full_names:
            _NameReader(io.BytesIO(self._file.getvalue())).load()
        full = _full_names.get(tracked)
        return find_class(module, name) if full is None else find_object(f"{module}:{full}")

    def _set_state(self, set_state: Callable[..., Any], cls: Any, state: Any) -> Any:
        return cls if id(cls) in self._present else set_state(cls, state)


_full_names: Final[dict[str, str | None]] = {}
"""Names of stored classes by cloudpickle's id of them; None if no method has it."""


class _NameReader(pickle.Unpickler):
    """Learns the full names of classes by value from their methods: a pickle has only the last part.

    The name is needed before the methods are read, so the pickle is read twice for the first value of a class.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._tracked: dict[int, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(current_module(module), name)
        if module.startswith("cloudpickle.") and name == "_make_skeleton_class":
            return partial(self._class, found)
        return partial(self._set_state, found) if name == "_class_setstate" else found

    def persistent_load(self, pid: Any) -> None:
        """Read what is not in the pickle, such as the context of a watermark generator, as nothing."""

    def _class(self, make: Callable[..., Any], *arguments: Any) -> Any:
        made = make(*arguments)
        self._tracked[id(made)] = arguments[4]
        return made

    def _set_state(self, set_state: Callable[..., Any], cls: Any, state: Any) -> Any:
        made = set_state(cls, state)
        if id(made) in self._tracked:
            _full_names[self._tracked[id(made)]] = _full_name(made)
        return made


def _full_name(cls: type) -> str | None:
    """Return the qualified name of a class that was rebuilt from its pickle; None if no method has it."""
    found = set()
    for name, member in vars(cls).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and name not in _OF_NAMEDTUPLE:
            owner, _, own = function.__qualname__.rpartition(".")
            if own == name and f".{owner}".endswith(f".{cls.__name__}"):
                found.add(owner)
    return found.pop() if len(found) == 1 else None


def loads(data: bytes) -> Any:
    """Unpickle durable data.

    `pickle.loads` is several times faster for small values, and only data of older releases needs more.
    """
    if len(data) < _SHORTEST or _BY_VALUE not in data:
        try:
            return _loads(data)
        except (ImportError, AttributeError):
            pass
    return DurableUnpickler(io.BytesIO(data)).load()
