"""A disk in memory that keeps only what was synced when the power fails.

A file has bytes, and those of its last sync. A directory has entries, and the changes to them that were not synced yet:
a power failure lets any of these survive or not, in no order, which is all that POSIX promises. A rename is one change
of two directories.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any


class File:
    """A file."""

    def __init__(self, now: float) -> None:
        self.data = b""
        self.synced: bytes | None = None
        self.mtime = now
        self.links = 0
        self._digest: tuple[bytes, str] = (b"", sha256(b"").hexdigest())

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes."""
        if self._digest[0] is not self.data:
            self._digest = (self.data, sha256(self.data).hexdigest())
        return self._digest[1]


class Change:
    """A change of directories that is not synced yet: for each its name, and what has that name then."""

    def __init__(self, *parts: tuple[Directory, str, Node | None]) -> None:
        self.parts = parts


class Directory:
    """A directory."""

    def __init__(self, now: float, above: Directory | None = None, name: str = "") -> None:
        self.above, self.name = above, name
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[Change] = []
        self.mtime = now


Node = File | Directory


class Disk:
    """The disk.

    Attributes:
        now: Gives the time of the file server in milliseconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.root = Directory(now())

    def find(self, path: str) -> Node:
        """What has a path.

        Raises:
            OSError: Nothing has.
        """
        node: Any = self.root
        try:
            for name in path.split("/"):
                if name:
                    node = node.entries[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None
        except AttributeError:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path) from None
        found: Node = node
        return found

    def file(self, path: str) -> File:
        """The file of a path."""
        node = self.find(path)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return node

    def directory(self, path: str) -> Directory:
        """The directory of a path."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def create(self, path: str) -> File:
        """A new, empty file."""
        above, name = self._free(path)
        file = File(self.now())
        self._change((above, name, file))
        return file

    def link(self, source: str, target: str) -> None:
        """A second name."""
        file = self.file(source)
        above, name = self._free(target)
        self._change((above, name, file))

    def unlink(self, path: str) -> None:
        """A name less."""
        self.file(path)
        above, name = self._above(path)
        self._change((above, name, None))

    def rename(self, source: str, target: str) -> None:
        """Another name; what has it goes."""
        file = self.file(source)
        old, old_name = self._above(source)
        new, new_name = self._above(target)
        self._change((old, old_name, None), (new, new_name, file))

    def make_directory(self, path: str) -> None:
        """A new directory."""
        above, name = self._free(path)
        self._change((above, name, Directory(self.now(), above, name)))

    def remove_directory(self, path: str) -> None:
        """An empty directory goes."""
        if self.directory(path).entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        above, name = self._above(path)
        self._change((above, name, None))

    def sync_directory(self, directory: Directory) -> None:
        """What was changed in a directory survives from now on, and so does the other half of each rename.

        So do the names of the directory and of those above it, as journals of file systems have it.
        """
        below = directory
        while below.above is not None and below.above.entries.get(below.name) is below:
            below.above.durable[below.name] = below
            below = below.above
        for change in directory.changes:
            for other, name, node in change.parts:
                _apply(other.durable, name, node)
                if other is not directory and change in other.changes:
                    other.changes.remove(change)
        directory.changes = []

    def lose_power(self, survives: Callable[[], bool], below: Callable[[int], int]) -> None:
        """Only what was synced is still there, and of the rest what is drawn."""
        changes: dict[int, Change] = {}
        nodes = list(self._all(self.root))
        for node in nodes:
            if isinstance(node, Directory):
                changes.update((id(change), change) for change in node.changes)
                node.changes = []
        for change in changes.values():
            if survives():
                for directory, name, node in change.parts:
                    _apply(directory.durable, name, node)
        for node in nodes:
            if isinstance(node, Directory):
                node.entries = dict(node.durable)
        for node in self._all(self.root):
            if isinstance(node, File) and node.synced != node.data:
                node.data = node.synced if node.synced is not None else node.data[: below(len(node.data) + 1)]
                node.synced = node.data

    def files(self, path: str) -> dict[str, File]:
        """All files below a directory, by path."""
        found: dict[str, File] = {}
        try:
            waiting = [(path.rstrip("/"), self.directory(path))]
        except OSError:
            return found
        while waiting:
            place, directory = waiting.pop()
            for name, node in directory.entries.items():
                if isinstance(node, File):
                    found[f"{place}/{name}"] = node
                else:
                    waiting.append((f"{place}/{name}", node))
        return found

    def _all(self, top: Directory) -> Iterator[Node]:
        seen: set[int] = set()
        waiting: list[Node] = [top]
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if isinstance(node, Directory):
                waiting += [*node.entries.values(), *node.durable.values()]
                waiting += [child for change in node.changes for _, _, child in change.parts if child is not None]

    def _change(self, *parts: tuple[Directory, str, Node | None]) -> None:
        change = Change(*parts)
        for directory, name, node in parts:
            before = directory.entries.get(name)
            if isinstance(before, File):
                before.links -= 1
            if isinstance(node, File):
                node.links += 1
            _apply(directory.entries, name, node)
            directory.mtime = self.now()
            if change not in directory.changes:
                directory.changes.append(change)

    def _above(self, path: str) -> tuple[Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self.directory(head or "/"), name

    def _free(self, path: str) -> tuple[Directory, str]:
        above, name = self._above(path)
        if name in above.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        return above, name


def _apply(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node
