"""Keys in files: the bytes of composite keys and of keys without a declared type."""

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.types import tagged
from holdfast.types.key_codec import CompositeKeyCodec, TaggedKeyCodec, key_codec_for
from holdfast.types.type_parser import to_type

COMPOSITE = key_codec_for(to_type("a string, b bigint, c struct<d: date, e: decimal(20,2)>, f binary, g boolean"))
assert isinstance(COMPOSITE, CompositeKeyCodec)


def parse(data: bytes) -> None:
    refusals = []
    try:
        COMPOSITE.user_key(COMPOSITE.from_storage(pa.array([data], pa.binary()))[0])
    except HoldfastError as error:
        refusals.append(error)
    try:
        TaggedKeyCodec().user_key(data)
    except (HoldfastError, tagged.TaggedValueError) as error:
        refusals.append(error)
    if len(refusals) == 2:
        raise HoldfastError("neither reads it")
