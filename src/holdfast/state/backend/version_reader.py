"""A state version whose runs are mapped, as the subtask that owns a range of key groups sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import StateMigrationError
from holdfast.kernel.key_group import KeyGroupRange
from holdfast.state.layout.column_layout import StateLayout
from holdfast.state.run.probe import Stretch
from holdfast.state.run.run_file import RunHandle, RunReader, open_run
from holdfast.state.run.version import StateVersion
from holdfast.state.timer.timer_service import TIMER_PREFIX
from holdfast.storage.file_system.scheme import FileSystem
from holdfast.types.key.abstract_key_codec import KeyCodec


class VersionReader:
    """The runs of a version, mapped.

    Args:
        version: The version.
        fs: Where the runs are.
        root: The job's directory.
        key_groups: The range of the subtask.

    Raises:
        CorruptFileError, FormatVersionError, NotExistError: A run is damaged, too new, or gone.
    """

    def __init__(self, version: StateVersion, fs: FileSystem, root: str, key_groups: KeyGroupRange) -> None:
        self.version = version
        self.fs = fs
        self.root = root
        self.runs: list[RunReader] = [open_run(fs, root, run) for run in version.runs]
        self._key_groups = key_groups

    def check_keys(self, operator: str, codec: KeyCodec, max_parallelism: int) -> None:
        """Compare the keys that the runs were written for with those of a program.

        Raises:
            StateMigrationError: Key type or max parallelism differ.
        """
        for run in self.runs:
            if (run.meta.key, run.meta.max_parallelism) != (codec.to_json(), max_parallelism):
                raise StateMigrationError(
                    f"The state of operator {operator!r} was written for keys {run.meta.key!r} in "
                    f"{run.meta.max_parallelism} key groups (by {run.path!r}), the program has keys "
                    f"{codec.to_json()!r} in {max_parallelism}. Neither can change; start it under another uid."
                )

    def continue_state(self, layout: StateLayout, now: int) -> StateLayout:
        """Return the layout of a state as a program declares it, as it goes on from what the runs have.

        Args:
            layout: What the program declares.
            now: Processing time.

        Raises:
            StateMigrationError: Kind, map keys or namespaces differ, or the value type cannot take over.
        """
        segments = [(run.segment(layout.name), run.path) for run in self.runs]
        return layout.after([(found.entry.schema, path) for found, path in segments if found is not None], now)

    def stretches(self, name: str, after: int = 0) -> Sequence[Stretch]:
        """Return the rows of a state in the range, newest run first.

        Args:
            name: Of the state.
            after: How many of the oldest runs to leave out.
        """
        found = []
        for run in reversed(self.runs[after:]):
            for segment in run.newest_first(name):
                rows = segment.range(self._key_groups)
                if rows.stop > rows.start:
                    found.append(Stretch(segment, rows))
        return found

    def stretches_by_state(self, names: Sequence[str], after: int = 0) -> Mapping[str, Sequence[Stretch]]:
        """Return the rows of several states, see `stretches`."""
        return {name: self.stretches(name, after) for name in names}

    def has_timers(self) -> bool:
        """Whether any run has timers."""
        return any(name.startswith(TIMER_PREFIX) for run in self.runs for name in run.segment_names())

    def add(self, run: RunHandle) -> None:
        """Go on to the version with one run more, which this subtask has just written."""
        self.version = self.version.plus(run)
        self.runs.append(open_run(self.fs, self.root, run))
