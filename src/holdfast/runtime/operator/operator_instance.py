"""User functions that are opened once in a process, and the copies of them on which tasks run.

Opening may be expensive (a model, a connection), so it happens once per worker process and job attempt. A failed
attempt must leave nothing behind in the instance, so each task runs on a copy (`OperatorInstance.bind`). State handles
and the runtime context are bound to the task during the copy: they find it in the memo.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import pickle
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from operator import length_hint
from typing import Any, Final, NoReturn

from holdfast.errors import ConfigurationError, HoldfastError, UserFunctionError
from holdfast.kernel import debugger
from holdfast.kernel.failure_text import ends_in_holdfast, is_of_holdfast, one_line, short_repr, user_traceback
from holdfast.kernel.secret import get_logger
from holdfast.runtime.function.metric import TASK_METRICS
from holdfast.runtime.function.user_function import KeySelector, RuntimeContext
from holdfast.runtime.graph.stream_graph import OperatorSpec
from holdfast.runtime.operator.context import BACKEND, CONTEXT, SubtaskContext, SubtaskInfo
from holdfast.state.api import State
from holdfast.state.backend import AbstractKeyedStateBackend, StateHandle

_CANNOT_BE_COPIED: Final = (TypeError, copy.Error, pickle.PicklingError, NotImplementedError)
_ATOMIC: Final = frozenset(
    {
        *(type(None), type(...), type(NotImplemented), bool, int, float, complex, bytes, str, range, slice),
        *(types.CodeType, types.ModuleType, property),
    }
)
_PROXIES: Final = (weakref.ProxyType, weakref.CallableProxyType)
_TRANSPARENT: Final = frozenset(
    {list, tuple, dict, types.CellType, types.MethodType, staticmethod, classmethod, property, functools.partial}
)
"""Kinds of objects whose references are followed to find out whether an object leads to the function."""
logger = get_logger(__name__)
_GAUGES = "_holdfast_gauges"
_WRONG_CODE: Final = (NameError, TypeError)
"""Errors of Python that the same function raises again for the same element."""
_FIRST = {
    "map": "map",
    "flat_map": "flat_map",
    "filter": "filter",
    "process": "process_element",
    "reduce": "reduce",
    "batches": "process_batch",
    "groups": "process_group",
    "async": "invoke_all",
    "window": "evaluate",
    "panes": "results",
}
_OF_TWO = {
    "map": ("map1", "map2"),
    "flat_map": ("flat_map1", "flat_map2"),
    "process": ("process_element1", "process_element2"),
}


def copy_function(function: Any, memo: dict[Any, Any]) -> Any:
    """Copy an opened function object, with all that it references.

    A plain function, a bound method, a class and a partial are returned as they are: nothing opens them.

    Args:
        function: The object.
        memo: As for `copy.deepcopy`; has the objects to which state handles and contexts are bound.
    """
    slots = _slots(function)
    if not (slots or hasattr(function, "__dict__")) or isinstance(function, type) or hasattr(function, "__code__"):
        return function
    if "__deepcopy__" in dir(type(function)):
        return copy.deepcopy(function, memo)
    fresh = copy.copy(function)
    copier = _Copier(function, fresh, memo)
    for name, value in getattr(function, "__dict__", {}).items():
        fresh.__dict__[name] = copier.copied(value)
    for name in slots:
        object.__setattr__(fresh, name, copier.copied(getattr(function, name)))
    return fresh


def _slots(function: Any) -> list[str]:
    """Return the names of its fields in slots; none for a partial, whose fields are in C."""
    declared = (vars(kind).get("__slots__", ()) for kind in type(function).__mro__)
    if not any(declared):
        return []
    names: list[str] = copyreg._slotnames(type(function))  # type: ignore[attr-defined]
    return [name for name in names if hasattr(function, name)]


class _Copier:
    """Copies what a function references, each object once.

    `copy.deepcopy` alone is not enough. It does not copy functions, so a closure over `self` made in `open` would work
    on another object than the one that runs; and a single lock anywhere makes it fail. Here

    - one memo serves all fields, and the function is in it first: a bound method, a partial or a helper that references
      the function references its copy;
    - a function made inside another one is copied with its closure and defaults, also through decorators. A cache
      (`functools.lru_cache`) of a function that leads to the user function is copied, too, and begins empty;
    - weak references to the function reference the copy; functions of reducing and aggregating state are copied, too;
    - what cannot be copied is shared by the copies, with the object that holds it, as half a client is none. If that
      object leads to the function, to state or to the runtime context, its other fields are copied;
    - a generator that leads there, and a class made in `open` whose methods do, are rejected: they would silently work
      on another object than the one that runs.
    """

    def __init__(self, function: Any, fresh: Any, memo: dict[Any, Any]) -> None:
        self._function = function
        self._memo = memo
        # Originals in the order of copying. The list also keeps temporary objects alive, so that ids stay unique.
        self._originals: list[Any] = []
        self._shared = 0
        self._bound = 0
        self._met = 0
        self._looked_at: set[type] = set()
        self._memo[id(function)] = fresh

    def copied(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMIC:
            return value
        if isinstance(value, type):
            self._require_apart(value)
            return value
        by_kind = _BY_KIND.get(kind)
        if by_kind is None and (value is self._function or isinstance(value, State | RuntimeContext)):
            self._bound += 1
        if id(value) in self._memo:
            self._met += self._memo[id(value)] is not value
            return self._memo[id(value)]
        return self._object(value) if by_kind is None else by_kind(self, value)

    def _remember(self, value: Any, made: Any) -> Any:
        self._memo[id(value)] = made
        self._originals.append(value)
        return made

    def _list(self, value: list[Any]) -> list[Any]:
        made: list[Any] = self._remember(value, [])
        made.extend([item if type(item) in _ATOMIC else self.copied(item) for item in value])
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = self._remember(value, {})
        for key, item in value.items():
            made[self.copied(key)] = self.copied(item)
        return made

    def _frozen(self, value: Any) -> Any:
        """Copy a tuple or a set; a tuple that contains itself was copied on the way."""
        items = [self.copied(item) for item in value]
        if id(value) in self._memo:
            return self._memo[id(value)]
        is_same = type(value) is not set and all(old is new for old, new in zip(value, items, strict=True))
        return self._remember(value, value if is_same else type(value)(items))

    def _method(self, value: types.MethodType) -> Any:
        return self._remember(value, types.MethodType(value.__func__, self.copied(value.__self__)))

    def _builtin(self, value: Any) -> Any:
        """Copy a function of a module, or the method of a built-in object such as `list.append`."""
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType | type):
            return value
        made = self.copied(owner)
        return value if made is owner else self._remember(value, getattr(made, value.__name__))

    def _closure(self, value: types.FunctionType) -> Any:
        if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__):
            return value
        if _is_of_a_module(value):
            return value
        cells = tuple(types.CellType() for _ in value.__closure__ or ())
        made = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, closure=cells if value.__closure__ else None
        )
        self._remember(value, made)
        for name in ("__qualname__", "__doc__", "__module__", "__annotations__"):
            setattr(made, name, getattr(value, name))
        made.__defaults__ = self.copied(value.__defaults__)
        made.__kwdefaults__ = self.copied(value.__kwdefaults__)
        made.__dict__.update(self.copied(value.__dict__))
        for old, new in zip(value.__closure__ or (), cells, strict=True):
            self._cell(old, new)
        return made

    def _cell(self, old: types.CellType, new: types.CellType) -> None:
        try:
            content = old.cell_contents
        except ValueError:  # the variable is not assigned yet
            return
        new.cell_contents = self.copied(content)

    def _cache(self, value: Any) -> Any:
        """Copy a cache if its values may depend on the copy; otherwise share it in the process."""
        mark, bound, met = len(self._originals), self._bound, self._met
        wrapped = self.copied(value.__wrapped__)
        if id(value) in self._memo:  # a function that calls itself through its cache
            return self._memo[id(value)]
        if self._bound == bound and self._met == met:
            return self._share(value, mark)
        made = self._remember(value, functools.lru_cache(**value.cache_parameters())(wrapped))
        made.__dict__.update({name: self.copied(field) for name, field in vars(value).items() if name != "__wrapped__"})
        return made

    def _weak(self, value: Any) -> Any:
        """Copy a reference to the function itself; whether anything else keeps another target alive is unknown."""
        if value() is not self._function:
            return value
        return weakref.ref(self.copied(self._function))

    def _weak_method(self, value: Any) -> Any:
        method = value()
        if method is None or method.__self__ is not self._function:
            return value
        return weakref.WeakMethod(self.copied(method))

    def _proxy(self, value: Any) -> Any:
        if all(value is not reference for reference in weakref.getweakrefs(self._function)):
            return value
        return weakref.proxy(self.copied(self._function))

    def _weak_values(self, value: Any) -> Any:
        made = self._remember(value, type(value)())
        for key, item in list(value.items()):
            made[self.copied(key)] = self._if_function(item)
        return made

    def _weak_keys(self, value: Any) -> Any:
        made = self._remember(value, type(value)())
        for key, item in list(value.items()):
            made[self._if_function(key)] = self.copied(item)
        return made

    def _weak_set(self, value: Any) -> Any:
        return self._remember(value, type(value)([self._if_function(item) for item in value]))

    def _view(self, value: types.MappingProxyType[Any, Any]) -> Any:
        return self._remember(value, types.MappingProxyType(self.copied(gc.get_referents(value)[0])))

    def _if_function(self, value: Any) -> Any:
        return self.copied(value) if value is self._function else value

    def _object(self, value: Any) -> Any:
        mark, shared, bound = len(self._originals), self._shared, self._bound
        self._require_apart(type(value))
        try:
            hook = getattr(value, "__deepcopy__", None)
            made = self._remember(value, hook(self._memo)) if hook is not None else self._rebuilt(value)
        except _CANNOT_BE_COPIED:
            if self._is_led_to(gc.get_referents(value)):
                raise self._refusal(f"a {type(value).__name__}") from None
            self._shared += 1
            return self._share(value, mark)
        if isinstance(value, StateHandle) and made is not value:
            for name in value.user_functions:
                setattr(made, name, self.copied(getattr(value, name)))
        if self._shared > shared and self._bound == bound:
            return self._share(value, mark)
        return made

    def _share(self, value: Any, mark: int) -> Any:
        """Share an object and all that was met in it, so that other references to its parts stay consistent."""
        for original in self._originals[mark:]:
            self._memo[id(original)] = original
        return self._remember(value, value)

    def _require_apart(self, kind: type) -> None:
        """Reject a class that was made in a function and leads to this one: a class cannot be copied."""
        for one in kind.__mro__ if "<locals>" in kind.__qualname__ else ():
            if one not in self._looked_at and "<locals>" in one.__qualname__ and one is not type(self._function):
                self._looked_at.add(one)
                if self._is_led_to(vars(one).values()):
                    raise self._refusal(f"the class {one.__name__!r}")

    def _is_led_to(self, objects: Iterable[Any]) -> bool:
        """Return whether an object is the function, its handle or context, or leads to one by methods or closures."""
        found, left = set[int](), list(objects)
        while left:
            value = left.pop()
            kind = type(value)
            if value is self._function or issubclass(kind, State | RuntimeContext):
                return True
            if id(value) not in found:
                found.add(id(value))
                if kind is types.FunctionType:
                    left += [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
                elif kind in _TRANSPARENT:
                    left += gc.get_referents(value)
        return False

    def _refusal(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"A field of {type(self._function).__name__!r} holds {what} that refers to the function, its state or its "
            "context, and cannot be copied; but each task runs on a copy of the opened function. Create it in the "
            "method that uses it, or pass it what it needs there instead of a reference to 'self'."
        )

    def _rebuilt(self, value: Any) -> Any:
        """Rebuild an object as pickling would, from copies of its parts."""
        reducer = copyreg.dispatch_table.get(type(value))
        reduced: Any = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return value
        make, arguments, state, items, pairs, setter = (*reduced, *[None] * 4)[:6]
        made = self._remember(value, make(*(self.copied(argument) for argument in arguments)))
        if state is not None:
            _set_state(made, self.copied(state), setter)
        for item in items or ():
            made.append(self.copied(item))
        for key, item in pairs or ():
            made[self.copied(key)] = self.copied(item)
        return made


def _is_of_a_module(function: types.FunctionType) -> bool:
    """Return whether its module has it by its name; a function that a decorator made has the name of another one."""
    if "<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__:
        return False
    first, *others = function.__qualname__.split(".")
    for names in (vars(sys.modules.get(function.__module__, types)), function.__globals__):
        found = names.get(first)
        for name in others:
            found = getattr(found, name, None)
        if found is function:
            return True
    return False


def _set_state(made: Any, state: Any, setter: Callable[[Any, Any], None] | None) -> None:
    if setter is not None:
        setter(made, state)
    elif hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        fields, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if fields:
            vars(made).update(fields)
        for name, value in (slots or {}).items():
            setattr(made, name, value)


_BY_KIND: Final[dict[type, Callable[[_Copier, Any], Any]]] = {
    list: _Copier._list,
    dict: _Copier._dict,
    tuple: _Copier._frozen,
    set: _Copier._frozen,
    frozenset: _Copier._frozen,
    types.MethodType: _Copier._method,
    types.BuiltinFunctionType: _Copier._builtin,
    types.FunctionType: _Copier._closure,
    types.MappingProxyType: _Copier._view,
    functools._lru_cache_wrapper: _Copier._cache,
    weakref.ref: _Copier._weak,
    weakref.WeakMethod: _Copier._weak_method,
    weakref.WeakValueDictionary: _Copier._weak_values,
    weakref.WeakKeyDictionary: _Copier._weak_keys,
    weakref.WeakSet: _Copier._weak_set,
    **dict.fromkeys(_PROXIES, _Copier._proxy),
}


def user_error(error: Exception, uid: str, key: Any, epoch: int | None, doing: str) -> UserFunctionError:
    """Return the error for a user function that raised: operator, key and epoch first, the traceback last.

    A debugger that listens gets the error first.
    """
    debugger.post_mortem(error)
    where = "" if key is None else f" for key {short_repr(key)}"
    when = "" if epoch is None else f" in epoch {epoch}"
    local = _locals_of_caller(error)
    wrong = isinstance(error, TypeError) and "emitted" in local and ends_in_holdfast(error)
    reason = _wrong_return(local) if wrong else one_line(error)
    element = _element_of(local)
    return UserFunctionError(
        uid,
        key,
        epoch,
        f"operator {uid!r} failed while {doing}{where}{when}: {reason}",
        details=("" if element is None else f"  element: {element}\n") + user_traceback(error),
        is_final=wrong or _is_final(error),
    )


def _is_final(error: Exception) -> bool:
    """Return whether the function raises the error again for the same element.

    A None may be the answer of a service that was away, and so may be any error that was handled meanwhile.
    """
    return (
        isinstance(error, _WRONG_CODE)
        and "NoneType" not in one_line(error)
        and error.__cause__ is None
        and error.__context__ is None
    )


def _locals_of_caller(error: Exception) -> Mapping[str, Any]:
    """Return the variables of the loop over elements or timers that called the function; empty if there was none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = list(takewhile(lambda frame: is_of_holdfast(frame.f_code), frames))
    loops = [frame.f_locals for frame in ours if not {"element", "source", "emitted"}.isdisjoint(frame.f_locals)]
    return loops[-1] if loops else {}


def _element_of(local: Mapping[str, Any]) -> str | None:
    """Return the element of the loop as a short text; None if it is unknown."""
    if "element" in local:
        return short_repr(local["element"])
    elements = local.get("elements")
    if "source" in local and isinstance(elements, list) and elements:
        return short_repr(elements[len(elements) - length_hint(local["source"]) - 1])
    return None


def _wrong_return(local: Mapping[str, Any]) -> str:
    return (
        f"the function returned {short_repr(local['emitted'])}, which is no collection of elements: write `yield` "
        "in place of `return`, or return a list"
    )


class OpenedFunction:
    """A function object that was opened in this process.

    Args:
        function: The function, which this process alone owns (a deserialized copy).
        context: The context of the subtask that opens it.
        info: That subtask.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, function: Any, context: SubtaskContext, info: SubtaskInfo) -> None:
        self.uid = info.uid
        self._function = function
        opener = getattr(function, "open", None)
        if callable(opener):
            try:
                opener(context)
            except HoldfastError:
                raise
            except Exception as error:
                raise user_error(error, info.uid, None, info.epoch, "opening") from error
            if context.metrics.gauges and hasattr(function, "__dict__"):
                # In the function, so that they are copied for each task and read the fields of its copy.
                vars(function)[_GAUGES] = context.metrics.gauges

    def copied(self, memo: dict[Any, Any]) -> Any:
        """Return a fresh copy of the function for one task; the memo has what handles and contexts are bound to."""
        return copy_function(self._function, memo)

    def close(self) -> None:
        """Close the function. An error is logged, because nothing depends on it any more."""
        closer = getattr(self._function, "close", None)
        if callable(closer):
            try:
                closer()
            except Exception:
                logger.exception("close() of operator %r failed", self.uid)


class OperatorInstance(OpenedFunction):
    """The opened function of one operator in this process.

    Args:
        spec: The operator, whose function this process alone owns (a deserialized copy).
        info: The subtask that opens it.
        backend: An empty backend that creates the handles of `open`; None for operators without keys.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, spec: OperatorSpec, info: SubtaskInfo, backend: AbstractKeyedStateBackend | None) -> None:
        super().__init__(spec.function, SubtaskContext(info, backend), info)
        self.spec = spec

    def bind(
        self, context: SubtaskContext, backend: AbstractKeyedStateBackend | None
    ) -> tuple[Any, Callable[..., Any]]:
        """Return a fresh copy of the function for one task, and the callable that takes its elements."""
        memo = {CONTEXT: context, BACKEND: backend, TASK_METRICS: context.metrics}
        function = self.copied(memo)
        context.metrics.gauges = dict(getattr(function, _GAUGES, {}))
        if self.spec.second_type is not None:
            return function, method_of_input(function, self.spec.shape, 1)
        return function, method_of(function, self.spec.shape)


class OpenedSelector:
    """An opened key selector: a method of a `KeySelector`, or a plain callable.

    Args:
        selector: The selector, which this process alone owns.
        info: The subtask that opens it.

    Raises:
        UserFunctionError: `open` raised.
    """

    def __init__(self, selector: Callable[[Any], Any], info: SubtaskInfo) -> None:
        self._selector = selector
        owner = getattr(selector, "__self__", None)
        self._opened = OpenedFunction(owner, _SelectorContext(info), info) if isinstance(owner, KeySelector) else None

    def bind(self, info: SubtaskInfo) -> Callable[[Any], Any]:
        """Return the key selector of one task: the method of a fresh copy."""
        if self._opened is None:
            return self._selector
        memo = {CONTEXT: _SelectorContext(info), BACKEND: None}
        method: Callable[[Any], Any] = self._opened.copied(memo).get_key
        return method

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _SelectorContext(SubtaskContext):
    """The runtime context of a key selector or partitioner, which has no state and no metrics."""

    def __init__(self, info: SubtaskInfo) -> None:
        super().__init__(info, None)

    def get_metrics_group(self) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} requests metrics, but it has none: count in "
            "the operator before it."
        )

    def _state(self, descriptor: Any) -> NoReturn:
        raise ConfigurationError(
            f"the key selector or partitioner before {self._info.uid!r} requests state {descriptor.get_name()!r}, but "
            "it has none: it must always return the same for the same element."
        )


def method_of(function: Any, shape: str) -> Callable[..., Any]:
    """Return the method of the function object that takes elements, or the plain callable itself.

    Raises:
        ConfigurationError: The object has no such method and is not callable.
    """
    method = getattr(function, _FIRST[shape], None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise ConfigurationError(f"{type(function).__name__!r} is neither callable nor has a method {_FIRST[shape]}()")


def method_of_input(function: Any, shape: str, number: int) -> Callable[..., Any]:
    """Return the method for elements of input 1 or 2 of a function of two; a map that returns None emits nothing."""
    method: Callable[..., Any] = getattr(function, _OF_TWO[shape][number - 1])
    if shape != "map":
        return method

    def one_or_none(value: Any) -> tuple[Any, ...]:
        mapped = method(value)
        return () if mapped is None else (mapped,)

    return one_or_none
