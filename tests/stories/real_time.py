"""Programs of the epoch runner in real time: the same streams over elements that are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.datastream.stream.data_stream import DataStream
from holdfast.runtime.function.bounded_sources import SequentialReader
from holdfast.runtime.function.source import BoundedEnumerator, SourceReader, SplitEnumerator, SplitSource
from holdfast.runtime.job.control import JobStatus
from holdfast.testing.real_time_runner import RealTimeProgram
from tests.stories.local import RESTARTING


class RealTime(RealTimeProgram):
    """A program whose sources have elements of a test, with barriers between them.

    Args:
        place: A directory of the test.
        elements: The elements of each source, by uid.
        at_once: Elements that a task reads of a source between two barriers.
        fails: Numbers of elements of each source at which its task fails, once each.
    """

    def __init__(
        self, place: Path, elements: Mapping[str, Sequence[Any]], at_once: int = 3, fails: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self._place, self._elements, self._at_once, self._fails = place, elements, at_once, fails

    def source(self, uid: str, type_info: Any = None, **_: Any) -> DataStream:  # type: ignore[override]
        dealt = Dealt(self._elements[uid], self._at_once, {n: str(self._place / f"{uid}-{n}") for n in self._fails})
        return super().source(uid, dealt, type_info, is_bounded=True)

    def finish(self, **settings: Any) -> None:
        """Run the program to the end of its sources, with a barrier every few milliseconds."""
        options = {**RESTARTING, "execution.checkpointing.interval": "2 ms", **settings.pop("options", {})}
        assert self.run(self._place / "job", options, **settings) is JobStatus.FINISHED


class Dealt(SplitSource):
    """Elements that are dealt to tasks in turn, each with its own part in order.

    Args:
        elements: The elements.
        at_once: How many a task reads between two barriers.
        fails: The numbers at which it fails, and the file by which it knows that it has.
    """

    def __init__(self, elements: Sequence[Any], at_once: int, fails: Mapping[int, str]) -> None:
        self._elements, self._at_once, self._fails = list(elements), at_once, fails

    def create_enumerator(self, position: Any, tasks: int) -> SplitEnumerator:
        parts = {str(n): [n, tasks] for n in range(min(tasks, len(self._elements)))}
        return BoundedEnumerator(parts if position is None else position["splits"])

    def create_reader(self, task: int) -> SourceReader:
        return _Reader(self._elements, self._at_once, self._fails)


class _Reader(SequentialReader):
    def __init__(self, elements: Sequence[Any], most: int, fails: Mapping[int, str]) -> None:
        super().__init__()
        self._elements, self._most, self._fails = elements, most, fails
        self._has_polled = False

    def poll(self) -> Any:
        if self._has_polled:
            return None
        self._has_polled = True
        return super().poll()

    def read(self, split_id: str, state: Any) -> tuple[Sequence[Any], Any]:
        at, step = state
        following = at + step * self._most
        for number in range(at, following, step):
            failed = Path(self._fails.get(number, ""))
            if number in self._fails and not failed.exists():
                failed.touch()
                raise RuntimeError(f"element {number} fails once")
        return self._elements[at:following:step], [following, step] if following < len(self._elements) else None

    def snapshot(self) -> Mapping[str, Any]:
        self._has_polled = False
        return super().snapshot()
