import pickle
import re

import pytest

from holdfast.errors import ConfigurationError
from holdfast.kernel.ids import JobID, JobVertexID, OperatorID, new_nonce


def test_a_job_id_is_read_and_written_as_32_hexadecimal_digits():
    text = "00112233445566778899aabbccddeeff"
    assert JobID.from_hex(text.upper()).to_hex() == text == str(JobID(text))
    assert pickle.loads(pickle.dumps(JobID(text))) == JobID(text)


@pytest.mark.parametrize("text", ["", "xyz", "0" * 31, "0" * 33, "g" * 32])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigurationError, match="32 lower-case hexadecimal digits"):
        JobID(text)


def test_ids_from_names_are_stable_for_ever():
    # They name directories: a change would hide every job's checkpoints from the next release.
    assert str(JobID.from_name("flights")) == str(JobID.from_name("flights"))
    assert str(JobID.from_name("flights")) == "a63e8f6ff1a65683a761f628ceb6e602"
    assert str(OperatorID.from_uid("count")) == "a1f152fed39a02e376850bcfa9f53b30"
    assert JobID.from_name("flights") != JobID.from_name("Flights")


def test_ids_of_different_kinds_differ():
    text = "0" * 32
    assert JobID(text) != JobVertexID(text)
    assert len({JobID(text), OperatorID(text), JobVertexID(text)}) == 3


def test_random_ids_and_nonces_differ():
    assert JobID() != JobID()
    assert len({new_nonce() for _ in range(1000)}) == 1000
    assert re.fullmatch("[0-9a-f]{12}", new_nonce())
