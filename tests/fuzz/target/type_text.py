"""Types as users write them, and schemas of Avro from files."""

from holdfast.errors import ConfigurationError
from holdfast.types.conversion.avro import avro_type
from holdfast.types.conversion.convert import to_type


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        str(to_type(text))
        return
    except ConfigurationError:
        str(avro_type(text))
