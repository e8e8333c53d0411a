"""The document of a checkpoint comes back as it was written, or one clear error names the file."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorMetadata, decode, encode
from holdfast.errors import CorruptFileError, FormatVersionError
from holdfast.storage.state_handle import encode_document
from tests.examples import examples
from tests.unit.checkpoint.support import document, run_handle, with_operator

PATH = "/checkpoints/job/chk-7/_metadata"
SAMPLE = with_operator(
    document(7, 12, runs=[run_handle("a.run"), run_handle("b.run", epoch=12)]),
    states={"count": {"kind": "value", "type": "bigint"}},
    subtasks=({"subtask": 0, "watermark": None}, {"subtask": 1, "watermark": 5}),
    committables={"out": [{"epoch": 12, "subtask": 0, "value": {"path": "x"}}]},
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i), max_leaves=5)  # fmt: skip  # noqa: E501


def test_a_document_comes_back_as_it_was_written():
    assert decode(encode(SAMPLE), PATH) == SAMPLE


@given(positions=JSON, extra=st.dictionaries(st.text(), JSON), uid=st.text(), states=st.dictionaries(st.text(), JSON))
@settings(max_examples=examples(50))
def test_whatever_users_put_in_comes_back(positions, extra, uid, states):
    metadata = replace(with_operator(SAMPLE, uid=uid, states=states), source_positions=positions, extra=extra)
    assert decode(encode(metadata), PATH) == metadata


def test_the_fields_that_checks_outside_rely_on_are_there():
    fields = json.loads(encode(SAMPLE))
    assert {
        "format_version", "job_id", "job_name", "checkpoint_id", "epoch", "token", "lineage", "completed_at",
        "processing_time", "operators", "source_positions", "checksum",
    } <= fields.keys()  # fmt: skip
    assert {"uid", "operator_id", "name", "parallelism", "max_parallelism", "key", "runs", "states"} <= fields[
        "operators"
    ][0].keys()
    assert fields["operators"][0]["runs"][0]["path"] == "shared/a.run"


def test_every_flipped_bit_is_refused_with_the_file():
    data = encode(SAMPLE)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises((CorruptFileError, FormatVersionError), match=PATH):
            decode(bytes(damaged), PATH)


def test_every_truncation_is_refused_with_the_file():
    data = encode(SAMPLE)
    for length in range(len(data)):
        with pytest.raises(CorruptFileError, match=PATH):
            decode(data[:length], PATH)


def test_a_newer_version_is_told_from_damage():
    fields = json.loads(encode(SAMPLE))
    del fields["checksum"], fields["kind"], fields["format_version"]
    with pytest.raises(FormatVersionError, match="version 2"):
        decode(encode_document("checkpoint", 2, fields), PATH)


def all_fields():
    fields = json.loads(encode(SAMPLE))
    for name in ("checksum", "kind", "format_version"):
        del fields[name]
    return fields


WRONG = {
    "job_id": [None, 7],
    "checkpoint_id": ["7", None, 0, -3, 7.0, True],
    "epoch": ["12", None],
    "token": [-1, "x"],
    "completed_at": ["now"],
    "operators": [None, {}, [1], [{}], [{"uid": "x"}]],
    "properties": [None, []],
    "master_states": [[]],
    "extra": [
        1,
        {"event_time": {"reached": {"a": "1"}}},
        {"event_time": {"generators": {"a": 1}}},
        {"event_time": {"generators": {"a": {"-1": "gA=="}}}},
        {"event_time": {"generators": {"a": {"0": 1}}}},
    ],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_of_a_wrong_type_is_refused_with_file_and_field(field, value):
    with pytest.raises(CorruptFileError, match=PATH) as caught:
        decode(encode_document("checkpoint", 1, all_fields() | {field: value}), PATH)
    assert field in str(caught.value)


@pytest.mark.parametrize("field", sorted(all_fields()))
def test_a_missing_field_is_refused_with_its_name(field):
    fields = all_fields()
    del fields[field]
    with pytest.raises(CorruptFileError, match=f"{field!r} is missing"):
        decode(encode_document("checkpoint", 1, fields), PATH)


def test_a_field_that_nobody_knows_is_refused():
    with pytest.raises(CorruptFileError, match="'surprise'"):
        decode(encode_document("checkpoint", 1, all_fields() | {"surprise": 1}), PATH)


WRONG_RUNS = [{}, {"path": 5}, {"key_groups": [1]}, {"size": "5"}, {"rows": None}, {"least_timers": 3}]


@pytest.mark.parametrize("changes", WRONG_RUNS)
def test_a_run_with_a_wrong_field_is_refused_with_its_place(changes):
    fields = all_fields()
    run = fields["operators"][0]["runs"][1]
    fields["operators"][0]["runs"][1] = run | changes if changes else {}
    with pytest.raises(CorruptFileError, match=r"operators\[0\]: runs\[1\]"):
        decode(encode_document("checkpoint", 1, fields), PATH)


def test_an_operator_with_a_wrong_field_is_refused_with_its_place():
    for changes in ({"parallelism": 0}, {"max_parallelism": "128"}, {"committables": {"out": 5}}, {"subtasks": {}}):
        fields = all_fields()
        fields["operators"][0] |= changes
        with pytest.raises(CorruptFileError, match=r"operators\[0\]"):
            decode(encode_document("checkpoint", 1, fields), PATH)


def test_sizes_and_texts_are_counted():
    assert SAMPLE.state_size == 10
    assert SAMPLE.new_size == 5
    assert {"shared/a.run", "shared/b.run", "x"} <= set(SAMPLE.strings())
    assert SAMPLE.operator("counter") is SAMPLE.operators[0]
    assert SAMPLE.operator("other") is None


def test_a_large_document_is_handled_whole():
    runs = tuple(run_handle(f"{index}.run") for index in range(20_000))
    metadata = with_operator(SAMPLE, runs=runs)
    assert len(decode(encode(metadata), PATH).operators[0].runs) == 20_000


def test_an_empty_job_has_a_document():
    metadata = CheckpointMetadata("0" * 32, "", 1, 0, 0, "", 0, 0)
    assert decode(encode(metadata), PATH) == metadata
    assert not metadata.is_savepoint
    assert OperatorMetadata("u", "i", "n", 1, 1).state_size == 0
