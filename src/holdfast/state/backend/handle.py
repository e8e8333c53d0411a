"""What all handles of keyed state have in common: they belong to a backend, and move to another one when copied."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NoReturn, Protocol

from holdfast.errors import OutputTypeError, StateError, UserFunctionError
from holdfast.state.declaration.api import State
from holdfast.state.declaration.descriptor import StateDescriptor

BACKEND_MEMO_KEY: Final = "holdfast.backend"
"""Key in the memo of `copy.deepcopy` under which the backend stands that copied handles are to work on."""


class HandleOwner(Protocol):
    """What a handle needs of the backend that it belongs to.

    Attributes:
        operator_identifier: Uid of the operator.
    """

    operator_identifier: str

    def get_current_key(self) -> Any:
        """Return the current key as a user has it."""

    def bind(self, handle: StateHandle) -> StateHandle:
        """Return this backend's handle of the state of another backend's handle."""


class StateHandle(State):
    """A handle of keyed state that works on the current key of its backend.

    A user function is opened once in a process, and each task runs on a copy of it. A deep copy whose memo has a
    backend under `BACKEND_MEMO_KEY` gets that backend's handle of the same state.

    Attributes:
        backend: The backend.
        descriptor: Of the state.
        namespace_serializer: Of the namespaces; None for state without.
        user_functions: Names of the fields that hold functions of the user.
    """

    user_functions: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, backend: HandleOwner, descriptor: StateDescriptor[Any], namespace_serializer: Any = None
    ) -> None:
        self.backend = backend
        self.descriptor = descriptor
        self.namespace_serializer = namespace_serializer

    def get_current_namespace(self) -> Any:
        """Return the current namespace; None for state without."""
        return None

    def set_current_namespace(self, namespace: Any) -> None:
        """Work on another namespace of the current key.

        Raises:
            StateError: The state has no namespaces.
        """
        raise StateError(f"State {self.descriptor.name!r} is not in namespaces.")

    def refusal(self, value: Any, error: Exception) -> Exception:
        """Return the error for a value that cannot be written, with the names of state and key."""
        if isinstance(error, UserFunctionError | StateError):
            return error
        name, key, uid = self.descriptor.name, self.backend.get_current_key(), self.backend.operator_identifier
        return OutputTypeError(
            uid,
            f"State {name!r} of operator {uid!r}, key {key!r}: {value!r:.200} cannot be written: {error}",
            declared=str(self.descriptor.type_info),
        )

    def __deepcopy__(self, memo: dict[Any, Any]) -> StateHandle:
        backend: HandleOwner | None = memo.get(BACKEND_MEMO_KEY)
        return self if backend is None else backend.bind(self)

    def __copy__(self) -> StateHandle:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise StateError(
            f"The handle of state {self.descriptor.name!r} cannot be pickled: it belongs to one task. Ask for it in "
            "open(), which runs where the state is."
        )

    def __repr__(self) -> str:
        return f"<{self.descriptor.kind.value} state {self.descriptor.name!r}>"
