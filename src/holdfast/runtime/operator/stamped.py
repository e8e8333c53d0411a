"""A subtask whose elements have event times: what it emits has the time of what it was emitted for.

Only operators behind `assign_timestamps_and_watermarks` run in this way, element by element; others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.function.user_function import TimeDomain
from holdfast.runtime.operator.subtask import OperatorSubtask
from holdfast.types.changed_row import Emission

Stamps = list[int | None]


class StampedSubtask(OperatorSubtask):
    """An operator that keeps account of the timestamps of what it emits, in the order in which it is emitted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stamps: Stamps = []
        self._side_stamps: dict[str, Stamps] = {}

    def take_stamps(self) -> Stamps | None:
        """Returns and forgets the timestamps of what was emitted since the last call; None is none."""
        taken, self._stamps = self._stamps, []
        return taken

    def take_side_stamps(self) -> dict[str, Stamps]:
        """Returns and forgets the timestamps of what was sent to side outputs."""
        taken, self._side_stamps = self._side_stamps, {}
        return taken

    def process(
        self,
        elements: Sequence[Any],
        dict_keys: Sequence[Any] | None = None,
        hashes: Any = None,
        timestamps: Sequence[int | None] | None = None,
    ) -> list[Any]:
        out: list[Any] = []
        emission = self._emission = Emission(out)
        slots: Any = repeat(None)
        try:
            if self._shape == "async":
                return self._process_async(elements, timestamps)
            if self.backend is not None:
                self.backend.release()
                slots = self.backend.prepare(dict_keys, hashes)  # type: ignore[arg-type]
            # Slots may be more than elements: there is no end to those of an operator without keys.
            for element, slot, timestamp in zip(elements, slots, timestamps or repeat(None), strict=False):
                before = len(out)
                self.context.element_timestamp = timestamp
                self._process_one(element, slot, out)
                if self._spec.gives_times:
                    self._take_times(out, before)
                else:
                    self._stamps += [timestamp] * (len(out) - before)
                self._note_side(timestamp)
        except HoldfastError:
            raise
        except Exception as error:
            raise self._user_error(error, "processing an element") from error
        finally:
            self.context.element_timestamp = None
        emission.end()
        return out

    def process_broadcast(self, elements: Sequence[Any]) -> list[Any]:
        out = super().process_broadcast(elements)
        self._stamps += [None] * len(out)
        self._note_side(None)
        return out

    def _process_async(self, elements: Sequence[Any], timestamps: Sequence[int | None] | None) -> list[Any]:
        """All elements at once: one after the other, none would wait beside another."""
        out: list[Any] = []
        for place, results in self._call(elements):
            out += results
            self._stamps += [timestamps[place] if timestamps else None] * len(results)
        return out

    def _process_one(self, element: Any, slot: Any, out: list[Any]) -> None:
        before = len(out)
        if self.backend is None:
            self._run_narrow((element,), out)
        else:
            self._keyed_runs[self._shape]((element,), (slot,), out)
        if self._spec.side_outputs:
            self._part_tagged(out, before)

    def _take_fired(self, emitted: Any, domain: Any, timestamp: int, out: list[Any]) -> None:
        before = len(out)
        out.extend(emitted)
        if self._spec.side_outputs:
            self._part_tagged(out, before)
        stamp = timestamp if domain is TimeDomain.EVENT_TIME else None
        if self._spec.gives_times:
            self._take_times(out, before)
        else:
            self._stamps += [stamp] * (len(out) - before)
        self._note_side(stamp)

    def _part_tagged(self, out: list[Any], start: int) -> None:
        """Sends what was emitted with a tag, from a place on, to its side output."""
        self._emission.part(start)
        out[start:] = self._without_tagged(out[start:])

    def _take_times(self, out: list[Any], start: int) -> None:
        """Parts the pairs of a time and an element that were emitted from a place on."""
        pairs = out[start:]
        out[start:] = [element for _, element in pairs]
        self._stamps += [timestamp for timestamp, _ in pairs]

    def _note_side(self, timestamp: int | None) -> None:
        for tag, values in self.side_outputs.items():
            stamps = self._side_stamps.setdefault(tag, [])
            stamps += [timestamp] * (len(values) - len(stamps))
