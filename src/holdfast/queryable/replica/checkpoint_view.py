"""A completed checkpoint as a server holds it, and how it is made from the job's files.

Everything comes from the checkpoint's document and the footers of its runs: which operators there are, which of their
states are queryable and under which name, and their types. Only runs that no earlier view had are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.document.metadata import CheckpointMetadata, OperatorMetadata
from holdfast.errors import CorruptFileError, HoldfastError, StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.kernel.malformed import MALFORMED
from holdfast.kernel.secret import get_logger
from holdfast.queryable.replica.layer import ReplicaLayer, empty_layer, groups_of, layer_of
from holdfast.queryable.replica.scan import check_columns
from holdfast.queryable.replica.state_view import StateView
from holdfast.queryable.wire.description import VALUE, StateDescription, without_classes
from holdfast.queryable.wire.frame import to_header
from holdfast.state.declaration.descriptor import StateKind
from holdfast.state.layout.evolution import Form, conversion, forms_of
from holdfast.state.layout.stored_schema import require_schema
from holdfast.state.run.run_file import RunHandle, RunReader, open_run
from holdfast.state.timer.timer_service import TIMER_PREFIX
from holdfast.storage.job.job_directory import JobDirectory
from holdfast.types.information.sealed_type import sealed
from holdfast.types.information.type_information import type_from_json
from holdfast.types.key.key_codec import codec_from_json

_log = get_logger(__name__)

Share = Callable[[int], tuple[KeyGroupRange, ...]]
"""Which key groups a server holds, given how many there are."""


@dataclass(frozen=True)
class CheckpointView:
    """The queryable states of one completed checkpoint.

    Attributes:
        job_id: 32 hexadecimal digits.
        job_name: For people.
        checkpoint_id: The checkpoint.
        epoch: The epoch at whose end the state was.
        lineage: The line of checkpoints that it belongs to; a restore begins a new one.
        completed_at: Milliseconds since 1970.
        states: By the name under which they are queried.
    """

    job_id: str
    job_name: str
    checkpoint_id: int
    epoch: int
    lineage: str
    completed_at: int
    states: Mapping[str, StateView]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What each answer says about where it is from."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "completed_at": self.completed_at,
        }

    @cached_property
    def answer_headers(self) -> dict[str, bytes]:
        """The header of an answer from each state, encoded once."""
        return {
            name: to_header(self.identity | {"state": view.description.fingerprint})
            for name, view in self.states.items()
        }


@dataclass(frozen=True)
class _Reading:
    """How the runs of a state are read: what it is, the forms that it had, and the key groups that are held."""

    description: StateDescription
    forms: Sequence[Form]
    key_groups: tuple[KeyGroupRange, ...]


class ViewBuilder:
    """Makes views of the checkpoints of one job, each from what the ones before it have opened.

    Args:
        directory: The job's directory.
        share: Which key groups to hold.
    """

    def __init__(self, directory: JobDirectory, share: Share) -> None:
        self._directory = directory
        self._share = share
        self._schemas: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        self._clashes: set[tuple[str, str]] = set()

    def build(self, metadata: CheckpointMetadata, before: CheckpointView | None) -> CheckpointView:
        """Return the view of a checkpoint.

        Args:
            metadata: The checkpoint's document.
            before: A view whose layers are shared where they are of the same runs.

        Raises:
            HoldfastError: A footer is damaged or gone.
        """
        states: dict[str, StateView] = {}
        for operator in metadata.operators:
            if operator.key is None:
                continue
            for state, schema in self._queryable(operator).items():
                name = str(schema["queryable"])
                if name in states:
                    self._report_clash(name, operator.uid, states[name].description.uid)
                    continue
                known = before.states.get(name) if before is not None else None
                states[name] = self._view(operator, state, name, schema, known)
        return CheckpointView(
            metadata.job_id,
            metadata.job_name,
            metadata.checkpoint_id,
            metadata.epoch,
            metadata.lineage,
            metadata.completed_at,
            states,
        )

    def forget(self, kept: Iterable[CheckpointMetadata]) -> None:
        """Forget runs that no checkpoint names any more."""
        paths = {run.path for metadata in kept for operator in metadata.operators for run in operator.runs}
        for path in [path for path in self._schemas if path not in paths]:
            del self._schemas[path]

    def _queryable(self, operator: OperatorMetadata) -> dict[str, Mapping[str, Any]]:
        """The queryable states of an operator; what the newest run says about a state counts."""
        found: dict[str, Mapping[str, Any]] = {}
        for handle in reversed(operator.runs):
            for state, schema in self._schemas_of(handle).items():
                found.setdefault(state, schema)
        return {state: schema for state, schema in sorted(found.items()) if schema.get("queryable")}

    def _schemas_of(self, handle: RunHandle) -> Mapping[str, Mapping[str, Any]]:
        known = self._schemas.get(handle.path)
        if known is None:
            run = self._open(handle)
            segments = ((name, run.segment(name)) for name in run.segment_names() if not name.startswith(TIMER_PREFIX))
            known = {name: segment.entry.schema for name, segment in segments if segment is not None}
            for name, schema in known.items():
                require_schema(schema, name, run.path)
            self._schemas[handle.path] = known
        return known

    def _view(
        self,
        operator: OperatorMetadata,
        state: str,
        name: str,
        schema: Mapping[str, Any],
        before: StateView | None,
    ) -> StateView:
        key_groups = self._share(operator.max_parallelism)
        try:
            description = _describe(operator, state, name, schema)
        except StateMigrationError as error:
            where = f"State {state!r:.80} of operator {operator.uid!r:.80} in {self._directory.path!r}"
            raise StateMigrationError(f"{where}: {error}") from error
        forms = forms_of(sealed(schema))
        seen = tuple(form.to_json() for form in forms)
        fits = before is not None and (before.description, before.key_groups, before.forms) == (
            description,
            key_groups,
            seen,
        )
        known = before.layers if fits and before else ()
        try:
            layers = self._layers(operator, state, _Reading(description, forms, key_groups), known)
        except HoldfastError as error:
            _log.error("State %r of job %s cannot be queried: %s", name, self._directory.job_id, error)
            return StateView(description, key_groups, (), error, seen)
        return StateView(description, key_groups, layers, None, seen)

    def _layers(
        self, operator: OperatorMetadata, state: str, reading: _Reading, known: Sequence[ReplicaLayer]
    ) -> tuple[ReplicaLayer, ...]:
        ids = [run.path for run in operator.runs]
        by_first = {group[0].runs[0]: group for group in groups_of(known)}
        layers: list[ReplicaLayer] = []
        at = 0
        while at < len(ids):
            group: Sequence[ReplicaLayer] | None = by_first.get(ids[at])
            if group is None or group[0].runs != tuple(ids[at : at + len(group[0].runs)]):
                group = self._of_run(operator.runs[at], state, reading)
            layers += group
            at += len(group[0].runs)
        return tuple(layers)

    def _of_run(self, handle: RunHandle, state: str, reading: _Reading) -> Sequence[ReplicaLayer]:
        """Return a run as one layer, or as several of which only the first names it."""
        ranges = [held for held in reading.key_groups if held.intersection(handle.range)]
        if not ranges or not handle.rows.get(state):
            return [empty_layer((handle.path,))]
        run = self._open(handle)
        segment = run.segment(state)
        if segment is None:
            raise CorruptFileError(run.path, None, f"it has no state {state!r:.80}, of which it is to have rows.")
        convert = conversion(sealed(segment.entry.schema), reading.forms, reading.description.kind)
        if convert is not None:
            convert.verify(state, handle.path)
        layers: list[ReplicaLayer] = []
        try:
            for part in segment.parts:
                runs = () if layers else (handle.path,)
                stretches = [layer_of(runs, part, held, convert) for held in ranges]
                layers.append(_joined([one for one in stretches if len(one)] or stretches[:1]))
                check_columns(layers[-1], reading.description)
        except (pa.ArrowException, *MALFORMED) as error:
            raise CorruptFileError(
                run.path, None, f"its rows of state {state!r:.80} are none: {error!r:.200}."
            ) from error
        return layers

    def _open(self, handle: RunHandle) -> RunReader:
        return open_run(self._directory.fs, self._directory.path, handle)

    def _report_clash(self, name: str, second: str, first: str) -> None:
        if (name, second) not in self._clashes:
            self._clashes.add((name, second))
            _log.error(
                "Registration name clash: queryable state %r of operator %r has already been registered by operator "
                "%r, which keeps it. Give one of them another name.",
                name,
                second,
                first,
            )


def _joined(parts: Sequence[ReplicaLayer]) -> ReplicaLayer:
    """Put stretches of one run together, whose hashes ascend from one to the next."""
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else pa.concat_arrays(arrays)

    return ReplicaLayer(
        parts[0].runs,
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.ops for part in parts]),
        column("keys"),
        column("namespaces"),
        column("map_keys"),
        column("values"),
    )


def _describe(operator: OperatorMetadata, state: str, name: str, schema: Mapping[str, Any]) -> StateDescription:
    kind = StateKind(schema["kind"])
    arrow = type_from_json(without_classes(schema["type"])).arrow_type
    if kind is StateKind.LIST:
        arrow = pa.list_(arrow)
    elif kind is StateKind.MAP:
        arrow = pa.map_(codec_from_json(without_classes(schema["map_key"])).storage_type, arrow)
    return StateDescription(
        name,
        state,
        operator.uid,
        operator.operator_id,
        kind,
        operator.max_parallelism,
        operator.key,
        schema["type"],
        schema["map_key"],
        schema["namespace"] is not None,
        pa.schema([(VALUE, arrow)]).serialize().to_pybytes(),
    )
