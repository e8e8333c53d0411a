"""Types as users write them, and schemas of Avro from files."""

from holdfast.errors import ConfigurationError
from holdfast.types.avro import avro_type
from holdfast.types.type_parser import to_type


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        str(to_type(text))
        return
    except ConfigurationError:
        str(avro_type(text))
