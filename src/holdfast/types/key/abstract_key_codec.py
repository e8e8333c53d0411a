"""What every codec of keys can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED: Final = 42
"""Of the hash of a key's first column."""


class KeyCodec(ABC):
    """Converts keys between columns, dict keys, files and what users see."""

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """The Arrow type of the key column in files."""

    @abstractmethod
    def dict_keys(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Convert the key columns of a batch to dict keys.

        Raises:
            NullKeyError: A key is null as a whole.
        """

    def telling_column(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the keys of a batch as files have them, if Arrow finds just those equal there that are the same key.

        Returns:
            None if it does not, or if there are nulls.
        """
        return None

    def telling_stored(self, stored: pa.Array) -> pa.Array | None:
        """Return keys as files have them if Arrow finds just those equal that are the same key, None if it does not."""
        return self.telling_column([stored])

    @abstractmethod
    def storage_array(self, dict_keys: Sequence[Any]) -> pa.Array:
        """Convert dict keys to the key column of a file."""

    @abstractmethod
    def from_storage(self, array: pa.Array) -> list[Any]:
        """Convert the key column of a file to dict keys."""

    @abstractmethod
    def user_key(self, dict_key: Any) -> Any:
        """Return the key as a user's function sees it."""

    @abstractmethod
    def dict_key(self, user_value: Any) -> Any:
        """Return the dict key of what a user gives as a key.

        Raises:
            NullKeyError: It is None.
            OutputTypeError: It is not of the declared type, or of no class that keys may have.
        """

    @abstractmethod
    def canonical_bytes(self, dict_key: Any) -> bytes:
        """Return bytes, one to one with the key; keys of equal hash are sorted by them."""

    @abstractmethod
    def hash(self, dict_key: Any, seed: int = SEED) -> int:
        """Return the hash as an unsigned number of 64 bits."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return a JSON value from which `codec_from_json` makes this codec again."""

    def hashes(self, dict_keys: Sequence[Any]) -> npt.NDArray[np.uint64]:
        """Return the hash of each key."""
        of = self.hash
        return np.fromiter((of(key) for key in dict_keys), np.uint64, len(dict_keys))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyCodec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))
