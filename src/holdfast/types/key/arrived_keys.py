"""The keys of a batch in the column in which they arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import pyarrow as pa

from holdfast.types.key.abstract_key_codec import KeyCodec


class ArrivedKeys(Sequence[Any]):
    """Dict keys that are made of their column when somebody asks for one: most batches have none that are new.

    Args:
        codec: Of the keys.
        stored: The keys as files have them; equal ones are equal there, and none is null.
        make: Makes the dict keys, where that is less work than to read them from files; None for `from_storage`.
    """

    def __init__(self, codec: KeyCodec, stored: pa.Array, make: Callable[[], list[Any]] | None = None) -> None:
        self._codec = codec
        self._make = make
        self.stored = stored

    @cached_property
    def _dict_keys(self) -> list[Any]:
        return self._codec.from_storage(self.stored) if self._make is None else self._make()

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        return self._dict_keys[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict_keys)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ArrivedKeys):
            return bool(self.stored.equals(other.stored))
        return isinstance(other, Sequence) and self._dict_keys == list(other)

    __hash__ = None  # type: ignore[assignment]
