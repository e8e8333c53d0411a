"""What arrives at a query server before anybody knows who sends it, however it is cut into pieces."""

import random

from holdfast.queryable.wire.frame import FrameReader


def parse(data: bytes) -> None:
    chance, reader, at = random.Random(len(data)), FrameReader(1 << 16), 0
    while at < len(data):
        step = chance.choice((1, 3, 20, 400))
        for frame in reader.feed(data[at : at + step]):
            frame.fields()
        assert reader.pending_bytes() <= (1 << 16) + 4
        at += step
