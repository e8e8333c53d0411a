"""What PyFlink programs say of slots: kept, without effect, because resources are those of Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any, ClassVar

__all__ = ["MemorySize", "SlotSharingGroup"]


@total_ordering
@dataclass(frozen=True)
class SlotMemory:
    """A number of bytes."""

    bytes_size: int

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> SlotMemory:
        """So many times 1024 * 1024 bytes."""
        return SlotMemory(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """The number."""
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        """Whole units of 1024 bytes."""
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        """Whole units of 1024 * 1024 bytes."""
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        """Whole units of 1024 ** 3 bytes."""
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        """Whole units of 1024 ** 4 bytes."""
        return self.bytes_size >> 40

    def __lt__(self, other: Any) -> bool:
        return self.bytes_size < other.bytes_size if isinstance(other, SlotMemory) else NotImplemented

    def __str__(self) -> str:
        return f"{self.bytes_size} bytes"


MemorySize = SlotMemory


@dataclass(frozen=True)
class SlotSharingGroup:
    """A name, and what tasks of this group were to have in Flink; set `spark.executor.*` for what they have here."""

    Builder: ClassVar[Callable[[str], SlotSharingGroupBuilder]]
    """PyFlink's name of the builder's class."""

    name: str
    cpu_cores: float | None = None
    task_heap_memory: SlotMemory | None = None
    task_off_heap_memory: SlotMemory | None = None
    managed_memory: SlotMemory | None = None
    external_resources: dict[str, float] = field(default_factory=dict, hash=False)

    @staticmethod
    def builder(name: str) -> SlotSharingGroupBuilder:
        """A builder of a group."""
        return SlotSharingGroupBuilder(SlotSharingGroup(name))

    def get_name(self) -> str:
        """The name."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """Cores, if they were set."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> SlotMemory | None:
        """Heap, if it was set."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> SlotMemory | None:
        """Memory outside of the heap, if it was set."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> SlotMemory | None:
        """Managed memory, if it was set."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """What else was set, by name."""
        return dict(self.external_resources)


class SlotSharingGroupBuilder:
    """Builds a `SlotSharingGroup`."""

    def __init__(self, group: SlotSharingGroup) -> None:
        self._group = group

    def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroupBuilder:
        """Set the number of cores."""
        return self._with(cpu_cores=cpu_cores)

    def set_task_heap_memory(self, task_heap_memory: SlotMemory) -> SlotSharingGroupBuilder:
        """Set the heap."""
        return self._with(task_heap_memory=task_heap_memory)

    def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the heap, in units of 1024 * 1024 bytes."""
        return self._with(task_heap_memory=SlotMemory.of_mebi_bytes(task_heap_memory_mb))

    def set_task_off_heap_memory(self, task_off_heap_memory: SlotMemory) -> SlotSharingGroupBuilder:
        """Set the memory outside of the heap."""
        return self._with(task_off_heap_memory=task_off_heap_memory)

    def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the memory outside of the heap, in units of 1024 * 1024 bytes."""
        return self._with(task_off_heap_memory=SlotMemory.of_mebi_bytes(task_off_heap_memory_mb))

    def set_managed_memory(self, managed_memory: SlotMemory) -> SlotSharingGroupBuilder:
        """Set the managed memory."""
        return self._with(managed_memory=managed_memory)

    def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the managed memory, in units of 1024 * 1024 bytes."""
        return self._with(managed_memory=SlotMemory.of_mebi_bytes(managed_memory_mb))

    def set_external_resource(self, name: str, value: float) -> SlotSharingGroupBuilder:
        """Set something else by name."""
        return self._with(external_resources={**self._group.external_resources, name: value})

    def build(self) -> SlotSharingGroup:
        """The group."""
        return self._group

    def _with(self, **values: Any) -> SlotSharingGroupBuilder:
        self._group = replace(self._group, **values)
        return self


SlotSharingGroup.Builder = SlotSharingGroup.builder
