"""A savepoint of Flink whose state is all in its document, as that of little state is: everything in it is read."""

import contextlib

from holdfast.errors import HoldfastError
from holdfast.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.state_processor.flink.metadata import FlinkFiles, read_metadata
from holdfast.state_processor.flink.operator import OperatorReader
from holdfast.storage.local import LocalFileSystem
from holdfast.types.types import Types
from tests.fuzz.document import PATH, directory

__all__ = ["PATH", "parse"]

DECLARED = [
    ValueStateDescriptor("pickled", Types.PICKLED_BYTE_ARRAY()),
    ValueStateDescriptor("row", Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])),
    ValueStateDescriptor("tags", Types.LIST(Types.STRING())),
    ValueStateDescriptor("map", Types.MAP(Types.STRING(), Types.LONG())),
    ListStateDescriptor("history", Types.LONG()),
    MapStateDescriptor("totals", Types.STRING(), Types.LONG()),
]
READS = {"split", "union", "broadcast"}


def parse(data: bytes) -> None:
    first: HoldfastError | None = None
    for operator in read_metadata(data, PATH).operators:
        reader = OperatorReader(operator, FlinkFiles(LocalFileSystem(), f"{PATH}/{directory().name}"))
        reader.problems()
        for name, kind in reader.states().items():
            try:
                if kind in READS:
                    reader.read_operator_state(name, kind)
                elif kind == "timers":
                    reader.read_timers()
                else:
                    reader.read(name)
            except HoldfastError as error:
                first = first or error
        for descriptor in DECLARED:
            with contextlib.suppress(HoldfastError):
                reader.read(descriptor)
    if first is not None:
        raise first
