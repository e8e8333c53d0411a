"""`_metadata` with a checksum that is right, and what a restore, a listing and a sweep ask of it."""

from contextlib import suppress

from holdfast.checkpoint.completed_checkpoint import CompletedCheckpoint, pointer_for
from holdfast.checkpoint.metadata import decode
from holdfast.errors import StateMigrationError
from holdfast.runtime.commit.uncommitted import merge_committables, with_incarnation
from holdfast.state.operator_snapshot import FORMAT_VERSION, OperatorSnapshot
from holdfast.state.version import StateVersion
from holdfast.types.key_codec import codec_from_json
from tests.fuzz.document import PATH, sealed


def parse(data: bytes) -> None:
    document = sealed("checkpoint", 1, data)
    metadata = decode(document, PATH)
    completed = CompletedCheckpoint(metadata, PATH, pointer_for(metadata, document, PATH))
    completed.get_state_size()
    completed.should_be_discarded_on_shutdown("FINISHED")
    assert metadata.new_size <= metadata.state_size
    list(metadata.strings())
    with_incarnation(merge_committables(metadata.operators), metadata.incarnation)
    for operator in metadata.operators:
        version = StateVersion(operator.runs)
        version.least_timer("event")
        assert len(version.lineage.positions) > 0
        hash(operator.runs)
        for part in operator.subtasks:
            if part is not None and "states" in part and part["format_version"] <= FORMAT_VERSION:
                OperatorSnapshot.from_json(part).paths()
        # The program says of what type its keys are; what is not that type is refused by uid.
        with suppress(StateMigrationError):
            codec_from_json(operator.key)
