"""What readers of one sink see: each row once, in the order of epochs, and none that no completed checkpoint names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from holdfast.datastream.sinks.output_directory import HIDDEN_FOLDER
from holdfast.storage.file_system import base_name
from holdfast.storage.job_directory import FileName
from tests.simulation.disk import File
from tests.simulation.evidence import Evidence
from tests.simulation.kind import Kind
from tests.simulation.workload import Model, Row


class SeenOutput:
    """The output of one sink, as the outside sees it.

    Args:
        root: The directory of the sink.
        evidence: What there is.
        kind: What the tasks are.
        model: What the output is to be.
        fail: Called with what is wrong; does not return.
    """

    def __init__(
        self, root: str, evidence: Evidence, kind: Kind, model: Model, fail: Callable[[str], NoReturn]
    ) -> None:
        self.root = root
        self._evidence, self._kind, self._model, self._fail = evidence, kind, model, fail
        self._visible: dict[str, list[Row]] = {}
        self._taken: dict[str, list[Row]] = {}
        self._newest = 0

    @property
    def visible(self) -> list[str]:
        """Files that are there."""
        return sorted(self._visible)

    @property
    def finals(self) -> list[str]:
        """Files that are there, or were and have been taken."""
        return [*self._visible, *self._taken]

    @property
    def rows(self) -> list[Row]:
        """What is in them."""
        return [row for rows in (*self._visible.values(), *self._taken.values()) for row in rows]

    def is_hidden(self, path: str) -> bool:
        """Whether no reader sees a file of the sink."""
        return path.startswith(f"{self.root}/{HIDDEN_FOLDER}/")

    def has(self, value: dict[str, Any]) -> bool:
        """Whether what a committable names is staged or committed."""
        places = f"{self.root}/{value['staged']}", f"{self.root}/{value['final']}"
        return places[1] in self._taken or any(self._evidence.file(place) is not None for place in places)

    def became_visible(self, path: str, source: str, named: Collection[str]) -> None:
        """A file has its final name now.

        Args:
            path: That name.
            source: Where it was staged.
            named: What completed checkpoints name.
        """
        if source not in named:
            self._fail(f"{path} became visible, and no completed checkpoint names it")
        epoch = int(base_name(path).split("-")[1])
        if epoch < self._newest:
            self._fail(f"{path} became visible after a file of epoch {self._newest}")
        self._newest = epoch
        file = self._evidence.file(path)
        assert file is not None
        rows, known = self._kind.rows_of(file.data), {row[0] for row in self.rows}
        for row in rows:
            if row[0] in known:
                self._fail(f"payment {row[0]} came twice, now in {path}")
            if self._model.rows[row[0]] != self._kind.plain(row):
                self._fail(f"payment {row[0]} came as {self._kind.plain(row)}, not {self._model.rows[row[0]]}")
        self._visible[path] = rows

    def take(self, path: str) -> None:
        """A consumer takes a file for itself."""
        self._taken[path] = self._visible.pop(path)

    def require_all_before(self, position: Any, what: str) -> None:
        """Whatever comes from so many epochs of input is there."""
        promised = {row for row, epoch in self._model.epoch_of.items() if epoch < position}
        missing = promised - {row[0] for row in self.rows}
        if missing:
            self._fail(f"{what}, and payments {sorted(missing)} are not visible in {self.root}")

    def after_power_failure(self, there: Collection[str], committed: Iterable[str]) -> None:
        """What was not durable is gone; what is seen must be in a checkpoint that is still there."""
        self._visible = {path: rows for path, rows in self._visible.items() if path in there}
        nonces = {FileName.parse(base_name(name)).nonce for name in committed}  # type: ignore[union-attr]
        for path in self.finals:
            if path.removesuffix(".parquet").rpartition("-")[2] not in nonces:
                self._fail(f"{path} is visible, and its checkpoint was lost with the power")

    def require_whole(self, there: Mapping[str, File]) -> None:
        """Each row is there once, in files on the disk and those that were taken, and all are of one piece.

        Args:
            there: The files in the directory of the sink.
        """
        visible = {path: self._kind.rows_of(file.data) for path, file in there.items() if not self.is_hidden(path)}
        rows = [row for rows in (*visible.values(), *self._taken.values()) for row in rows]
        missing = sorted(set(self._model.rows) - {row[0] for row in rows})
        if missing:
            self._fail(f"payments {missing} are missing from {self.root}")
        numbers = sorted(row[0] for row in rows)
        if numbers != sorted(self._model.rows):
            self._fail(f"the output in {self.root} has payments {numbers}, each of which comes once")
        for row in rows:
            if self._kind.plain(row) != self._model.rows[row[0]]:
                self._fail(f"payment {row[0]} is {self._kind.plain(row)}, not {self._model.rows[row[0]]}")
        broken = self._kind.wrong(rows)
        if broken is not None:
            self._fail(f"the output in {self.root} is not of one piece: {broken}")
