"""The type of a state or of a key, as files and servers say it: no class is loaded, no default unpickled."""

import json
from typing import Any

from holdfast.kernel.parsing import check_nesting
from holdfast.types.key_codec import codec_from_json
from holdfast.types.opaque import seal_json
from holdfast.types.type_information import type_from_json


def parse(data: bytes) -> None:
    try:
        document: Any = json.loads(data)
        check_nesting(document)
    except (ValueError, RecursionError):
        return  # refused with the document or the message that it is a part of
    kind = type_from_json(seal_json(document))
    kind.arrow_type, kind.ddl, kind.to_json(), str(kind), hash(kind)
    codec = codec_from_json({"kind": "atomic", "type": seal_json(document)})
    codec.storage_type, codec.to_json()
