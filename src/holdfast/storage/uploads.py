"""Multipart uploads into an object store that one process begins and another one completes.

An upload is no object until it is completed, and completing it removes it: it is in one of two states, like a file that
is renamed. obstore can complete an upload only where it was begun, so this uses boto3, which comes with the same extra:
``pip install "holdfast[s3]"``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.storage.object_store import REQUESTS, S3Options, current_s3_options, endpoint_of

PART_BYTES: Final = 8 << 20
"""Stores take parts of at least 5 MiB, except the last one."""
_PARTS_BEFORE_LARGER_ONES: Final = 1000
"""An upload has at most 10,000 parts, so the size of a part doubles after each thousand."""
_LARGEST_COPY: Final = 5 << 30
"""The most that a store copies with one request."""
_COPIED_PART: Final = 1 << 30


class Uploads:
    """The incomplete uploads of one bucket.

    All methods block, and take the URI that the object will have.

    Args:
        bucket: The bucket; it must exist.
        options: How to reach the store.

    Raises:
        ConfigurationError: boto3 is not installed.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._client = _connect(bucket, options)

    def begin(self, uri: str) -> str:
        """Begin an upload; return its id."""
        return str(self._request("create_multipart_upload", uri)["UploadId"])

    def add(self, uri: str, upload: str, number: int, data: bytes | memoryview) -> None:
        """Send a part; the first one has number 1."""
        self._request("upload_part", uri, UploadId=upload, PartNumber=number, Body=bytes(data))

    def size(self, uri: str, upload: str) -> int | None:
        """Return the bytes of an upload; None if it was completed, aborted, or never begun."""
        try:
            return sum(int(part["Size"]) for part in self._parts(uri, upload))
        except NotExistError:
            return None

    def complete(self, uri: str, upload: str) -> bool:
        """Turn an upload into an object; return whether it was there."""
        try:
            parts = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in self._parts(uri, upload)]
            self._request("complete_multipart_upload", uri, UploadId=upload, MultipartUpload={"Parts": parts})
        except NotExistError:
            return False
        return True

    def abort_all(self, uri: str) -> None:
        """Abort every upload of exactly this URI."""
        key = self._key(uri)
        found = self._call("list uploads of", uri, "list_multipart_uploads", Bucket=self._bucket, Prefix=key)
        for upload in found.get("Uploads", ()):
            if upload["Key"] == key:
                with suppress(NotExistError):
                    self._request("abort_multipart_upload", uri, UploadId=upload["UploadId"])

    def copy(self, uri: str, target: str) -> None:
        """Copy an object to another URI of the bucket, within the store.

        Raises:
            NotExistError: There is no such object.
        """
        from boto3.s3.transfer import TransferConfig

        source = self._place(uri)
        parts = TransferConfig(multipart_threshold=_LARGEST_COPY, multipart_chunksize=_COPIED_PART, use_threads=False)
        place = self._place(target)
        self._call("copy to", target, "copy", CopySource=source, Config=parts, **place)

    @contextmanager
    def open_output(self, uri: str, upload: str) -> Iterator[BinaryIO]:
        """Open an upload for writing; it is aborted if the context is left with an error."""
        stream = _UploadStream(self, uri, upload)
        try:
            yield stream  # type: ignore[misc]
            stream.send_rest()
        except BaseException:
            with suppress(HoldfastError):
                self._request("abort_multipart_upload", uri, UploadId=upload)
            raise

    @contextmanager
    def open_object(self, uri: str) -> Iterator[BinaryIO]:
        """Open an object for writing; it appears when the context is left without an error.

        One that fits into a part takes one request, a larger one is an upload. No other process may use the name.
        """
        stream = _UploadStream(self, uri)
        try:
            yield stream  # type: ignore[misc]
            if stream.upload is None:
                self._request("put_object", uri, Body=stream.rest)
                return
            stream.send_rest()
            if not self.complete(uri, stream.upload):
                raise StorageError(f"Could not write {uri!r}: its upload is gone. The write is retried.")
        except BaseException:
            if stream.upload is not None:
                with suppress(HoldfastError):
                    self._request("abort_multipart_upload", uri, UploadId=stream.upload)
            raise

    def _parts(self, uri: str, upload: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        marker = 0
        while True:
            page = self._request("list_parts", uri, UploadId=upload, PartNumberMarker=marker)
            found += page.get("Parts", ())
            if not page.get("IsTruncated"):
                return found
            marker = page["NextPartNumberMarker"]

    def _request(self, operation: str, uri: str, **arguments: Any) -> Any:
        return self._call(operation.replace("_", " "), uri, operation, **self._place(uri), **arguments)

    def _place(self, uri: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(uri)}

    def _call(self, action: str, uri: str, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client, operation)(**arguments)
        except ClientError as error:
            raise _translate(error.response.get("Error", {}), action, uri, error) from error
        except (BotoCoreError, UnicodeEncodeError) as error:  # a name with half a character is no key
            raise StorageError(
                f"Could not {action} {uri!r}: {error}. Check the store, its endpoint and the credentials, then run "
                "the job again."
            ) from error

    def _key(self, uri: str) -> str:
        return uri.removeprefix(f"s3://{self._bucket}/")


class _UploadStream(io.RawIOBase):
    """Sends what is written in parts, with one part in memory; begins the upload if there is none.

    Attributes:
        upload: The id of the upload; None as long as there is none.
    """

    def __init__(self, uploads: Uploads, uri: str, upload: str | None = None) -> None:
        super().__init__()
        self._uploads = uploads
        self._uri = uri
        self.upload = upload
        self._buffer = bytearray()
        self._parts = 0
        self._sent = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sent + len(self._buffer)

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._buffer += view
        size = PART_BYTES << (self._parts // _PARTS_BEFORE_LARGER_ONES)
        while len(self._buffer) > size:
            self._send(size)
        return len(view)

    @property
    def rest(self) -> bytes:
        return bytes(self._buffer)

    def send_rest(self) -> None:
        self._send(len(self._buffer))

    def _send(self, size: int) -> None:
        if self.upload is None:
            self.upload = self._uploads.begin(self._uri)
        self._parts += 1
        self._uploads.add(self._uri, self.upload, self._parts, bytes(self._buffer[:size]))
        self._sent += size
        del self._buffer[:size]


def uploads_for(uri: str) -> Uploads:
    """Return the uploads of the bucket in a URI, reached as the `s3.*` options of this process say.

    Raises:
        ConfigurationError: boto3 is not installed.
    """
    bucket = uri.removeprefix("s3://").partition("/")[0]
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _shared(bucket, current_s3_options(), variables, os.getpid())


@lru_cache(maxsize=32)
def _shared(bucket: str, options: S3Options, _variables: tuple[tuple[str, str], ...], _process: int) -> Uploads:
    return Uploads(bucket, options)


def _connect(bucket: str, options: S3Options) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ConfigurationError(
            f"Output in s3://{bucket} needs the package boto3: install it with pip install 'holdfast[s3]'."
        ) from error
    style = "virtual" if options.path_style is False else "path"
    seconds = options.timeout.total_seconds()
    config = Config(
        s3={"addressing_style": style},
        connect_timeout=seconds,
        read_timeout=seconds,
        retries={"total_max_attempts": options.max_retries + 1, "mode": "standard"},
        # Stores other than AWS know no checksums in trailers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint_of(options),
            aws_access_key_id=options.access_key,
            aws_secret_access_key=options.secret_key,
            region_name=options.region or os.environ.get("AWS_REGION") or None,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"s3://{bucket} cannot be reached with {options!r}: {error}") from error
    client.meta.events.register("before-send.s3", _count)
    return client


def _count(request: Any, **_: Any) -> None:
    """Count a request before it is sent. Those that read an upload or all uploads are listings."""
    query = urlsplit(request.url).query
    method = {"POST": "put", "GET": "list" if "upload" in query else "get"}.get(request.method, request.method.lower())
    REQUESTS.count(method)


def _translate(answer: dict[str, Any], action: str, uri: str, error: Exception) -> HoldfastError:
    code = answer.get("Code", "")
    if code == "NoSuchUpload":
        return NotExistError(f"Could not {action} {uri!r}: there is no such upload.")
    if code in ("NoSuchKey", "404"):
        return NotExistError(f"Could not {action} {uri!r}: there is no such object.")
    if code == "NoSuchBucket":
        return StorageError(f"Could not {action} {uri!r}: there is no such bucket. Make it, or correct the name.")
    if code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return StorageError(
            f"Could not {action} {uri!r}: the store refuses these credentials ({code}). Give them the right to read, "
            "write, list and delete there, and to list and abort uploads."
        )
    return StorageError(
        f"Could not {action} {uri!r}: {error}. Check the store, its endpoint and the credentials, then run the job "
        "again."
    )
