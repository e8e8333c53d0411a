"""Names of classes in durable data: those of the program that no worker can import, and former ones of this package.

State outlives the process that wrote it. A class of the main module, or of a function's body, is pickled into it as
`__main__:Order.Status`, and read as the class that the program has under this name now. The job itself is sent to
workers with such classes by value, and with their names: `pickle_program`.

Pickled state, pickled watermark generators and serializer snapshots name classes by their module. A module that such a
class may come from is never moved without an entry in `FORMER_MODULES`.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType
from typing import Any, ClassVar, Final

import cloudpickle
from cloudpickle import cloudpickle as by_value

from holdfast.errors import MissingClassError

_MAIN: Final = "__main__"
_NAMED: Final = (type, FunctionType)
_PROCESS: Final = uuid.uuid4().hex
_FILENAME: Final = 10
"""Position of the file among the arguments of a code object."""
_LARGEST: Final = 1 << 20
"""Bytes of a class that no function of the job mentions, with what its methods refer to."""
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
    "holdfast.types.atomic": "holdfast.types.type_information",
    "holdfast.types.encoder": "holdfast.types.serialization",
    "holdfast.types.information.abstract_type": "holdfast.types.type_information",
    "holdfast.types.information.atomic_type": "holdfast.types.type_information",
    "holdfast.types.information.changelog_type": "holdfast.types.changelog_type",
    "holdfast.types.information.collection_type": "holdfast.types.collection",
    "holdfast.types.information.decimal_type": "holdfast.types.type_information",
    "holdfast.types.information.opaque_type": "holdfast.types.opaque",
    "holdfast.types.information.record_type": "holdfast.types.composite",
    "holdfast.types.information.sealed_type": "holdfast.types.opaque",
    "holdfast.types.information.struct_type": "holdfast.types.composite",
    "holdfast.types.information.type_information": "holdfast.types.types",
    "holdfast.types.instant": "holdfast.types.type_information",
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
_loads: Final = pickle.loads
_full_names: Final[dict[str, str | None]] = {}
"""Names of stored classes by cloudpickle's id of them; None if no method has it."""


class ProgramClasses:
    """The classes and functions of one program by name.

    Args:
        process: The driver, in which the main module has them.
        shipped: Those that the job refers to.
        packed: Other classes of its main module: a pickle, or another name of the same class. They are loaded on use.
        unusable: Why the rest was not sent.
    """

    def __init__(
        self,
        process: str,
        shipped: Mapping[str, Any],
        packed: Mapping[str, bytes | str],
        unusable: Mapping[str, str],
    ) -> None:
        self._is_here = process == _PROCESS
        self._named = dict(shipped)
        self._packed = {} if self._is_here else dict(packed)
        self._unusable = dict(unusable)
        self._paths = {id(thing): path for path, thing in self._named.items()}

    def find(self, path: str) -> Any:
        """Return the class or function of a name; None if the program has none."""
        found = _in_main(path) if self._is_here else None
        if found is None:
            found = self._named.get(path)
        if found is None and self._is_here and self is not _own:
            return _own.find(path)
        if found is None and path in self._packed:
            packed = self._packed[path]
            if isinstance(packed, str):
                return self.find(packed) or _imported(packed)
            found = self._named[path] = pickle.loads(packed)  # noqa: S301 - the job's own program
            self._paths[id(found)] = path
        return found

    def path_of(self, thing: Any) -> str | None:
        """Return the name by which `find` returns a class or function; None if it is not one of the program's."""
        path = self._paths.get(id(thing))
        if path is None and self._is_here:
            path = _path_of(thing)
            return path if path is not None and self.find(path) is thing else None
        return path

    def find_unqualified(self, module: str, name: str) -> Any:
        """Return the class of a module with this name, which may be nested; None if there are several, or none."""
        paths = {path for path, thing in self._named.items() if isinstance(thing, type)}
        paths.update(self._packed, (path for path, _ in _classes_of_main() if self._is_here))
        start, end = f"{module}:", f".{name}"
        named = [path for path in paths if path.startswith(start) and (path == start + name or path.endswith(end))]
        found = {id(thing): thing for thing in map(self.find, named) if thing is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def why_missing(self, path: str) -> str:
        reason = self._unusable.get(path)
        return "the program does not have it now" if reason is None else f"it could not be sent to workers: {reason}"

    def add(self, things: Mapping[str, Any]) -> None:
        """Remember classes and functions that the main module may not have, or not any more."""
        self._named.update(things)

    def use(self) -> None:
        """Resolve names in this process by these classes from now on."""
        global _current
        _current = self


_own = ProgramClasses(_PROCESS, {}, {}, {})
_current = _own


def use_own_classes() -> None:
    """Resolve names in this process by its own main module, as drivers do."""
    _own.use()


def find_object(path: str) -> Any:
    """Return the program's class or function of a name; None if there is none."""
    return _current.find(path)


def find_class(module: str, name: str) -> Any:
    """Return the program's class that an earlier release wrote by value, with the last part of its name only."""
    return _current.find_unqualified(module, name)


def program_object(path: str) -> Any:
    """Return the program's class or function of a name. Pickles refer to this function by its module: never move it.

    Raises:
        MissingClassError: There is none.
    """
    found = _current.find(path)
    if found is None:
        module, _, name = path.partition(":")
        where = "the main module" if module == _MAIN else f"module {module!r}"
        raise MissingClassError(
            f"A value was written with {name!r} of {where}, and {_current.why_missing(path)}. Define or import it there"
            " under this name, or read the value's bytes with SavepointReader.read_keyed_state()."
        )
    return found


def reduce_by_name(thing: Any) -> tuple[Any, ...] | None:
    """Return how a class or function of the program is pickled by name; None for all others."""
    path = _current.path_of(thing)
    return None if path is None else (program_object, (path,))


def is_of_program(cls: type) -> bool:
    """Return whether a class is pickled by name."""
    return _current.path_of(cls) is not None


# Classes without a name of their own are still pickled by value, to be rebuilt by these two functions. Earlier releases
# wrote all classes so, with the functions of cloudpickle: `DurableUnpickler` finds them by that.


def make_class(*arguments: Any) -> Any:
    return by_value._make_skeleton_class(*arguments)


def make_enum(*arguments: Any) -> Any:
    return by_value._make_skeleton_enum(*arguments)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Keep the file of a function, which cloudpickle 3.1.3 replaces: tracebacks show it, and the source in it."""
    make, arguments = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    if make is CodeType and isinstance(arguments[_FILENAME], str):
        arguments = (*arguments[:_FILENAME], code.co_filename, *arguments[_FILENAME + 1 :])
    return make, arguments


class FunctionPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles functions and classes by value, and keeps the files and lines of their tracebacks."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table)


class DurablePickler(FunctionPickler):
    """Pickles what another process of the program reads: its classes and functions by name."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _NAMED):
            by_name = reduce_by_name(obj)
            if by_name is not None:
                return by_name
        reduced = super().reducer_override(obj)
        if type(reduced) is tuple and reduced[0] in _MAKERS:
            return (_MAKERS[reduced[0]], *reduced[1:])
        return reduced


_MAKERS: Final = {by_value._make_skeleton_class: make_class, by_value._make_skeleton_enum: make_enum}


def pickle_program(value: Any) -> bytes:
    """Pickle functions for workers with the classes of the program; `unpickle_program` reads it."""
    buffer = io.BytesIO()
    pickler = _ProgramPickler(buffer)
    pickler.dump((value, _Classes()))
    _own.add(pickler.shipped())
    return buffer.getvalue()


def unpickle_program(data: bytes) -> tuple[Any, ProgramClasses]:
    """Return the value and the classes of a program; `ProgramClasses.use` makes them known to what reads state."""
    value, classes = pickle.loads(data)  # noqa: S301 - the job's own program
    return value, classes


class _Classes:
    """Stands at the end of a pickle for what was pickled by value before."""


class _ProgramPickler(FunctionPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._found: dict[str, list[Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Classes):
            shipped = self.shipped()
            return ProgramClasses, (_PROCESS, shipped, *_pack_others(shipped))
        reduced = super().reducer_override(obj)
        if type(reduced) is tuple and len(reduced) > 2 and isinstance(obj, _NAMED):
            path = _path_of(obj)
            if path is not None:
                self._found.setdefault(path, []).append(obj)
        return reduced

    def shipped(self) -> dict[str, Any]:
        """Return what was pickled by value and has a name of its own."""
        named = {}
        for path, things in self._found.items():
            of_main = _in_main(path)
            candidates = [thing for thing in things if of_main is None or thing is of_main]
            if len(candidates) == 1:
                [named[path]] = candidates
        return named


class _TooLargeError(Exception):
    pass


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _LARGEST:
            raise _TooLargeError
        return super().write(data)


class _ClassPickler(FunctionPickler):
    """Gives up where a method refers to much data, before it is copied."""

    def reducer_override(self, obj: Any) -> Any:
        size = getattr(obj, "nbytes", 0) if hasattr(type(obj), "nbytes") else 0
        if isinstance(size, int) and size > _LARGEST:
            raise _TooLargeError
        return super().reducer_override(obj)


def _pack_others(shipped: Mapping[str, Any]) -> tuple[dict[str, bytes | str], dict[str, str]]:
    """Return the classes of the main module that the job does not refer to: values in state may be of them."""
    packed: dict[str, bytes | str] = {}
    unusable = {}
    for path, cls in _classes_of_main():
        own = f"{cls.__module__}:{cls.__qualname__}"
        if path != own:
            packed[path] = own
        if own in shipped or own in packed or _is_importable(cls):
            continue
        content = _Limited()
        try:
            _ClassPickler(content).dump(cls)
        except _TooLargeError:
            unusable[own] = f"with what its methods refer to, it has more than {_LARGEST} bytes"
        except Exception as error:  # noqa: BLE001 - pickling a user's class may raise anything
            unusable[own] = f"{type(error).__name__}: {error!s:.200}"
        else:
            packed[own] = content.getvalue()
    return packed, unusable


def _is_importable(cls: type) -> bool:
    found: Any = None if cls.__module__ == _MAIN else sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls


def _classes_of_main() -> Iterator[tuple[str, type]]:
    """Yield the classes in the main module, also imported ones, with those nested in them."""
    for name, thing in list(vars(sys.modules[_MAIN]).items()):
        if isinstance(thing, type) and not name.startswith("__"):
            yield f"{_MAIN}:{name}", thing
            if thing.__module__ == _MAIN:
                yield from _nested(f"{_MAIN}:{name}", thing)


def _nested(path: str, cls: type) -> Iterator[tuple[str, type]]:
    for name, thing in list(vars(cls).items()):
        # A class may also be only mentioned in another one: an attribute that is its own class, or one from elsewhere.
        if isinstance(thing, type) and thing.__qualname__ == f"{cls.__qualname__}.{name}":
            yield f"{path}.{name}", thing
            yield from _nested(f"{path}.{name}", thing)


def _in_main(path: str) -> Any:
    module, _, name = path.partition(":")
    if module != _MAIN:
        return None
    found: Any = sys.modules[_MAIN]
    with suppress(AttributeError):
        for part in name.split("."):
            found = getattr(found, part)
        return found if isinstance(found, _NAMED) else None
    return None


def _path_of(thing: Any) -> str | None:
    """Return the name of a class, or of a function that is not made anew whenever another one is called."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    return None if "<" in name and not isinstance(thing, type) else f"{module}:{name}"


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def current_module(module: str) -> str:
    """Return the present name of a module that durable data names."""
    return FORMER_MODULES.get(module, module)


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
