"""A subtask whose elements have event times: what it emits has the time of what it was emitted for.

Only operators behind `assign_timestamps_and_watermarks` run in this way. Functions are called element by element, with
the time of each in the context; what is emitted gets its times batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.function.user_function import TimeDomain
from holdfast.runtime.operator.subtask import OperatorSubtask, is_tagged
from holdfast.types.changed_row import Emission
from holdfast.types.conversion.stamps import Stamps, joined, no_stamps, one_by_one, stamps_of, stamps_of_emitted


class StampedSubtask(OperatorSubtask):
    """An operator that keeps account of the timestamps of what it emits, in the order in which it is emitted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stamps: list[Stamps] = []
        self.context.side_stamps = {}

    def take_stamps(self) -> Stamps | None:
        """Returns and forgets the timestamps of what was emitted since the last call."""
        taken, self._stamps = self._stamps, []
        return joined(taken)

    def take_side_stamps(self) -> dict[str, Stamps]:
        """Returns and forgets the timestamps of what was sent to side outputs."""
        taken, self.context.side_stamps = self.context.side_stamps or {}, {}
        return {tag: stamps_of(times) for tag, times in taken.items()}

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Stamps | None = None,
    ) -> list[Any]:
        out: list[Any] = []
        ends: list[int] = []
        emission = Emission(out)
        try:
            if self._shape == "async":
                return self._process_async(elements, timestamps)
            times = one_by_one(timestamps)
            if self.backend is None:
                self._run_narrow(self._following(elements, times, out, ends), out)
            else:
                self.backend.release()
                slots = self.backend.prepare(dict_keys, hashes)  # type: ignore[arg-type]
                if self._shape == "process":
                    self._process_timed(elements, slots, times, out, ends)
                else:
                    self._keyed_runs[self._shape](self._following(elements, times, out, ends), slots, out)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        finally:
            self.context.element_timestamp = None
        emission.end()
        return self._stamped(out, stamps_of_emitted(timestamps, ends))

    def process_broadcast(self, elements: Sequence[Any]) -> list[Any]:
        out = super().process_broadcast(elements)
        self._stamps.append(no_stamps(len(out)))
        return out

    def _process_async(self, elements: Sequence[Any], timestamps: Stamps | None) -> list[Any]:
        """All elements at once: one after the other, none would wait beside another."""
        out: list[Any] = []
        times: list[int | None] = []
        for place, results in self._call(elements):
            out += results
            times += [None if timestamps is None else timestamps[place].as_py()] * len(results)
        self._stamps.append(stamps_of(times))
        return out

    def _following(
        self, elements: Sequence[Any], times: Iterable[int | None], out: list[Any], ends: list[int]
    ) -> Iterator[Any]:
        """Yields the elements, each when all before it have been processed, and notes how much those have emitted."""
        context, note = self.context, ends.append
        for element, time in zip(elements, times, strict=False):
            context.element_timestamp = time
            yield element
            note(len(out))

    def _process_timed(
        self,
        elements: Sequence[Any],
        slots: Sequence[Any],
        times: Iterable[int | None],
        out: list[Any],
        ends: list[int],
    ) -> None:
        """What most operators with event time do: without a generator around the elements a row costs a tenth less."""
        backend, call, context, extend, note = self.backend, self._call, self.context, out.extend, ends.append
        assert backend is not None
        for element, slot, time in zip(elements, slots, times, strict=False):
            backend.slot = slot
            context.element_timestamp = time
            emitted = call(element, context)
            if emitted is not None:
                extend(emitted)
            note(len(out))

    def _run_narrow(self, elements: Iterable[Any], out: list[Any]) -> None:
        if self._shape not in ("map", "filter"):
            super()._run_narrow(elements, out)
            return
        # Not `extend`: how long a list is meanwhile is nowhere promised.
        for emitted in (map if self._shape == "map" else filter)(self._call, elements):
            out.append(emitted)

    def _stamped(self, emitted: list[Any], stamps: Stamps) -> list[Any]:
        """The main output of what was emitted; notes its timestamps, and those that a function gives itself."""
        if self._spec.side_outputs:
            emitted, stamps = self._part_tagged(emitted, stamps)
        if self._spec.gives_times:
            stamps = stamps_of([time for time, _ in emitted])
            emitted = [element for _, element in emitted]
        self._stamps.append(stamps)
        return emitted

    def _part_tagged(self, emitted: list[Any], stamps: Stamps) -> tuple[list[Any], Stamps]:
        """Sends what was emitted with a tag to its side output, and returns the rest."""
        out: list[Any] = []
        times: list[int | None] = []
        for element, time in zip(emitted, one_by_one(stamps), strict=True):
            if is_tagged(element):
                self.context.element_timestamp = time
                self.context.output(*element)
            else:
                out.append(element)
                times.append(time)
        self.context.element_timestamp = None
        return out, stamps_of(times)

    def _fire(self, domain: TimeDomain, run: Callable[[Callable[[int], None]], None]) -> list[Any]:
        out: list[Any] = []
        fired: list[int] = []
        ends: list[int] = []
        fire = self._firing(out)

        def noted(timestamp: int) -> None:
            fire(timestamp)
            fired.append(timestamp)
            ends.append(len(out))

        self._fire_all(domain, run, noted, out)
        times = stamps_of(fired) if domain is TimeDomain.EVENT_TIME else None
        return self._stamped(out, stamps_of_emitted(times, ends))
