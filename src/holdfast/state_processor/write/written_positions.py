"""The positions of sources in a savepoint, with the files that the sources need."""

from __future__ import annotations

from typing import Any, Final

import xxhash

from holdfast.kernel import fault
from holdfast.state_processor.bootstrap.source_positions import SourcePositions
from holdfast.state_processor.write.operator_writing import SavepointTarget
from holdfast.storage.file_system.path import join
from holdfast.storage.file_system.scheme import file_system_for
from holdfast.storage.job.job_directory import SHARED
from holdfast.storage.job.naming import FileName

_OWNER: Final = "source"
_SUFFIX: Final = ".src"


def written_positions(positions: SourcePositions, target: SavepointTarget) -> dict[str, Any]:
    """Write what sources remember, and return what the document says of all of it. Blocks.

    Static inputs of the job have not been read.

    Raises:
        StorageError: Something could not be written.
    """
    fs = file_system_for(target.root)
    handles = {}
    for name, content in positions.files.items():
        path = f"{SHARED}/{FileName.new(target.token, target.epoch, 0, _OWNER, 0).format(_SUFFIX)}"
        with fault.point("source.copy"):
            fs.create_exclusive(join(target.root, path), content)
        handles[name] = {"path": path, "size": len(content), "digest": xxhash.xxh3_64_hexdigest(content)}
    return {"streaming": {**positions.streaming, "sources": handles}, "static": []}
