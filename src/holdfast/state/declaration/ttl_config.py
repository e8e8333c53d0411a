"""How long state lives after it was last used: the configuration that a descriptor takes.

Time is the epoch's processing time. Expired state is not seen again (unless asked for) and is removed when it is read
and, a stretch of the loaded keys in turn, when the subtask takes its snapshot; compaction drops the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.option import parse_duration

_LONGEST: Final = 2**63 - 1
"""For ever: stamps in files are whole numbers of 64 bits, and so is a time to live."""


@dataclass(frozen=True)
class CleanupStrategies:
    """What removes expired state besides reading it.

    Attributes:
        in_background: Whether the default clean-up runs: at each snapshot, and in compaction.
        full_snapshot: Whether merges of all runs, which are the full snapshots here, leave expired entries out.
        incremental_size: Entries looked at for each key that an epoch touches; None for a default number a snapshot.
        incremental_for_every_record: Whether records count that touch no state; here every record touches its key.
        compaction_query_entries: Entries after which compaction asks for the time again; None for its default.
    """

    in_background: bool = True
    full_snapshot: bool = False
    incremental_size: int | None = None
    incremental_for_every_record: bool = False
    compaction_query_entries: int | None = None

    def is_cleanup_in_background(self) -> bool:
        """Whether the default clean-up runs."""
        return self.in_background

    def in_full_snapshot(self) -> bool:
        """Whether merges of all runs leave expired entries out."""
        return self.full_snapshot

    @property
    def in_compaction(self) -> bool:
        """Whether compaction drops what has expired: by default, or because a strategy that does was named."""
        return self.in_background or self.full_snapshot or self.compaction_query_entries is not None


@dataclass(frozen=True)
class StateTtlConfig:
    """Time to live of a state; make one with `new_builder(ttl).build()`.

    Attributes:
        ttl: Milliseconds from the last use until the state has expired, the last one included.
        update_type: What counts as a use.
        state_visibility: What a read of expired state returns.
        cleanup_strategies: What removes expired state that nobody reads.
    """

    class UpdateType(Enum):
        """When the time to live starts anew."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether expired state that has not been removed yet is still returned, once."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock that counts; there is only one."""

        ProcessingTime = 0

    DISABLED: ClassVar[StateTtlConfig]

    ttl: int
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup_strategies: CleanupStrategies = CleanupStrategies()

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """Returns a builder with the default settings.

        Args:
            ttl: Milliseconds, a `datetime.timedelta`, text such as ``"10 min"``, or an object with `to_milliseconds()`.

        Raises:
            ConfigurationError: It is no length of time, or not positive.
        """
        return StateTtlConfig.Builder(ttl)

    def is_enabled(self) -> bool:
        """Whether state expires at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def get_ttl(self) -> int:
        """Returns the time to live in milliseconds."""
        return self.ttl

    def get_update_type(self) -> UpdateType:
        """Returns what counts as a use."""
        return self.update_type

    def get_state_visibility(self) -> StateVisibility:
        """Returns what a read of expired state gives."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> TtlTimeCharacteristic:
        """Returns the clock, always processing time."""
        return StateTtlConfig.TtlTimeCharacteristic.ProcessingTime

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Returns what removes expired state that nobody reads."""
        return self.cleanup_strategies

    class Builder:
        """Builds a `StateTtlConfig`; every method but `build` returns the builder."""

        def __init__(self, ttl: Any) -> None:
            self._config = StateTtlConfig(_milliseconds(ttl))

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Sets what counts as a use."""
            return self._with(update_type=update_type)

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Lets writes count as a use; the default."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Lets reads count as a use, too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Sets what a read of expired state gives."""
            return self._with(state_visibility=state_visibility)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Lets the read that removes expired state return it, once."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Hides expired state; the default."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Accepts the one clock that there is."""
            if ttl_time_characteristic is not StateTtlConfig.TtlTimeCharacteristic.ProcessingTime:
                raise ConfigurationError(
                    f"The time to live follows the processing time, not {ttl_time_characteristic!r}."
                )
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Names the one clock that there is."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leaves expired entries out when all runs of a key are merged, which is what a full snapshot is here."""
            return self._cleanup(full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool = False
        ) -> StateTtlConfig.Builder:
            """Looks at so many entries for each key that an epoch touches.

            Raises:
                ConfigurationError: The number is not positive.
            """
            if cleanup_size <= 0:
                raise ConfigurationError(
                    f"Incremental clean-up looks at a positive number of entries, not {cleanup_size!r}."
                )
            return self._cleanup(
                incremental_size=cleanup_size, incremental_for_every_record=run_cleanup_for_every_record
            )

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1000, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Drops expired entries in compaction, whatever the backend.

            Args:
                query_time_after_num_entries: Accepted: a compaction has one time.
                periodic_compaction_time: Accepted: runs are compacted as they become many, whatever their age.
            """
            return self._cleanup(compaction_query_entries=query_time_after_num_entries)

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Removes expired state only when it is read, except by strategies that are named explicitly."""
            return self._cleanup(in_background=False)

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            """Sets the time to live; see `StateTtlConfig.new_builder`."""
            return self._with(ttl=_milliseconds(ttl))

        def build(self) -> StateTtlConfig:
            """Returns the configuration."""
            return self._config

        def _with(self, **changes: Any) -> StateTtlConfig.Builder:
            self._config = replace(self._config, **changes)
            return self

        def _cleanup(self, **changes: Any) -> StateTtlConfig.Builder:
            return self._with(cleanup_strategies=replace(self._config.cleanup_strategies, **changes))


def _milliseconds(ttl: Any) -> int:
    for method in ("to_milliseconds", "to_millis"):
        convert = getattr(ttl, method, None)
        if callable(convert):
            ttl = convert()
            break
    milliseconds = parse_duration(ttl)
    if milliseconds <= 0:
        raise ConfigurationError(f"A time to live is expected to be positive, not {ttl!r}.")
    return min(milliseconds, _LONGEST)


StateTtlConfig.DISABLED = StateTtlConfig(_LONGEST, StateTtlConfig.UpdateType.Disabled)
