"""Frames: whatever a network does to them, what was sent arrives whole, and what is no frame is refused at once."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.queryable.wire.errors import LimitExceededError, ProtocolError, QueryError
from holdfast.queryable.wire.frame import MAX_HEADER, VERSION, Frame, FrameReader, FrameType, encode

FRAMES = st.builds(
    Frame, st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=200), st.binary(max_size=2000)
)
LIMIT = 100_000


def in_pieces(data, cuts):
    at = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        yield data[at:cut]
        at = cut


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 20_000), max_size=12))
def test_frames_arrive_whole_and_in_order_however_they_are_cut(frames, cuts):
    reader = FrameReader(LIMIT)
    data = b"".join(encode(*frame) for frame in frames)

    arrived = [frame for piece in in_pieces(data, cuts) for frame in reader.feed(piece)]

    assert arrived == frames
    assert reader.pending_bytes() == 0


@given(st.binary(max_size=5000), st.lists(st.integers(0, 5000), max_size=5))
def test_noise_is_refused_or_kept_within_the_limit(noise, cuts):
    reader = FrameReader(1000)
    try:
        for piece in in_pieces(noise, cuts):
            reader.feed(piece)
            assert reader.pending_bytes() <= 1004
    except QueryError:
        pass


@given(FRAMES, st.integers(0, 20), st.integers(1, 255))
def test_a_changed_prefix_is_never_taken_for_more_than_one_frame(frame, position, change):
    data = bytearray(encode(*frame))
    data[position] ^= change
    reader = FrameReader(LIMIT)
    try:
        assert len(reader.feed(bytes(data))) <= 1
    except QueryError:
        assert position < 8 or 17 <= position <= 20


def test_a_frame_above_the_limit_is_refused_before_it_has_arrived():
    reader = FrameReader(1000)
    with pytest.raises(LimitExceededError, match="1001 bytes is above the limit of 1000"):
        reader.feed(struct.pack(">I", 1001))


def test_another_version_is_refused():
    with pytest.raises(ProtocolError, match="0x79a1b710"):
        FrameReader(1000).feed(struct.pack(">IIBQI", 17, 0x79A1B710, 4, 1, 0))


def test_a_header_that_is_longer_than_its_message_is_refused():
    for header in (1, MAX_HEADER + 1, 2**32 - 1):
        with pytest.raises(ProtocolError, match="cannot have a header"):
            FrameReader(LIMIT).feed(struct.pack(">IIBQI", 17, VERSION, 4, 1, header))


@pytest.mark.parametrize("header", [b"", b"[]", b"1", b'{"a"', b"\xff", b"[" * 60_000, b"null"])
def test_a_header_that_is_no_object_is_refused(header):
    with pytest.raises(ProtocolError):
        Frame(4, 1, header, b"").fields()


def test_a_request_with_a_header_that_no_server_takes_is_not_sent():
    with pytest.raises(LimitExceededError, match="names, namespace or conditions are too long"):
        encode(FrameType.GET, 1, b"x" * (MAX_HEADER + 1))


def test_the_header_of_an_answer_may_be_long():
    """It describes each column of a state."""
    long = b"x" * (MAX_HEADER + 1)
    answer = encode(FrameType.RESULT, 1, long)
    [frame] = FrameReader(LIMIT * 100, header_limit=None).feed(answer)
    assert frame.header == long
    with pytest.raises(ProtocolError):
        FrameReader(LIMIT * 100).feed(answer)


def test_numbers_that_json_does_not_have_are_refused():
    for number in (b"NaN", b"-Infinity"):
        with pytest.raises(ProtocolError):
            Frame(4, 1, b'{"deadline":' + number + b"}", b"").fields()
