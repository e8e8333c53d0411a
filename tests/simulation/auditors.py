"""Auditors: they see everything that happens, know the truth, and end the world when something is wrong.

They look at the disk itself, past all faults, and at nothing that the judged code says of itself but what it has in
memory as its current state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn

from holdfast.checkpoint.metadata import CheckpointMetadata, decode
from holdfast.state.compaction_plan import depth
from holdfast.storage.file_system import base_name, parent
from holdfast.storage.job_directory import FileName, checkpoint_id_of
from holdfast.storage.local import final_name
from holdfast.storage.register import GENESIS, CheckpointPointer, RegisterRecord
from tests.simulation import workload
from tests.simulation.disk import Disk
from tests.simulation.evidence import Evidence
from tests.simulation.kind import Kind
from tests.simulation.leftovers import Leftovers
from tests.simulation.output import SeenOutput
from tests.simulation.workload import Model, Row
from tests.simulation.world import Process, World

_VERSION = re.compile(r".*/register/v-([0-9]{20})")
_JOB = re.compile(r"/jobs/[0-9a-f]{32}/(.*)")


class Auditors:
    """The auditors of one history.

    Args:
        world: The world.
        disk: What there is.
        kind: What the tasks are.
        model: What the output and the state are to be.
        grace: The grace period in milliseconds.
        job_path: The job's directory.
        max_runs: How many runs a key may have to be looked for in.
        sinks: How many the job has.
        most_pending: How many checkpoints may wait for their sinks.
        leftovers: Knows what may be left at the end.
    """

    def __init__(
        self,
        world: World,
        disk: Disk,
        kind: Kind,
        model: Model,
        grace: int,
        job_path: str,
        max_runs: int,
        sinks: int,
        most_pending: int,
        leftovers: Leftovers,
    ) -> None:
        self._world, self._disk, self._model, self._grace, self._job = world, disk, model, grace, job_path
        self.truth: RegisterRecord = GENESIS
        self.leaders: dict[int, Process] = {}
        self.masters: dict[Process, Any] = {}
        self._max_runs, self._kind, self._leftovers = max_runs, kind, leftovers
        self._named: frozenset[FileName] = frozenset()
        self._released: dict[FileName, float] = {}
        self._completed: dict[int, frozenset[str]] = {}
        self._evidence = Evidence(disk, job_path, self._fail)
        self.outputs = {
            uid: SeenOutput(root, self._evidence, kind, model, self._fail)
            for uid, root in list(workload.OUTPUTS.items())[:sinks]
        }
        self._tokens: dict[int, int] = {}
        self._released_ids: dict[int, float] = {}
        self.clocks_jumped = False
        self.savepoints: list[str] = []
        self._documented: set[str] = set()
        self._most_pending = most_pending
        self._epochs: list[int] = []
        self._ever: dict[str, CheckpointMetadata] = {}

    # What happens on the disk

    def seen(self, call: str, path: str, source: str) -> None:
        """Something has changed on the disk."""
        self._leftovers.seen(call, path)
        if call == "link":
            match = _VERSION.fullmatch(path)
            if match is not None:
                self._version_written(int(match[1]), path)
            elif path.endswith("/_metadata"):
                self._documented_now(parent(path))
        elif call == "rename":
            if _VERSION.fullmatch(path) is not None:
                self._fail(f"{path} took the place of what was there")
            self._require_not_output(source, f"is called {path} now")
            self._became_visible(path, source)
        elif call == "unlink":
            self._deleted(path)

    def _documented_now(self, place: str) -> None:
        number = checkpoint_id_of(base_name(place))
        if number is not None:
            self._tokens[number] = self._token_of(self._process())
        elif self._world.on_behalf is None:  # one that comes late may find that it was given up meanwhile
            self._documented.add(place)
            self._require_savepoint(place)

    def _process(self) -> Process:
        actor = self._world.on_behalf or self._world.current
        assert actor is not None
        return actor.process

    # The register

    def _version_written(self, number: int, path: str) -> None:
        record = self._evidence.record(path)
        is_next = number == self.truth.number + 1
        if not is_next or (number > 1 and record.history[1] != self.truth.nonce):
            self._leftovers.holes.add(path)
            return  # in a hole, or upon one; nobody may take it for real
        self._leftovers.holes.discard(path)
        self.moved_on(record)

    def moved_on(self, record: RegisterRecord) -> None:
        """The register has a new version."""
        old, new, process = self.truth.state, record.state, self._process()
        if new.token < old.token:
            self._fail(f"the token went back from {old.token} to {new.token}")
        if new.token > old.token:
            self.leaders[new.token] = process
        elif self.leaders.get(new.token) is not process:
            self._fail(f"{process.name} wrote version {new.version} of the register under a token that is not its own")
        if new.next_checkpoint_id < old.next_checkpoint_id or new.newest_committed < old.newest_committed:
            self._fail(f"the register went back: {old} -> {new}")
        added = [pointer for pointer in new.checkpoints if pointer not in old.checkpoints]
        if len(added) > 1 or (added and new.checkpoints[-1] is not added[0]):
            self._fail(f"pointers appeared out of order: {added}")
        if old.newest is not None and not added and old.newest not in new.checkpoints and new.terminal is None:
            self._fail("the newest checkpoint left the register, and none took its place")
        self._leftovers.moved_on(old, new, self._in_memory_of(process))
        self.truth = record
        gone = [self._evidence.document(pointer) for pointer in old.checkpoints if pointer not in new.checkpoints]
        self._remember(gone)
        for pointer in new.checkpoints if added else ():
            self._whole(pointer)
        if added:
            self._completed_now(added[0], old.newest)

    def _remember(self, gone: Iterable[CheckpointMetadata]) -> None:
        """What the retained checkpoints name, and since when what they named is needed no more."""
        documents = [self._evidence.document(pointer) for pointer in self.truth.state.checkpoints]
        self._named = frozenset(name for document in documents for name in self._evidence.names(document))
        self._completed[self.truth.number] = frozenset(
            f"{workload.OUTPUTS[operator.uid]}/{entry['value']['staged']}"
            for document in documents
            for operator in document.operators
            for entries in operator.committables.values()
            for entry in entries
        )
        # As the next leader can know it: from the time that the document says, which is a little before its pointer.
        since = min([self._world.now, *(document.completed_at for document in documents[-1:])])
        for document in gone:
            self._released_ids[document.checkpoint_id] = since
            for name in self._evidence.names(document):
                if name not in self._named:
                    self._released[name] = since

    def _completed_now(self, pointer: CheckpointPointer, before: CheckpointPointer | None) -> None:
        document = self._ever[pointer.digest] = self._evidence.document(pointer)
        if before is not None:
            older = self._evidence.document(before)
            if document.epoch <= older.epoch or pointer.checkpoint_id <= before.checkpoint_id:
                self._fail(f"checkpoint {pointer.checkpoint_id} is of epoch {document.epoch}, before {older.epoch}")
            if self._model.position_of(document) < self._model.position_of(older):
                self._fail(f"checkpoint {pointer.checkpoint_id} went back to input {self._model.position_of(document)}")
            if self._epochs_of_output(document) & self._epochs_of_output(older):
                self._world.note("the output of the one before is named again: checkpoint")
        self._require_few_uncommitted(pointer.checkpoint_id, document)
        self.require_state(document, f"checkpoint {pointer.checkpoint_id}", self._job)
        deepest = max((depth(operator.runs) for operator in document.operators), default=0)
        if deepest > self._max_runs + 1:  # nothing waits for a merge, but one has begun
            if not self._world.met["begun: compaction"]:
                self._fail(f"checkpoint {pointer.checkpoint_id} has {deepest} runs for one key group: none is merged")
            self._world.note("has more runs for one key group than it may: checkpoint")

    def _require_few_uncommitted(self, number: int, document: CheckpointMetadata) -> None:
        """A checkpoint names the output of few before it, however slow sinks are."""
        self._epochs = [epoch for epoch in self._epochs if epoch < document.epoch]
        output = self._epochs_of_output(document)
        before = {next((end for end in self._epochs if epoch <= end), None) for epoch in output} - {None}
        if len(before) > self._most_pending:
            self._fail(f"checkpoint {number} names output of {len(before)} before it, not of {self._most_pending}")
        self._epochs.append(document.epoch)

    def _epochs_of_output(self, document: CheckpointMetadata) -> set[int]:
        staged = [entry for one in document.operators for entries in one.committables.values() for entry in entries]
        return {int(entry["epoch"]) for entry in staged}

    def _whole(self, pointer: CheckpointPointer) -> None:
        """A retained checkpoint is there, and all that it names is, and what it was."""
        if self._evidence.file(f"{self._job}/{pointer.path}") is None:
            self._fail(f"checkpoint {pointer.checkpoint_id} has no document")
        document = self._evidence.document(pointer)
        for operator in document.operators:
            for run in operator.runs:
                if not self._evidence.is_run(f"{self._job}/{run.path}", run):
                    self._fail(f"checkpoint {pointer.checkpoint_id} names {run.path}, which is missing or changed")
            for entries in operator.committables.values():
                for entry in entries:
                    if not self.outputs[operator.uid].has(entry["value"]):
                        what = f"checkpoint {pointer.checkpoint_id} names {entry['value']['staged']}"
                        self._fail(f"{what}, which is neither staged nor committed")

    def require_state(self, document: CheckpointMetadata, what: str, root: str) -> None:
        """The state that a document names is that of the model at its position."""
        content = {one.uid: self._kind.state_of(one, root, self._evidence) for one in document.operators if one.runs}
        self._require_equal(document, content, what)

    def _require_equal(self, document: CheckpointMetadata, content: dict[str, dict[str, Row]], what: str) -> None:
        for uid, keys in self._model.states[self._model.position_of(document)].items():
            length = 2 if uid == workload.LEDGER else 1
            found = {key: value[:length] for key, value in content.get(uid, {}).items()}
            if found != keys:
                self._fail(f"{what} has {found} of {uid!r} where the model has {dict(keys)}")

    # Readers

    def read_by_replica(
        self, checkpoint_id: int, epoch: int, before: int, content: dict[str, dict[str, Row]] | None
    ) -> None:
        """A replica answers from a checkpoint now; None if it says that it cannot."""
        if checkpoint_id < before:
            self._fail(f"a replica went back from checkpoint {before} to {checkpoint_id}")
        document = next((one for one in self._ever.values() if one.checkpoint_id == checkpoint_id), None)
        if document is None:
            self._fail(f"a replica answers from checkpoint {checkpoint_id}, which has never completed")
        if document.epoch != epoch:
            self._fail(f"a replica says epoch {epoch} of checkpoint {checkpoint_id}, which is of {document.epoch}")
        if content is None:
            self._world.met["a replica could not read: replica"] += 1
        else:
            self._world.met["compared with the dict: replica"] += 1
            self._require_equal(document, content, f"a replica at checkpoint {checkpoint_id}")

    def savepoint_completed(self, path: str) -> None:
        """Somebody was told that a savepoint is complete: it stands by itself from now on."""
        self.savepoints.append(path)
        document = self._require_savepoint(path)
        if self._epochs_of_output(document):
            self._fail(f"the savepoint {path} names output, which whoever starts from it would commit once more")
        for output in self.outputs.values():
            output.require_all_before(self._model.position_of(document), f"the savepoint {path} is answered")

    def _require_savepoint(self, path: str) -> CheckpointMetadata:
        file = self._evidence.file(f"{path}/_metadata")
        if file is None:
            self._fail(f"the savepoint {path} is gone")
        document = decode(file.data, path)
        for operator in document.operators:
            for run in operator.runs:
                if run.path.startswith("/") or not self._evidence.is_run(f"{path}/{run.path}", run):
                    self._fail(f"the savepoint {path} needs {run.path}, which it does not have")
        self.require_state(document, f"the savepoint {path}", path)
        return document

    # Output

    def _became_visible(self, path: str, source: str) -> None:
        for output in self.outputs.values():
            if path.startswith(f"{output.root}/"):
                output.became_visible(path, source, self._committed)

    def _require_not_output(self, path: str, what: str) -> None:
        """Output that is committed belongs to its consumers, who do not go through the simulated system."""
        if any(path.startswith(f"{output.root}/") and not output.is_hidden(path) for output in self.outputs.values()):
            self._fail(f"{path} is committed, and {what} by {self._process().name}")

    @property
    def _committed(self) -> set[str]:
        """What completed checkpoints name of output, where it was staged."""
        return {name for names in self._completed.values() for name in names}

    # Deletions

    def _deleted(self, path: str) -> None:
        self._require_not_output(path, "was deleted")
        name = FileName.parse(base_name(path))
        if final_name(base_name(path)) is not None:
            return  # a file that was never finished: its writer fails, and nothing else
        process = self._process()
        self._documented.discard(parent(path) if path.endswith("/_metadata") else "")
        match = _JOB.fullmatch(path)
        if match is not None and match[1].startswith("chk-"):
            self._document_deleted(int(match[1].split("/")[0][4:]), process)
        elif name is not None and not path.startswith(workload.SAVEPOINTS):
            self._file_deleted(path, name, process)

    def _document_deleted(self, number: int, process: Process) -> None:
        state = self.truth.state
        if number in [pointer.checkpoint_id for pointer in state.checkpoints]:
            self._fail(f"{process.name} deleted the document of checkpoint {number}, which is retained")
        if self._tokens.get(number) == state.token and self.leaders[state.token] is not process:
            self._fail(f"{process.name} deleted the document of checkpoint {number} of the leader")
        self._require_grace(f"the document of checkpoint {number}", self._released_ids.get(number))

    def _file_deleted(self, path: str, name: FileName, process: Process) -> None:
        state = self.truth.state
        if name in self._named and not self._is_out(path, name):
            self._fail(f"{process.name} deleted {path}, which a retained checkpoint names")
        if name.token == state.token:
            if self.leaders[name.token] is not process:
                self._fail(f"{process.name} deleted {path} of the leader")
            if base_name(path) in map(base_name, self._in_memory_of(process)):
                self._fail(f"{process.name} deleted {path}, which it still needs")
        own = self._token_of(process)
        if name.token > own:
            self._fail(f"{process.name} with token {own} deleted {path} of a higher token")
        self._require_grace(path, self._released.get(name))

    def _in_memory_of(self, process: Process) -> list[str]:
        """The files that a leader needs."""
        master = self.masters.get(process)
        attempt = None if master is None else master.attempt
        return [] if attempt is None else [*attempt._epochs.live_runs(), attempt._checkpoints.nonce_file]

    def _token_of(self, process: Process) -> int:
        """The highest token that a process has raised."""
        return max((token for token, leader in self.leaders.items() if leader is process), default=0)

    def _require_grace(self, what: str, since: float | None) -> None:
        if since is not None and not self.clocks_jumped and self._world.now - since < self._grace:
            self._fail(f"{what} was deleted {self._world.now - since:.0f} ms after the last checkpoint forgot it")

    def _is_out(self, path: str, name: FileName) -> bool:
        """Whether a file is output that was staged under a name, and has been committed."""
        finals = [one for out in self.outputs.values() if path.startswith(f"{out.root}/") for one in out.finals]
        return any(one.endswith(f"-{name.nonce}.parquet") for one in finals)

    # Power failures, and the end

    def after_power_failure(self, of_files: bool) -> None:
        """What was not durable is gone; what the outside has seen of it must not have been promised.

        Args:
            of_files: Whether the register is in files, and not in a service of its own.
        """
        if of_files:
            self.truth = self._newest_on_disk()
            self._completed = {n: names for n, names in self._completed.items() if n <= self.truth.number}
            self._named = frozenset()
        for pointer in self.truth.state.checkpoints:
            self._whole(pointer)
        self._remember(())
        # One with a document looks complete, whoever was told of it.
        self._documented &= {
            parent(path) for path in self._disk.files(workload.SAVEPOINTS) if path.endswith("/_metadata")
        }
        for savepoint in (*self.savepoints, *sorted(self._documented)):
            self._require_savepoint(savepoint)
        for output in self.outputs.values():
            output.after_power_failure(self._disk.files(output.root), self._committed)

    def _newest_on_disk(self) -> RegisterRecord:
        records: dict[int, RegisterRecord] = {}
        for path in self._disk.files(f"{self._job}/register"):
            match = _VERSION.fullmatch(path)
            if match is not None:
                records[int(match[1])] = self._evidence.record(path)
        for number in sorted(records, reverse=True):
            before = records.get(number - 1)
            if number == 1 or (before is not None and before.nonce == records[number].history[1]):
                return records[number]
        return GENESIS

    def at_end(self) -> None:
        """The job has FINISHED: everything is there once, and not much else."""
        for output in self.outputs.values():
            output.require_whole(self._disk.files(output.root))
        state = self.truth.state
        if state.newest is None:
            self._fail("the job has finished without a checkpoint")
        for pointer in state.checkpoints:
            self._whole(pointer)
        for savepoint in self.savepoints:
            self._require_savepoint(savepoint)
        documents = [self._evidence.document(pointer) for pointer in state.checkpoints]
        taken = self._model.position_of(documents[-1])
        if taken != self._model.end:
            self._fail(f"the job has finished, and its newest checkpoint has taken {taken} inputs")
        own = max((document.epoch for document in documents if document.token == state.token), default=-1)
        self._leftovers.require_none(state, own, self._named, has_grace=self._grace > 0)

    def _fail(self, what: str) -> NoReturn:
        self._world.fail(what)
