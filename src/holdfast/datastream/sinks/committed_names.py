"""Names of committed output: what the evidence of an epoch in a target says about each committable.

A target that takes an epoch in one write records with it which staged files were in that write. So a committer that is
offered others of the same epoch commits them as well, and does not mistake them for committed ones. That happens if a
committer that wraps another one hands its requests on in parts, or if an older release has done so and died.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import xxhash

from holdfast.errors import ConfigurationError
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.function.sink import CHECKSUM, CommitRequest
from holdfast.storage.file_system import base_name
from holdfast.storage.job_directory import FileName


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
