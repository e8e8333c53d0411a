"""The mark of an upload that a task had begun when it died: it names what is aborted, and is removed.

The files are local ones; what is asked of the store is written out as ever, and answered here instead of by one.
"""

import os
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.awsrequest import AWSResponse

from holdfast.datastream.sinks.output_directory import ObjectStoreOutputDirectory
from holdfast.storage.local import LocalFileSystem
from holdfast.storage.object_store import S3Options
from holdfast.storage.uploads import Uploads
from tests.fuzz.document import directory, replaced, sealed

ROOT = str(directory() / "bucket")
NAME = "000001-000000007-0-sink-0-000000000000.staged"
KEY = "lake/out/"


class _Content:
    """What a store answers."""

    def stream(self) -> Any:
        yield b'<?xml version="1.0"?><ListMultipartUploadsResult></ListMultipartUploadsResult>'


def _answered(request: Any, **_: Any) -> AWSResponse:
    path = unquote(urlsplit(request.url).path)
    assert path in ("/bucket", "/bucket/"), f"{path} is no part of what is asked for"
    return AWSResponse(request.url, 200, {}, _Content())


@cache
def uploads() -> Uploads:
    """Of a store that has none."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    options = S3Options(endpoint="http://127.0.0.1:1", access_key="a", secret_key="b", region="us-east-1")
    made = Uploads("bucket", options)
    made._client.meta.events.register("before-send.s3", _answered)
    return made


class _Bucket(ObjectStoreOutputDirectory):
    """Its files are local."""

    def __init__(self) -> None:
        super().__init__(ROOT)
        self._fs = LocalFileSystem()

    @property
    def _uploads(self) -> Any:
        return _Renamed()


class _Renamed:
    """Tells the store of an object what is asked of a local file."""

    def abort_all(self, uri: str) -> None:
        assert uri.startswith(f"{ROOT}/") and ".." not in uri.split("/")
        uploads().abort_all(uri.replace(ROOT, f"s3://bucket/{KEY.rstrip('/')}", 1))


def parse(data: bytes) -> None:
    file = directory() / "bucket" / "folder" / NAME
    replaced(file, sealed("staged-upload", 1, data))
    assert _Bucket().discard("folder", NAME)
    assert not file.exists()
    assert not _Bucket().discard("folder", NAME)
