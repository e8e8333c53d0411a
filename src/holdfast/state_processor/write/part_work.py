"""What is done with the rows of a keyed table, wherever they are: their keys are computed, and parts of them written.

A piece of work travels to Spark tasks, so it holds no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import cloudpickle
import numpy as np
import pyarrow as pa

from holdfast.errors import HoldfastError, NullKeyError, StateError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.key_group import key_groups_of
from holdfast.kernel.watermark import MIN_WATERMARK
from holdfast.runtime.operator import OpenedSelector, OperatorInstance, OperatorSubtask, SubtaskInfo, user_error
from holdfast.runtime.window_operator.pane_subtask import PaneSubtask
from holdfast.runtime.window_operator.window_subtask import WindowSubtask, subtask_kind
from holdfast.state.backend import AbstractKeyedStateBackend, load_state_backend
from holdfast.state.declaration.environment import TaskEnvironment
from holdfast.state.run.probe import KEY
from holdfast.state.run.run_file import HASH, RunHandle
from holdfast.state.run.version import StateVersion
from holdfast.state_processor.form.row_encoding import StateColumns, column_of, key_rows, state_rows, times_of
from holdfast.state_processor.write.written_run import RunPlace, write_part
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.types.conversion.arrow import batch_to_elements
from holdfast.types.conversion.stamps import Stamps, stamps_of
from holdfast.types.information.type_information import RowTypeInformation, TypeInformation

_ELEMENTS_AT_ONCE: Final = 8192
_THREADS: Final = 4


@dataclass(frozen=True)
class PartWork:
    """What becomes of the rows of one keyed table.

    Attributes:
        place: Where runs go.
        key_columns: Columns of the key; empty with a selector.
        selector: Pickled function of a row; None with columns.
        element_type: What rows are as elements, for functions.
        states: The states in its columns.
        by_row: Pickled operator that makes state of each row, and what tells its event time; None for columns.
        now: Processing time.
    """

    place: RunPlace
    key_columns: tuple[str, ...]
    selector: bytes | None
    element_type: TypeInformation
    states: tuple[StateColumns, ...] = ()
    by_row: bytes | None = None
    now: int = 0

    def needed(self, available: Sequence[str]) -> list[str]:
        """Return the columns that are needed of those there are, in their order."""
        if self.by_row is not None or self.selector is not None:
            return list(available)
        wanted = {*self.key_columns, *(name for state in self.states for name in state.names())}
        return [name for name in available if name in wanted]

    def keys(self, table: pa.Table) -> pa.Table:
        """Return `hash` and `key` of each row.

        Raises:
            NullKeyError: A key is null.
            OutputTypeError: A key is not of the declared type.
            UserFunctionError: The selector raised.
        """
        if self.selector is None:
            return key_rows(self.place.key, table, self.key_columns)
        codec, info = self.place.key, SubtaskInfo(uid=self.place.uid, name=self.place.uid, epoch=self.place.epoch)
        opened = OpenedSelector(cloudpickle.loads(self.selector), info)
        select = opened.bind(info)
        try:
            elements = enumerate(self._elements(table))
            dict_keys = [codec.dict_key(self._selected(select, element, row)) for row, element in elements]
        finally:
            opened.close()
        return pa.table({HASH: codec.hashes(dict_keys), KEY: codec.storage_array(dict_keys)})

    def _selected(self, select: Callable[[Any], Any], element: Any, row: int) -> Any:
        try:
            key = select(element)
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(error, self.place.uid, None, self.place.epoch, "computing a key") from error
        if key is None:
            raise NullKeyError(self.place.uid, row=row)
        return key

    def subtasks(self, keys: pa.Table) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the part that each row belongs to."""
        groups = key_groups_of(keys.column(HASH).to_numpy(), self.place.max_parallelism).astype(np.int64)
        return (groups * self.place.parallelism // self.place.max_parallelism).astype(np.int32)

    def write(self, subtask: int, keys: pa.Table, table: pa.Table) -> RunHandle | None:
        """Write the state of one part. Blocks.

        Args:
            subtask: The part.
            keys: `hash` and `key` of its rows.
            table: Its rows.

        Returns:
            None if there is no state.
        """
        if self.by_row is not None:
            return self._run(subtask, keys, table)
        forms = {state.form.name: state.form for state in self.states}
        rows = {state.form.name: state_rows(state, keys, table, self.now) for state in self.states}
        return write_part(self.place, subtask, forms, rows)

    def _elements(self, table: pa.Table) -> Iterator[Any]:
        for batch in table.to_batches():
            yield from batch_to_elements(batch, self.element_type)

    def _run(self, subtask: int, keys: pa.Table, table: pa.Table) -> RunHandle | None:
        assert self.by_row is not None
        place = self.place
        spec, time_of = cloudpickle.loads(self.by_row)
        info = SubtaskInfo(
            uid=place.uid,
            name=place.uid,
            subtask=subtask,
            parallelism=place.parallelism,
            max_parallelism=place.max_parallelism,
            epoch=place.epoch,
            processing_time=self.now,
        )
        backend = _backend(place, info)
        backend.open_version(StateVersion(), file_system_for(place.root), place.root)
        instance = OperatorInstance(spec, info, _backend(place, info))
        try:
            operator = subtask_kind(spec, is_stamped=time_of is not None)(instance, info, backend)
            for start in range(0, table.num_rows, _ELEMENTS_AT_ONCE):
                part = keys.slice(start, _ELEMENTS_AT_ONCE).combine_chunks()
                dict_keys = place.key.from_storage(column_of(part, KEY))
                hashes = part.column(HASH).to_numpy()
                rows = table.slice(start, _ELEMENTS_AT_ONCE).combine_chunks()
                _bootstrap(operator, time_of, rows, self.element_type, dict_keys, hashes)
            if isinstance(operator, PaneSubtask):
                operator.close(MIN_WATERMARK, self.now)
            run = backend.flush(lambda: place.new_path(subtask), place.token, place.epoch)
        finally:
            instance.close()
            backend.dispose()
        return run


def _bootstrap(
    operator: OperatorSubtask, time_of: Any, rows: pa.Table, kind: TypeInformation, dict_keys: Any, hashes: Any
) -> None:
    """Give rows to the operator that makes state of them."""
    info = operator.info
    times: Stamps | None = None
    if isinstance(time_of, str):
        times = times_of(column_of(rows, time_of), time_of)
    elements: list[Any] = []
    if not isinstance(operator, PaneSubtask) or callable(time_of):
        elements = [element for batch in rows.to_batches() for element in batch_to_elements(batch, kind)]
    if callable(time_of):
        try:
            times = stamps_of([time_of(element) for element in elements])
        except Exception as error:
            raise user_error(
                error, operator.info.uid, None, operator.info.epoch, "telling the time of a row"
            ) from error
    if isinstance(operator, PaneSubtask):
        operator.process_rows(rows.to_batches()[0], dict_keys, hashes, times)
        return
    emitted = operator.process(elements, dict_keys, hashes, times)
    if emitted and isinstance(operator, WindowSubtask):
        raise StateError(
            f"A window of operator {info.uid!r} is complete with the rows that are given and would emit "
            f"{emitted[0]!r:.200}, which no job would see: leave out the rows of windows that are over."
        )


def _backend(place: RunPlace, info: SubtaskInfo) -> AbstractKeyedStateBackend:
    environment = TaskEnvironment(
        job_id="",
        operator=place.uid,
        subtask=info.subtask,
        parallelism=place.parallelism,
        max_parallelism=place.max_parallelism,
        processing_time=info.processing_time,
    )
    state_backend = load_state_backend(Configuration({"state.backend.type": "hashmap"}))
    return state_backend.create_keyed_state_backend(
        environment, "", place.uid, place.key, place.max_parallelism, place.range(info.subtask), None
    )


def write_here(work: PartWork, table: pa.Table) -> list[RunHandle]:
    """Write all parts of a table in this process, several at once. Blocks.

    Raises:
        HoldfastError: Something in it cannot be state; nothing names what was written.
    """
    table = table.select(work.needed(table.column_names))
    keys = work.keys(table)
    owners = work.subtasks(keys)
    order = np.argsort(owners.astype(np.int16), kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(work.place.parallelism + 1)).tolist()

    def write(part: tuple[int, tuple[int, int]]) -> RunHandle | None:
        subtask, (start, stop) = part
        if start == stop:
            return None
        rows = pa.array(order[start:stop])
        return work.write(subtask, keys.take(rows), table.take(rows))

    parts = list(enumerate(pairwise(bounds)))
    if work.by_row is not None or len(parts) == 1:
        written = list(map(write, parts))
    else:
        with ThreadPoolExecutor(min(_THREADS, len(parts))) as pool:
            written = list(pool.map(write, parts))
    return [run for run in written if run is not None]


def element_type_of_table(table: pa.Table) -> TypeInformation:
    """Return the type of rows with the columns of a table, as functions see them.

    Raises:
        StateError: It has no columns.
    """
    from holdfast.types.conversion.convert import to_row_type

    if not table.column_names:
        raise StateError("A table without columns has no rows for a function.")
    found = to_row_type(table.schema)
    assert isinstance(found, RowTypeInformation)
    return found
