"""A document is read as it was written or refused: no flipped bit, no missing byte gets through."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptFileError, FormatVersionError
from holdfast.storage.state_handle import decode_document, encode_document
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NAMES = st.text().filter(lambda name: name not in ("checksum", "kind", "format_version"))
SAMPLE = encode_document("sample", 1, {"name": "Zoë", "list": [1, 2.5, None], "inner": {"checksum": "sha256:0"}})


@given(st.dictionaries(NAMES, JSON))
def test_what_was_written_is_read(body):
    assert decode_document(encode_document("sample", 3, body), "p", "sample", 3) == body


@given(st.dictionaries(NAMES, JSON), st.data())
@settings(max_examples=examples(50))
def test_no_flipped_bit_gets_through(body, data):
    document = bytearray(encode_document("sample", 1, body))
    at = data.draw(st.integers(0, len(document) - 1))
    document[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptFileError, FormatVersionError), match="the-path"):
        decode_document(bytes(document), "the-path", "sample", 1)


def test_no_flipped_bit_of_a_sample_gets_through():
    for at in range(len(SAMPLE)):
        for bit in range(8):
            damaged = bytearray(SAMPLE)
            damaged[at] ^= 1 << bit
            with pytest.raises(CorruptFileError, match="the-path"):
                decode_document(bytes(damaged), "the-path", "sample", 1)


def test_no_truncation_and_no_appendix_gets_through():
    for length in range(len(SAMPLE)):
        with pytest.raises(CorruptFileError, match="the-path"):
            decode_document(SAMPLE[:length], "the-path", "sample", 1)
    with pytest.raises(CorruptFileError):
        decode_document(SAMPLE + b"\n", "the-path", "sample", 1)


def test_equal_bodies_give_equal_bytes_and_any_reader_of_json_reads_them():
    assert encode_document("k", 1, {"b": 1, "a": 2}) == encode_document("k", 1, {"a": 2, "b": 1})
    fields = json.loads(SAMPLE)
    assert (fields["kind"], fields["format_version"], fields["name"]) == ("sample", 1, "Zoë")
    assert next(iter(fields)) == "checksum"


def test_a_newer_version_is_told_from_damage():
    newer = encode_document("sample", 7, {})
    with pytest.raises(FormatVersionError, match="version 7") as caught:
        decode_document(newer, "the-path", "sample", 3)
    assert (caught.value.path, caught.value.found, caught.value.supported) == ("the-path", 7, 3)


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_a_version_that_is_none_is_refused(version):
    with pytest.raises(CorruptFileError, match="format version"):
        decode_document(encode_document("sample", version, {}), "p", "sample", 3)


def test_another_kind_is_refused():
    with pytest.raises(CorruptFileError, match="not a sample document"):
        decode_document(encode_document("other", 1, {}), "p", "sample", 1)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"[1]", b"PAR1 and more", b"\x00" * 200])
def test_what_is_no_document_is_refused(data):
    with pytest.raises(CorruptFileError):
        decode_document(data, "p", "sample", 1)


def test_what_is_no_json_is_not_written():
    with pytest.raises(ValueError, match="Out of range"):
        encode_document("sample", 1, {"x": float("nan")})
    with pytest.raises(TypeError):
        encode_document("sample", 1, {"x": object()})
