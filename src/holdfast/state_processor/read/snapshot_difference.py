"""What has become of each operator and state between two checkpoints or savepoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.document.completed_checkpoint import CompletedCheckpoint
from holdfast.checkpoint.document.metadata import OperatorMetadata
from holdfast.state_processor.read.state_summary import StateSummary, summaries


@dataclass(frozen=True)
class Difference:
    """What differs in one operator, or in one of its states.

    Attributes:
        uid: The operator.
        state: The state; None for the operator as a whole.
        change: added, removed, changed; rewritten if kind, type and numbers are the same, but not the files.
        before: What is said of it in A, None if it is not there. With a change only what has changed.
        after: The same of B.
    """

    uid: str
    state: str | None
    change: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def differences(a: CompletedCheckpoint, b: CompletedCheckpoint) -> Iterator[Difference]:
    """What differs, by operator and state. Reads the keys of all run files that are not the same.

    Raises:
        CorruptFileError: A run file is damaged.
        NotExistError: A run file is gone.
    """
    operators_a, operators_b = a.get_operator_states(), b.get_operator_states()
    content_a, content_b = _contents(operators_a), _contents(operators_b)
    same = {uid for uid, content in content_a.items() if content == content_b.get(uid)}
    states_a, states_b = _states(a, same), _states(b, same)
    for uid in sorted({*operators_a, *operators_b}):
        before, after = operators_a.get(uid), operators_b.get(uid)
        whole = _compared(uid, None, _facts(before), _facts(after))
        if whole is not None:
            yield whole
        for name in sorted(name for owner, name in {*states_a, *states_b} if owner == uid):
            found = _compared(uid, name, _numbers(states_a.get((uid, name))), _numbers(states_b.get((uid, name))))
            if found is not None:
                yield found
            elif content_a[uid].get(name) != content_b[uid].get(name):
                yield Difference(uid, name, "rewritten", {}, {})


def _contents(operators: Mapping[str, OperatorMetadata]) -> dict[str, dict[str, Any]]:
    """By operator and state what says whether two hold the same, wherever their files are."""
    return {uid: _content(operator) for uid, operator in operators.items()}


def _content(operator: OperatorMetadata) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for run in operator.runs:
        for name in run.rows:
            found.setdefault(name, []).append((run.digest, run.size))
    for subtask in _without_paths(operator.subtasks):
        for name, state in (subtask or {}).get("states", {}).items():
            found.setdefault(name, []).append(state)
    return found


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items() if key != "path"}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    return value


def _states(checkpoint: CompletedCheckpoint, without: set[str]) -> dict[tuple[str, str], StateSummary]:
    return {(summary.uid, summary.state): summary for summary in summaries(checkpoint, without)}


def _facts(operator: OperatorMetadata | None) -> dict[str, Any] | None:
    if operator is None:
        return None
    return {
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "key": operator.key,
        "bytes": operator.state_size,
    }


def _numbers(summary: StateSummary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {"kind": summary.kind, "type": summary.type, "rows": summary.rows, "bytes": summary.bytes}


def _compared(
    uid: str, state: str | None, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> Difference | None:
    if before is None or after is None:
        return Difference(uid, state, "added" if before is None else "removed", before, after)
    changed = [name for name in before if before[name] != after[name]]
    if not changed:
        return None
    return Difference(
        uid, state, "changed", {name: before[name] for name in changed}, {name: after[name] for name in changed}
    )
