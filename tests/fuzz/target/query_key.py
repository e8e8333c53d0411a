"""Keys as somebody types them after `holdfast query`, for states with keys of every type."""

from holdfast.cli.query import parse_key
from holdfast.errors import HoldfastError
from holdfast.queryable.client.client_core import _keys
from holdfast.types.key_codec import key_codec_for
from holdfast.types.type_parser import to_type

TYPES = ("string", "char(3)", "binary", "boolean", "tinyint", "bigint", "double", "float", "date", "timestamp",
         "timestamp_ntz", "decimal(38,18)", "interval day to second", "a string, b bigint, c date",
         "a struct<b: decimal(5,2), c: timestamp>")  # fmt: skip
CODECS = [key_codec_for(None), *(key_codec_for(to_type(kind)) for kind in TYPES)]


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    refused = 0
    for codec in CODECS:
        try:
            keys, _ = _keys(codec, [parse_key(codec, text)], "wanted")
            codec.hash(keys[0])
            assert codec.dict_key(codec.user_key(keys[0])) == keys[0]
        except HoldfastError:
            refused += 1
    if refused == len(CODECS):
        raise HoldfastError("no state has such a key")
