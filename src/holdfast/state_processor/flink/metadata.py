"""Read the document of a Flink savepoint, `_metadata`: its operators, and the places of their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError, CorruptFileError
from holdfast.state_processor.flink.serializer import DataInput
from holdfast.storage.file_system import FileSystem, join

MAGIC: Final = 0x4960672D
VERSIONS: Final = range(3, 7)  # since Flink 1.11; 1.20 writes 4 or 5, and 2.x up to 6
_MASTER_STATE: Final = -0x3694E96A
_NAMES_SINCE: Final = 5
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True)
class StreamHandle:
    """The place of bytes.

    Attributes:
        path: A file, relative to the savepoint or not; for bytes in the document a name.
        is_relative: Whether the path is relative to the savepoint.
        data: The bytes, if they are in the document.
    """

    path: str
    is_relative: bool
    data: bytes | None = None


@dataclass(frozen=True)
class KeyGroupsHandle:
    """Keyed state of one subtask in the canonical format: the offset of each key group in a file; 0 for none."""

    first_key_group: int
    offsets: tuple[int, ...]
    stream: StreamHandle


@dataclass(frozen=True)
class Partitions:
    """An operator state of one subtask: the offsets of its elements, and its redistribution mode."""

    mode: str
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class OperatorStateHandle:
    """Operator states of one subtask."""

    states: dict[str, Partitions]
    stream: StreamHandle


@dataclass(frozen=True)
class FlinkOperator:
    """An operator in a savepoint of Flink.

    Attributes:
        operator_id: 32 hexadecimal digits, which Flink derives from the uid.
        uid, name: None in documents of Flink before 2.0, which do not have them, and where the program had none.
        parallelism, max_parallelism: Parallelism and max parallelism of the job.
        keyed: Its keyed state.
        operator_states: Its operator state.
        unread: Its other state, which cannot be read, in words.
    """

    operator_id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    keyed: tuple[KeyGroupsHandle, ...] = ()
    operator_states: tuple[OperatorStateHandle, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.uid or self.operator_id

    @property
    def has_state(self) -> bool:
        return bool(self.keyed or self.operator_states or self.unread)


@dataclass(frozen=True)
class FlinkMetadata:
    version: int
    checkpoint_id: int
    operators: tuple[FlinkOperator, ...]


def read_metadata(data: bytes, path: str) -> FlinkMetadata:
    """Read a document.

    Args:
        data: Its bytes.
        path: Its path, for errors.

    Raises:
        CorruptFileError: It is damaged, or no such document.
        ConfigurationError: An unknown version of Flink has written it.
    """
    source = DataInput(data, path)
    if len(data) < 8 or source.int32() != MAGIC:
        source.position = 0
        raise source.corrupt("it is no document of a savepoint of Flink.")
    version = source.int32()
    if version not in VERSIONS:
        raise ConfigurationError(
            f"File {path!r} is a savepoint document of Flink in version {version}. Known are {VERSIONS.start} to "
            f"{VERSIONS.stop - 1}: let a job of Flink 1.20 or 2.x take the savepoint."
        )
    return _Reader(source, version).document()


class _Reader:
    def __init__(self, source: DataInput, version: int) -> None:
        self._in = source
        self._version = version

    def document(self) -> FlinkMetadata:
        checkpoint_id = self._in.long()
        for _ in range(self._in.count(8)):
            if self._in.int32() != _MASTER_STATE:
                raise self._in.corrupt("a state of the master does not begin as one.")
            self._in.take(self._in.int32())
        operators = tuple(self._operator() for _ in range(self._in.count(28)))
        return FlinkMetadata(self._version, checkpoint_id, operators)  # in version 4 and later properties follow

    def _operator(self) -> FlinkOperator:
        source = self._in
        name, uid = (source.utf(), source.utf()) if self._version >= _NAMES_SINCE else ("", "")
        operator_id = source.take(16).hex()
        parallelism, max_parallelism = source.int32(), source.int32()
        if not 1 <= max_parallelism <= 1 << 15:
            raise source.corrupt(f"an operator has {max_parallelism} key groups.")
        unread = ["the state of its coordinator"] if self._stream() is not None else []
        keyed: list[KeyGroupsHandle] = []
        states: list[OperatorStateHandle] = []
        subtasks = source.int32()
        if subtasks > source.remaining:
            raise source.corrupt(f"{subtasks} subtasks should follow, for which there is no room.")
        for _ in range(subtasks):  # -1 for an operator that has finished
            if source.int32() >= 0:  # a negative number for a subtask that has finished
                self._subtask(keyed, states, unread)
        found = tuple(dict.fromkeys(unread))
        return FlinkOperator(
            operator_id, uid or None, name or None, parallelism, max_parallelism, tuple(keyed), tuple(states), found
        )

    def _subtask(self, keyed: list[KeyGroupsHandle], states: list[OperatorStateHandle], unread: list[str]) -> None:
        if self._in.int32() != 0:
            handle = self._operator_state()
            if handle is not None:
                states.append(handle)
        if self._in.int32() != 0 and self._operator_state() is not None:
            unread.append("raw operator state")
        found = self._keyed()
        if found is not None:
            keyed.append(found)
        if self._keyed(is_raw=True) is not None:
            unread.append("raw keyed state")
        for direction in ("input", "output"):
            if self._in.int32() != 0:
                raise ConfigurationError(
                    f"File {self._in.path!r} has data in flight ({direction} channels), so it is an unaligned "
                    "checkpoint. Take a savepoint in the canonical format: flink savepoint --type canonical JOB."
                )

    def _keyed(self, is_raw: bool = False) -> KeyGroupsHandle | None:
        source = self._in
        kind = source.byte()
        if kind == 0:
            return None
        if kind not in ((3, 7, 12) if is_raw else (7,)):
            raise ConfigurationError(
                f"File {source.path!r} has keyed state in a format of one state backend (handle {kind}). Take a "
                "savepoint in the canonical format: flink savepoint --type canonical JOB."
            )
        first, count = source.int32(), source.count(8)
        if first < 0 or first + count > 1 << 15:
            raise source.corrupt(f"{count} key groups should follow from {first} on.")
        offsets = tuple(source.long() for _ in range(count))
        stream = self._stream()
        if kind == 12:
            source.utf()
        if stream is None:
            raise source.corrupt("a handle of keyed state has no file.")
        return KeyGroupsHandle(first, offsets, stream)

    def _operator_state(self) -> OperatorStateHandle | None:
        source = self._in
        kind = source.byte()
        if kind == 0:
            return None
        if kind != 4:
            raise source.corrupt(f"{kind} is no handle of operator state.")
        states = {}
        for _ in range(source.count(7)):
            name, mode = source.utf(), source.byte()
            if mode > 2:
                raise source.corrupt(f"{mode} is no way to deal out operator state.")
            offsets = tuple(source.long() for _ in range(source.count(8)))
            states[name] = Partitions(("split", "union", "broadcast")[mode], offsets)
        stream = self._stream()
        if stream is None:
            raise source.corrupt("a handle of operator state has no file.")
        return OperatorStateHandle(states, stream)

    def _stream(self) -> StreamHandle | None:
        source = self._in
        kind = source.byte()
        if kind == 0:
            return None
        if kind == 1:
            name = source.utf()
            return StreamHandle(f"{source.path}#{name}", False, source.take(source.int32()))
        if kind == 2:
            source.long()
            return StreamHandle(source.utf(), False)
        if kind == 6:
            path = source.utf()
            source.long()
            return StreamHandle(path, True)
        raise source.corrupt(f"{kind} is no handle of a file.")


class FlinkFiles:
    """Reads the files that a document names; in the savepoint's directory only."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory

    def read(self, stream: StreamHandle) -> tuple[bytes, str]:
        """Return the bytes of a handle, and their path.

        Raises:
            HoldfastError: They cannot be read, or the file is outside the directory.
        """
        if stream.data is not None:
            return stream.data, stream.path
        if not stream.is_relative:
            raise ConfigurationError(
                f"The savepoint of Flink names the file {stream.path!r:.500}, which is not its own. Take one in the "
                "canonical format, which has all of its files."
            )
        if not stream.path or "/" in stream.path or "\0" in stream.path or stream.path in (".", ".."):
            raise CorruptFileError(self.directory, None, f"{stream.path!r:.200} is no file of a savepoint.")
        path = join(self.directory, stream.path)
        return self._fs.read(path), path


# Flink's operator ids: MurmurHash3 of 128 bits of the uid.


def operator_id_of(uid: str) -> str:
    """Return the 32 hexadecimal digits of an operator with a uid."""
    data = uid.encode("utf-8", "replace")
    first = second = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        first ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        first = (_turned(first, 27) + second) * 5 + 0x52DCE729 & _MASK
        second ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        second = (_turned(second, 31) + first) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    second ^= _mixed(int.from_bytes(tail[8:], "little"), _C2, 33, _C1)
    first ^= _mixed(int.from_bytes(tail[:8], "little"), _C1, 31, _C2)
    first, second = first ^ len(data), second ^ len(data)
    first = first + second & _MASK
    second = second + first & _MASK
    first, second = _final(first), _final(second)
    first = first + second & _MASK
    second = second + first & _MASK
    return (first.to_bytes(8, "little") + second.to_bytes(8, "little")).hex()


def _mixed(part: int, before: int, turns: int, after: int) -> int:
    return _turned(part * before & _MASK, turns) * after & _MASK


def _turned(value: int, turns: int) -> int:
    return (value << turns | value >> 64 - turns) & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
