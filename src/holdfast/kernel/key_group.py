"""Key groups: the units in which keyed state is distributed over subtasks.

The key group comes from the high bits of the key's 64-bit hash. So data sorted by unsigned hash is sorted by key group
as well, and a range of key groups is one contiguous range of hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from holdfast.errors import ConfigurationError

UPPER_BOUND_MAX_PARALLELISM: Final = 1 << 15
DEFAULT_LOWER_BOUND_MAX_PARALLELISM: Final = 1 << 7
MAX_PARALLELISM: Final = UPPER_BOUND_MAX_PARALLELISM
AUTO_PARALLELISM: Final = (1 << 31) - 1
"""The parallelism that means "as high as possible", as in Flink."""


@dataclass(frozen=True, slots=True, init=False)
class KeyGroupRange:
    """A contiguous range of key groups, both ends included. Every empty range equals `EMPTY`.

    Attributes:
        start: First key group, 0 if empty.
        end: Last key group, -1 if empty.
    """

    start: int
    end: int

    EMPTY: ClassVar[KeyGroupRange]

    def __init__(self, start: int, end: int) -> None:
        if start > end:
            start, end = 0, -1
        elif start < 0:
            raise ConfigurationError(f"A range of key groups starts at 0 or above, not at {start!r}.")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "end", end)

    @classmethod
    def of(cls, start: int, end: int) -> KeyGroupRange:
        """Return the range from `start` to `end`, both included, or `EMPTY` if `start` is above `end`."""
        return cls(start, end)

    def contains(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    __contains__ = contains

    @property
    def size(self) -> int:
        """Number of key groups."""
        return self.end - self.start + 1

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups that are in both ranges."""
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __bool__(self) -> bool:
        return self.end >= self.start

    def __reduce__(self) -> tuple[type[KeyGroupRange], tuple[int, int]]:
        return KeyGroupRange, (self.start, self.end)


KeyGroupRange.EMPTY = KeyGroupRange(0, -1)


def key_group_of(hash64: int, max_parallelism: int) -> int:
    """Return the key group of a signed or unsigned key hash."""
    return (((hash64 & 0xFFFF_FFFF_FFFF_FFFF) >> 32) * max_parallelism) >> 32


def key_groups_of(hashes: npt.NDArray[np.uint64], max_parallelism: int) -> npt.NDArray[np.int32]:
    groups = (hashes >> np.uint64(32)) * np.uint64(max_parallelism) >> np.uint64(32)
    return groups.astype(np.int32)


def subtask_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    return key_group * parallelism // max_parallelism


def range_of(subtask: int, max_parallelism: int, parallelism: int) -> KeyGroupRange:
    """Return the key groups that a subtask owns.

    Raises:
        ConfigurationError: Parallelism or max parallelism is out of bounds, or there is no such subtask.
    """
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ConfigurationError(f"Subtask must be in 0..{parallelism - 1}, not {subtask!r}.")
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def default_max_parallelism(parallelism: int) -> int:
    """Return 1.5 times the parallelism, rounded up to a power of two, and at least 128."""
    if parallelism == AUTO_PARALLELISM:
        return UPPER_BOUND_MAX_PARALLELISM
    _check_bounds("Parallelism", parallelism)
    wanted = parallelism + parallelism // 2
    rounded = 1 << (wanted - 1).bit_length()
    return min(max(rounded, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def hash_range(key_groups: KeyGroupRange, max_parallelism: int) -> tuple[int, int]:
    """Return the least and the greatest unsigned hash of a range of key groups, both included.

    Raises:
        ConfigurationError: The range is empty or reaches beyond max parallelism.
    """
    if not key_groups or key_groups.end >= max_parallelism:
        raise ConfigurationError(f"{key_groups!r} has no hashes at max parallelism {max_parallelism}.")
    # The least x with x * max_parallelism >> 32 >= group is ceil(group * 2**32 / max_parallelism).
    low = -(-(key_groups.start << 32) // max_parallelism)
    above = -(-((key_groups.end + 1) << 32) // max_parallelism)
    return low << 32, (above << 32) - 1


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Check both numbers against their bounds and each other.

    Raises:
        ConfigurationError: A number is not within 1 to 32768, or parallelism is above max parallelism.
    """
    _check_bounds("Parallelism", parallelism)
    _check_bounds("Max parallelism", max_parallelism)
    if parallelism > max_parallelism:
        raise ConfigurationError(
            f"Parallelism {parallelism} is above max parallelism {max_parallelism}, which is fixed for the life of the "
            f"state. Use at most {max_parallelism}, or start without the state and a higher max parallelism."
        )


def _check_bounds(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= UPPER_BOUND_MAX_PARALLELISM:
        raise ConfigurationError(
            f"{what} must be a whole number from 1 to {UPPER_BOUND_MAX_PARALLELISM}, not {value!r}."
        )


class KeyGroupRangeAssignment:
    """The functions of this module under Flink's names."""

    UPPER_BOUND_MAX_PARALLELISM: Final = UPPER_BOUND_MAX_PARALLELISM
    DEFAULT_LOWER_BOUND_MAX_PARALLELISM: Final = DEFAULT_LOWER_BOUND_MAX_PARALLELISM

    @staticmethod
    def compute_key_group_for_key_hash(key_hash: int, max_parallelism: int) -> int:
        """Return the key group of a 64-bit key hash."""
        return key_group_of(key_hash, max_parallelism)

    @staticmethod
    def compute_operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group_id: int) -> int:
        """Return the subtask that owns a key group."""
        return subtask_of(key_group_id, max_parallelism, parallelism)

    @staticmethod
    def compute_key_group_range_for_operator_index(
        max_parallelism: int, parallelism: int, operator_index: int
    ) -> KeyGroupRange:
        """Return the key groups that a subtask owns."""
        return range_of(operator_index, max_parallelism, parallelism)

    @staticmethod
    def compute_default_max_parallelism(operator_parallelism: int) -> int:
        """Return the max parallelism of an operator for which none was set."""
        return default_max_parallelism(operator_parallelism)

    @staticmethod
    def check_parallelism_preconditions(parallelism: int) -> None:
        """Check a parallelism against its bounds."""
        _check_bounds("Parallelism", parallelism)
