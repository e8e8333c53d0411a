"""A million messages of all kinds of nonsense: each gets an answer or ends its connection, and the server goes on."""

import json
import random
import resource
import time
from collections import Counter
from contextlib import suppress

import pytest

from holdfast.queryable.wire.errors import ProtocolError
from holdfast.queryable.wire.frame import FrameType, encode, to_header
from tests.unit.queryable.test_safety import ANSWERS, Target, a_get

MESSAGES = 1_000_000
NAMES = ("job", "state", "count", "consistency", "namespace", "map_keys", "id", "where", "key_groups", "batch_rows",
         "local", "waits", "address", "states", "token")  # fmt: skip


class Nonsense:
    """Makes messages: frames of noise, requests with wrong fields, damaged requests, and plain noise."""

    def __init__(self, job, seed):
        self.random = random.Random(seed)
        self.good = a_get(job)
        self.fitting = {"job": str(job.job_id), "state": "text", "count": 1}
        self.makers = (self.frame_of_noise, self.request_with_wrong_fields, self.damaged_request, self.noise)

    def next(self):
        """One message, and the kind that it is of."""
        [maker] = self.random.choices(self.makers, (30, 35, 25, 10))
        return maker.__name__, maker()

    def frame_of_noise(self):
        chance = self.random
        return encode(chance.randrange(256), chance.getrandbits(63), self.bytes(40), self.bytes(20))

    def request_with_wrong_fields(self):
        chance = self.random
        fields = {name: self.scrap(3) for name in chance.sample(NAMES, chance.randrange(8))} | {"deadline": 0}
        fields |= {name: self.fitting[name] for name in chance.sample(sorted(self.fitting), chance.randrange(4))}
        return encode(chance.choice(list(FrameType)), 5, to_header(fields), self.bytes(60))

    def damaged_request(self):
        broken = bytearray(self.good)
        for _ in range(self.random.randrange(1, 5)):
            broken[self.random.randrange(21, len(broken))] = self.random.randrange(256)
        return bytes(broken)

    def noise(self):
        return self.bytes(80) or b"\0"

    def bytes(self, most):
        return self.random.randbytes(self.random.randrange(most))

    def scrap(self, depth):
        chance = self.random
        kind = chance.randrange(8 if depth else 6)
        if kind == 6:
            return [self.scrap(depth - 1) for _ in range(chance.randrange(4))]
        if kind == 7:
            return {str(chance.randrange(3)): self.scrap(depth - 1)}
        return (None, chance.random() < 0.5, chance.randrange(-(2**65), 2**65), chance.random(), "text",
                "".join(map(chr, chance.choices(range(32, 0x2FF), k=chance.randrange(20)))))[kind]  # fmt: skip


@pytest.mark.soak
def test_a_million_messages_of_all_kinds_of_nonsense(tmp_path):
    target = Target(tmp_path)
    nonsense, counts = Nonsense(target.job, 20_000), Counter()
    started, memory = time.monotonic(), None
    for number in range(MESSAGES):
        kind, data = nonsense.next()
        counts[kind] += 1
        frames = []
        with suppress(OSError, ProtocolError):
            target.open().sendall(data)
            # Plain noise may say of itself that it is longer than it is: then the server waits for the rest.
            frames = [] if kind == "noise" else target.answers(1)
            assert frames or kind == "noise", data
        counts.update(FrameType(frame.type).name for frame in frames)
        assert all(frame.type in ANSWERS for frame in frames)
        if not frames or frames[0].type in (FrameType.SERVER_FAILURE, FrameType.BATCH):
            target.close()
        if number % 10_000 == 0:
            target.check()
        if number == MESSAGES // 10:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target.check()
    seconds = time.monotonic() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    print(json.dumps({"messages": MESSAGES, "seconds": round(seconds), "grown_kib": grown, **counts}))
    assert grown < 100_000, "what was said to the server remains in its memory"
    until = time.monotonic() + 60
    target.close()
    while len(target.server._service._connections) > 1:  # the neighbour's
        assert time.monotonic() < until, "connections of those who have left remain"
        time.sleep(0.05)
    target.end()
