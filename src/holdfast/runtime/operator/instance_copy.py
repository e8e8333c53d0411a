"""The copy of an opened function on which one task runs: all that it holds is copied with it, and knows the copy.

`copy.deepcopy` alone is not enough. It leaves functions as they are, so a closure over `self` made in `open` would work
on another object than the one that runs; and a single lock anywhere makes it give up. Here

- one memo serves all fields, and the function stands in it first: a bound method, a partial or a helper that points
  back to the function points to its copy;
- a function made inside another one is copied with what it closes over and its defaults;
- what cannot be copied is shared by the copies. So is an object that holds such a thing, as a whole: half a client is
  none. Unless it leads to the function, to state or to the runtime context: then its other fields are copied.
"""

from __future__ import annotations

import copy
import copyreg
import pickle
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

from holdfast.runtime.function.user_function import RuntimeContext
from holdfast.state.declaration.api import State

_CANNOT_BE_COPIED: Final = (TypeError, copy.Error, pickle.PicklingError, NotImplementedError)
_ATOMIC: Final = frozenset(
    {
        *(type(None), type(...), type(NotImplemented), bool, int, float, complex, bytes, str, range, slice, type),
        *(types.CodeType, types.ModuleType, property),
    }
)
_PROXIES: Final = (weakref.ProxyType, weakref.CallableProxyType)


def copied_function(function: Any, memo: dict[Any, Any]) -> Any:
    """Copy an opened function object.

    A plain function, a bound method, a class and a partial are returned as they are: nothing opens them.

    Args:
        function: The object.
        memo: As for `copy.deepcopy`; what state handles and contexts are bound to stands in it.
    """
    if not hasattr(function, "__dict__") or isinstance(function, type) or hasattr(function, "__code__"):
        return function
    if "__deepcopy__" in dir(type(function)):
        return copy.deepcopy(function, memo)
    fresh = copy.copy(function)
    copier = _Copier(function, fresh, memo)
    for name, value in vars(function).items():
        fresh.__dict__[name] = copier.copied(value)
    return fresh


class _Copier:
    """Copies what a function holds, each thing once."""

    def __init__(self, function: Any, fresh: Any, memo: dict[Any, Any]) -> None:
        self._function = function
        self._memo = memo
        # What was copied, in order. It also keeps temporary objects alive, so that no id stands for two things.
        self._originals: list[Any] = []
        self._shared = 0
        self._bound = 0
        self._memo[id(function)] = fresh

    def copied(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMIC or isinstance(value, type):
            return value
        by_kind = _BY_KIND.get(kind)
        if by_kind is None and (value is self._function or isinstance(value, State | RuntimeContext)):
            self._bound += 1
        if id(value) in self._memo:
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
        """A tuple or a set; a tuple that holds itself was made on the way."""
        items = [self.copied(item) for item in value]
        if id(value) in self._memo:
            return self._memo[id(value)]
        is_same = type(value) is not set and all(old is new for old, new in zip(value, items, strict=True))
        return self._remember(value, value if is_same else type(value)(items))

    def _method(self, value: types.MethodType) -> Any:
        return self._remember(value, types.MethodType(value.__func__, self.copied(value.__self__)))

    def _builtin(self, value: Any) -> Any:
        """A function of a module, or the method of a built-in object such as `list.append`."""
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType | type):
            return value
        made = self.copied(owner)
        return value if made is owner else self._remember(value, getattr(made, value.__name__))

    def _closure(self, value: types.FunctionType) -> Any:
        if "<locals>" not in value.__qualname__ and "<lambda>" not in value.__qualname__:
            return value
        if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__):
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
        except ValueError:  # A variable that was not assigned yet.
            return
        new.cell_contents = self.copied(content)

    def _weak(self, value: Any) -> Any:
        """Only one to the function itself follows: whether anything else keeps its target alive is not known."""
        if value() is not self._function:
            return value
        return weakref.ref(self.copied(self._function))

    def _object(self, value: Any) -> Any:
        mark, shared, bound = len(self._originals), self._shared, self._bound
        try:
            hook = getattr(value, "__deepcopy__", None)
            made = self._remember(value, hook(self._memo)) if hook is not None else self._rebuilt(value)
        except _CANNOT_BE_COPIED:
            self._shared += 1
            return self._share(value, mark)
        if self._shared > shared and self._bound == bound:
            return self._share(value, mark)
        return made

    def _share(self, value: Any, mark: int) -> Any:
        """Share an object, and with it all that was met in it: who else holds a part of it holds the same part."""
        for original in self._originals[mark:]:
            self._memo[id(original)] = original
        return self._remember(value, value)

    def _rebuilt(self, value: Any) -> Any:
        """What pickling would make of the parts of an object; the parts may be shared."""
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
    weakref.ref: _Copier._weak,
    **dict.fromkeys(_PROXIES, lambda _, value: value),
}
