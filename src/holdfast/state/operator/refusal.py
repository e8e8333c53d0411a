"""What is said of a value that operator state does not take: which state of which operator, which value, and why."""

from __future__ import annotations

from typing import Any

from holdfast.errors import OutputTypeError, StateError
from holdfast.state.declaration.descriptor import StateDescriptor
from holdfast.state.layout.value_codec import ValueCodec
from holdfast.types.key.abstract_key_codec import KeyCodec


class Gate:
    """Takes values and keys into one operator state.

    Args:
        uid: Of the operator.
        kind: What the state is called in errors.
        descriptor: Of the state.
    """

    def __init__(self, uid: str, kind: str, descriptor: StateDescriptor[Any]) -> None:
        self._uid = uid
        self._declared = descriptor.type_info.ddl
        self.name = f"{kind} state {descriptor.name!r} of operator {uid!r}"

    def called(self) -> str:
        """How the state is called in errors."""
        return self.name

    def value(self, codec: ValueCodec, value: Any) -> Any:
        """Return a value as it is stored.

        Raises:
            OutputTypeError: It is not of the declared type.
        """
        try:
            return codec.adopt(value)
        except StateError:
            raise
        except Exception as error:
            raise self._refused(value, error, self._declared) from error

    def key(self, codec: KeyCodec, key: Any) -> Any:
        """Return the key of an entry as it is stored.

        Raises:
            StateError: It is None.
            OutputTypeError: It is not of the declared type.
        """
        if key is None:
            raise StateError(f"None is no key of {self.name}.")
        try:
            return codec.dict_key(key)
        except Exception as error:
            raise self._refused(key, error, str(codec.to_json())) from error

    def _refused(self, value: Any, error: Exception, declared: str) -> OutputTypeError:
        return OutputTypeError(self._uid, f"{self.name}: {value!r:.200} is refused: {error}", declared=declared)
