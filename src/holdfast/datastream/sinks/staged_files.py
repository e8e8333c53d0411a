"""Staged files in the job's own directory (`taskowned/`): read and checked by committers, deleted by sweeps.

They stay where they are after the commit, unlike those of `ParquetFileSink`: as long as a checkpoint names them they
can be committed again. Their committables are `{"file": name, "rows": n, "bytes": n, "checksum": text}`.

A target that takes an epoch in one write records with it which staged files were in that write (`names_of_epoch`). So a
committer that is offered others of the same epoch commits them as well, and does not mistake them for committed ones.
That happens if a committer that wraps another one hands its requests on in parts, or if an older release has done so
and died.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from holdfast.errors import ConfigurationError, CorruptFileError, StorageError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.sink import CHECKSUM, CommitRequest, CommitterInitContext
from holdfast.storage.file_system import base_name, join
from holdfast.storage.job_directory import FileName
from holdfast.storage.scheme import file_system_for

_CHUNK_BYTES: Final = 1 << 20


def foreign_committables_error(sink: str, committables: Any, error: Exception) -> ConfigurationError:
    """Return the error for committables of a checkpoint that this kind of sink cannot have made."""
    return ConfigurationError(
        f"The checkpoint names output that no {sink} can have written, {reprlib.repr(committables)}: {error!r:.200}. "
        "Nothing was committed. If a sink of another kind had this uid before, give the new one a uid of its own, and "
        "let the old one commit its output first, or drop it (-n). Otherwise the checkpoint was changed: start from "
        "another one (-s PATH)."
    )


def staged_paths(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[str]:
    """Return the paths of the files of these requests, in their order.

    Raises:
        ConfigurationError: A sink of another kind has made the committables.
    """
    try:
        for request in requests:
            if FileName.parse(request.committable["file"]) is None:
                raise ValueError("it is not the name of a staged file")
    except PARSE_ERRORS as error:
        sink = f"sink like {context.uid!r}"
        raise foreign_committables_error(sink, [request.committable for request in requests], error) from error
    return [join(context.staging_dir, request.committable["file"]) for request in requests]


def verified_paths(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[str]:
    """Return the paths of the files of these requests after verifying their checksums. Blocks.

    Raises:
        ConfigurationError: A sink of another kind has made the committables.
        CorruptFileError: A checksum differs: rows may be wrong, and no retry can help.
    """
    paths = staged_paths(context, requests)
    for path, request in zip(paths, requests, strict=True):
        # Files that older versions staged have no checksum.
        if CHECKSUM in request.committable and request.committable[CHECKSUM] != _checksum(path):
            raise CorruptFileError(
                path,
                None,
                f"its checksum differs from the one in the checkpoint. The sink {request.uid!r} has not committed "
                f"epoch {request.epoch}.",
            )
    return paths


def staged_rows(context: CommitterInitContext, requests: Sequence[CommitRequest]) -> list[pa.Table]:
    """Read the Parquet files of these requests, in their order. Blocks.

    Raises:
        StorageError: A file cannot be read.
        CorruptFileError: A checksum differs.
    """
    return list(map(read_rows, verified_paths(context, requests)))


def read_rows(path: str) -> pa.Table:
    """Read and validate the rows of a staged file. Blocks.

    Raises:
        StorageError: It cannot be read, or has invalid UTF-8.
    """
    with open_staged_file(path) as file:
        rows = pq.read_table(file)
        rows.validate(full=True)
        return rows.select(rows.column_names)


@contextmanager
def open_staged_file(path: str) -> Iterator[BinaryIO]:
    """Open a staged file, and name it in errors of Parquet readers. Blocks.

    Raises:
        StorageError: It cannot be read.
    """
    with file_system_for(path).open_input(path) as file:
        try:
            yield file
        except (pa.ArrowException, OSError, *PARSE_ERRORS) as error:
            raise StorageError(f"The staged file {path!r} cannot be read: {error!s:.500}") from error


def _checksum(path: str) -> str:
    found = xxhash.xxh3_64()
    with file_system_for(path).open_input(path) as file:
        while data := file.read(_CHUNK_BYTES):
            found.update(data)
    return str(found.hexdigest())


def sweep_staged_files(context: CommitterInitContext, is_dead: Callable[[FileName], bool]) -> int:
    """Delete the files that dead attempts of one sink have staged; return how many."""
    fs = file_system_for(context.staging_dir)
    swept = 0
    for listed in fs.list_names(context.staging_dir):
        name = FileName.parse(listed)
        if name is not None and name.owner == context.owner and is_dead(name):
            swept += fs.delete_in(context.staging_dir, listed)
    return swept


def name_of(committable: Any) -> str:
    """Return the name of a committable in the evidence.

    Beside the output, it is the nonce of the staged file. A file in the directory of the job gets another one when a
    job starts from the checkpoint of another job, so its name is its subtask and its checksum.
    """
    file = base_name(str(committable["staged"] if "staged" in committable else committable["file"]))
    found = FileName.parse(file)
    if found is None:
        return str(xxhash.xxh3_64_hexdigest(file.encode()))
    if "staged" in committable:
        return found.nonce
    # Older releases have staged files without a checksum.
    content = committable.get(CHECKSUM) or f"{committable.get('rows')}-{committable.get('bytes')}"
    return f"{found.subtask}-{content}"


def not_recorded(requests: Sequence[CommitRequest], recorded: Collection[str] | None) -> list[CommitRequest]:
    """Return the requests whose output is not committed, although the target has recorded their epoch.

    Args:
        requests: Requests of one epoch, in any part of its committables.
        recorded: The names that the target has recorded with the epoch; None if an older release has recorded none, so
            that the whole epoch counts as committed.

    Raises:
        ConfigurationError: The target has recorded other committables only.
    """
    if recorded is None:
        return []
    left = [request for request in requests if name_of(request.committable) not in recorded]
    if left and not names_of_epoch(requests).intersection(recorded):
        first = requests[0]
        raise ConfigurationError(
            f"The target of the sink {first.uid!r} has other output of epoch {first.epoch} of the incarnation "
            f"{first.incarnation!r} than the one to commit now: two copies of one job directory are running, or it was "
            "restored from a copy, so the rows of this epoch would be duplicated or lost. Nothing was committed. Start "
            "with -s from the checkpoint, which begins a new incarnation. A committer that wraps the one of this sink "
            "must hand on the same requests that it gets."
        )
    return left


def names_of_epoch(requests: Sequence[CommitRequest]) -> set[str]:
    """Return the names of these requests, and of the other committables of their epoch as far as they are known."""
    names = {name_of(request.committable) for request in requests}
    for committable in requests[0].epoch_committables:
        with suppress(*PARSE_ERRORS):  # of a committer that wraps the one of the sink, and makes requests anew
            names.add(name_of(committable))
    return names


def require_whole_epoch(requests: Sequence[CommitRequest], what: str) -> None:
    """Check that these are all requests of their epoch, for a target that does not record which ones it has.

    Raises:
        ConfigurationError: Some are missing.
    """
    offered = {name_of(request.committable) for request in requests}
    left = names_of_epoch(requests) - offered
    if left:
        first = requests[0]
        raise ConfigurationError(
            f"{what} commits an epoch in one call, and was offered {len(offered)} of {len(offered | left)} "
            f"committables of epoch {first.epoch} of the sink {first.uid!r}. Nothing of the epoch was committed. A "
            "committer that wraps the one of this sink must hand on all requests of an epoch in one call."
        )
