"""Slot sharing groups of PyFlink programs: kept without effect, because Spark's executors have the resources."""

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
        """Return a size of so many units of 1024 * 1024 bytes."""
        return SlotMemory(mebi_bytes << 20)

    def get_bytes(self) -> int:
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        return self.bytes_size >> 40

    def __lt__(self, other: Any) -> bool:
        return self.bytes_size < other.bytes_size if isinstance(other, SlotMemory) else NotImplemented

    def __str__(self) -> str:
        return f"{self.bytes_size} bytes"


MemorySize = SlotMemory


@dataclass(frozen=True)
class SlotSharingGroup:
    """The resources of a group of tasks in Flink, without effect; `spark.executor.*` sets what tasks have here.

    >>> group = SlotSharingGroup.builder("models").set_cpu_cores(2).set_task_heap_memory_mb(512).build()
    >>> group.get_cpu_cores(), group.get_task_heap_memory().get_mebi_bytes()
    (2, 512)
    """

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
        """Return a builder of a group."""
        return SlotSharingGroupBuilder(SlotSharingGroup(name))

    def get_name(self) -> str:
        return self.name

    def get_cpu_cores(self) -> float | None:
        return self.cpu_cores

    def get_task_heap_memory(self) -> SlotMemory | None:
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> SlotMemory | None:
        return self.task_off_heap_memory

    def get_managed_memory(self) -> SlotMemory | None:
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        return dict(self.external_resources)


class SlotSharingGroupBuilder:
    """Builds a `SlotSharingGroup`; sizes in `_mb` are units of 1024 * 1024 bytes."""

    def __init__(self, group: SlotSharingGroup) -> None:
        self._group = group

    def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroupBuilder:
        return self._with(cpu_cores=cpu_cores)

    def set_task_heap_memory(self, task_heap_memory: SlotMemory) -> SlotSharingGroupBuilder:
        return self._with(task_heap_memory=task_heap_memory)

    def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        return self._with(task_heap_memory=SlotMemory.of_mebi_bytes(task_heap_memory_mb))

    def set_task_off_heap_memory(self, task_off_heap_memory: SlotMemory) -> SlotSharingGroupBuilder:
        return self._with(task_off_heap_memory=task_off_heap_memory)

    def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        return self._with(task_off_heap_memory=SlotMemory.of_mebi_bytes(task_off_heap_memory_mb))

    def set_managed_memory(self, managed_memory: SlotMemory) -> SlotSharingGroupBuilder:
        return self._with(managed_memory=managed_memory)

    def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroupBuilder:
        return self._with(managed_memory=SlotMemory.of_mebi_bytes(managed_memory_mb))

    def set_external_resource(self, name: str, value: float) -> SlotSharingGroupBuilder:
        return self._with(external_resources={**self._group.external_resources, name: value})

    def build(self) -> SlotSharingGroup:
        return self._group

    def _with(self, **values: Any) -> SlotSharingGroupBuilder:
        self._group = replace(self._group, **values)
        return self


SlotSharingGroup.Builder = SlotSharingGroup.builder
