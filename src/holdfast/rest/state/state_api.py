"""`/jobs/:jobid/state` and what is below it: what completed checkpoints and savepoints hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from holdfast.errors import ConfigurationError, NotExistError, OutputTypeError, StateError
from holdfast.rest.answer import Answer, RefusedError, Request
from holdfast.rest.form import state_form as form
from holdfast.rest.route.route import serves
from holdfast.rest.state.snapshots import snapshot_of, snapshots_of
from holdfast.rest.state.state_rows import MOST_ROWS, StateRows, conditions_in, keys_meant, text_of
from holdfast.runtime.master.job_master import JobMaster
from holdfast.state_processor.read.snapshot_difference import differences
from holdfast.state_processor.read.state_summary import sizes, summaries
from holdfast.state_processor.savepoint_reader import SavepointReader

_AT_ONCE: Final = 2
"""Requests that read files at one time: they share the cores with the job."""
_WAIT_SECONDS: Final = 5.0
_STATE: Final = "/jobs/:jobid/state/:snapshotid/operators/:uid/:state"
_OPERATOR_STATE: Final[dict[str, Callable[[SavepointReader, str, str], Any]]] = {
    "split": SavepointReader.read_list_state,
    "union": SavepointReader.read_union_state,
    "broadcast": SavepointReader.read_broadcast_state,
}


class StateApi:
    """The state of the one job of a master, from completed checkpoints only.

    Args:
        master: The job's master.
    """

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    @serves("GET", "/jobs/:jobid/state", form.SNAPSHOTS)
    def snapshots(self, request: Request) -> Answer:
        """The checkpoints and savepoints that can be looked into."""
        return Answer({"snapshots": [snapshot.to_json() for snapshot in snapshots_of(self._master)]})

    @serves("GET", "/jobs/:jobid/state/:snapshotid", form.STATES, query=form.STATES_QUERY)
    def states(self, request: Request) -> Answer:
        """The states with their sizes; with ?count=true entries are counted."""
        with self._reading():
            snapshot, checkpoint = snapshot_of(self._master, _number(request.path["snapshotid"]))
            is_counted = request.query.get("count") == "true"
            found = [asdict(state) for state in (summaries(checkpoint) if is_counted else sizes(checkpoint))]
            names = {operator.uid: operator.name for operator in checkpoint.metadata.operators}
        return Answer(
            {
                **snapshot.to_json(),
                "timestamp": checkpoint.metadata.completed_at,
                "epoch": checkpoint.metadata.epoch,
                "state_size": checkpoint.metadata.state_size,
                "counted": is_counted,
                "states": [{**state, "name": names.get(state["uid"], state["uid"])} for state in found],
            }
        )

    @serves("GET", "/jobs/:jobid/state/:snapshotid/difference/:otherid", form.DIFFERENCE)
    def difference(self, request: Request) -> Answer:
        """What has become of operators and states."""
        with self._reading():
            first, before = snapshot_of(self._master, _number(request.path["snapshotid"]))
            second, after = snapshot_of(self._master, _number(request.path["otherid"]))
            found = [asdict(difference) for difference in differences(before, after)]
        return Answer({"before": first.to_json(), "after": second.to_json(), "differences": found})

    @serves("GET", _STATE, form.ROWS, query=form.ROWS_QUERY)
    def rows(self, request: Request) -> Answer:
        """Rows of a state, by ?key, or by ?where and ?contains.

        Of a scan at most about ?limit rows are answered; `next` is the ?start of the following ones.
        """
        uid, name = request.path["uid"], request.path["state"]
        start, limit = request.query.get("start", 0), request.query.get("limit", 100)
        with self._reading():
            snapshot, checkpoint = snapshot_of(self._master, _number(request.path["snapshotid"]))
            reader = SavepointReader(None, checkpoint)
            kind = reader.states(uid).get(name)
            if kind in _OPERATOR_STATE:
                return Answer({"checkpoint": snapshot.id, **_of_subtasks(reader, uid, name, kind)})
            if "key" in request.query:
                keys = keys_meant(reader, uid, request.query["key"])
                found = StateRows(reader.state_table(uid, name, keys=keys))
                rows = found.all()
                told = {"columns": found.columns, "rows": rows, "read": len(rows), "cut": False, "next": None}
                return Answer({"checkpoint": snapshot.id, **told})
            found = StateRows(reader.state_table(uid, name))
            conditions = conditions_in(request.query.get("where", ""))
            scanned = found.scan(conditions, request.query.get("contains", ""), start, max(1, limit))
            return Answer({"checkpoint": snapshot.id, "columns": found.columns, **scanned})

    @serves("GET", f"{_STATE}/largest", form.LARGEST)
    def largest(self, request: Request) -> Answer:
        """The largest keys and key groups."""
        uid, name = request.path["uid"], request.path["state"]
        with self._reading():
            snapshot, checkpoint = snapshot_of(self._master, _number(request.path["snapshotid"]))
            reader = SavepointReader(None, checkpoint)
            if reader.states(uid).get(name) in _OPERATOR_STATE:
                raise RefusedError(400, f"State {name!r:.80} belongs to subtasks, and has no keys.")
            return Answer({"checkpoint": snapshot.id, **StateRows(reader.state_table(uid, name)).largest()})

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if not self._turns.acquire(timeout=_WAIT_SECONDS):
            raise RefusedError(503, f"{_AT_ONCE} requests are reading state. Try again when they have ended.")
        try:
            yield
        except NotExistError as error:
            raise RefusedError(404, str(error)) from error
        except (ConfigurationError, OutputTypeError, StateError) as error:
            raise RefusedError(400, str(error)) from error
        finally:
            self._turns.release()


def _of_subtasks(reader: SavepointReader, uid: str, name: str, kind: str) -> dict[str, Any]:
    table = _OPERATOR_STATE[kind](reader, uid, name)
    rows = [{column: text_of(value) for column, value in row.items()} for row in table.slice(0, MOST_ROWS).to_pylist()]
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    return {"columns": columns, "rows": rows, "read": table.num_rows, "cut": table.num_rows > MOST_ROWS, "next": None}


def _number(text: str) -> str | None:
    return None if text == "latest" else text
