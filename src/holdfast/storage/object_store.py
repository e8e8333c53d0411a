"""Files in an S3-compatible object store: ``s3://bucket/prefix``.

An object appears whole or not at all, and every write is conditional (``If-None-Match: *``), so none is ever replaced.
Each write has a nonce in the object's metadata: after a refusal or a lost answer the object is read, so that a write
that the client had to repeat is not mistaken for the write of another process.

A store that ignores the condition would let two drivers write the same version. It is refused before the first write:
one probe object is created twice, and the second attempt must fail.

obstore is imported by the functions that need it, because it is an extra: ``pip install "holdfast[s3]"``.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import urlsplit

from holdfast.errors import (
    AlreadyExistError,
    ConfigurationError,
    HoldfastError,
    NotExistError,
    PossibleInconsistentStateError,
    StorageError,
)
from holdfast.kernel.configuration import ConfigOption, Configuration
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.secret import without_credentials
from holdfast.storage.file_system import FileStatus, FileSystem, base_name, join, parent
from holdfast.storage.local import temporary_name

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Config, S3Store

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_MAX_RETRIES: Final = 5
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_OR_ENVIRONMENT: Final = "Default: the usual AWS environment variables."
_INHERITED: Final = "HOLDFAST_S3_OPTIONS"
_FIELDS: Final = ("endpoint", "access_key", "secret_key", "region", "path_style")
_Listing = list[FileStatus]
_Names = list[str]
SCHEME: Final = "s3"
_NONCE: Final = "holdfast-nonce"
_READ_AHEAD: Final = 4 * 1024 * 1024


class ObjectReader(io.RawIOBase):
    """An object as a file, fetched piece by piece; wrap it in a buffer.

    Args:
        fs: The store.
        path: The object.
        size: Its size; it never changes.
        beginning: Its first bytes, which are not fetched again.
    """

    def __init__(self, fs: FileSystem, path: str, size: int, beginning: bytes = b"") -> None:
        self._fs = fs
        self._path = path
        self._size = size
        self._beginning = beginning
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"Cannot seek to {base + offset}, which is before the beginning.")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._beginning[self._position : self._position + length]
        if not data:
            data = self._fs.read(self._path, self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class RequestCounter:
    """Counts the requests of this process to object stores. Thread-safe.

    Requests that a client repeats by itself count once, except those of boto3.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, method: str, number: int = 1) -> None:
        """Count requests of one of `METHODS`."""
        with self._lock:
            self._counts[method] += number

    def add(self, counts: Mapping[str, int]) -> None:
        """Count the requests that another process has reported."""
        for method in METHODS:
            if counts.get(method):
                self.count(method, counts[method])

    def take(self) -> dict[str, int]:
        """Return the requests since the last call, by method, so that each is reported once."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)


METHODS: Final = ("get", "head", "list", "put", "delete")
"""What a request does. Stores charge `put` and `list` alike, `get` and `head` alike but far less, `delete` not at all.
A part of an upload is a `put`."""
REQUESTS: Final = RequestCounter()
_PAGE: Final = 1000
"""Objects in one answer to a listing."""
_REQUEST_TIMEOUT: Final = timedelta(seconds=60)
_RETRY_TIMEOUT: Final = timedelta(seconds=60)


@dataclass(frozen=True)
class S3Options:
    """How to reach a store; fields that are None come from the usual AWS environment variables.

    Attributes:
        endpoint: Such as ``http://minio:9000``; AWS itself without one. Option ``s3.endpoint``.
        access_key: Option ``s3.access-key``.
        secret_key: Option ``s3.secret-key``.
        region: Option ``s3.region``.
        path_style: Whether the bucket is part of the path instead of the host's name; the default is true. Option
            ``s3.path.style.access``.
        timeout: How long one request may take.
        max_retries: How often a request is repeated that got no answer, or a server error.
    """

    endpoint: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    region: str | None = None
    path_style: bool | None = None
    timeout: timedelta = _REQUEST_TIMEOUT
    max_retries: int = _MAX_RETRIES

    def __repr__(self) -> str:
        endpoint = without_credentials(str(self.endpoint))
        return f"S3Options(endpoint={endpoint!r}, region={self.region!r})"  # no keys in messages


def endpoint_of(options: S3Options) -> str | None:
    """Return the URL of the store, None for AWS itself."""
    found = (os.environ.get(name) for name in _ENDPOINT_VARIABLES)
    return options.endpoint or next(filter(None, found), None)


def bucket_endpoint(bucket: str, options: S3Options) -> str | None:
    """Return the URL for clients of the `object_store` crate: the bucket's host if it has one; None for AWS."""
    endpoint = endpoint_of(options)
    if endpoint is None or options.path_style is not False:
        return endpoint
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def connect(bucket: str, options: S3Options) -> S3Store:
    """Return a client of one bucket; nothing is sent yet.

    Raises:
        ConfigurationError: obstore is not installed, or does not take the configuration.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise ConfigurationError(
            f"s3://{bucket} needs the package obstore: install it with pip install 'holdfast[s3]'."
        ) from error
    endpoint = endpoint_of(options)
    if endpoint is not None and not _is_url(endpoint):
        raise ConfigurationError(
            f"The endpoint {without_credentials(endpoint)!r} of s3://{bucket} is not a URL that begins with "
            "http:// or https://."
        )
    config: S3Config = {}
    if options.access_key is not None:
        config["access_key_id"] = options.access_key
    if options.secret_key is not None:
        config["secret_access_key"] = options.secret_key
    if options.region is not None:
        config["region"] = options.region
    url = bucket_endpoint(bucket, options)
    if url is not None and (options.endpoint is not None or options.path_style is False):
        # Otherwise a variable that names an endpoint for S3 alone would win over the option.
        config["endpoint"] = config["aws_endpoint_url_s3"] = url
    if options.path_style is not None:
        config["virtual_hosted_style_request"] = not options.path_style
    try:
        return S3Store(
            bucket,
            config=config,
            client_options={
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
                "timeout": options.timeout,
            },
            retry_config={"max_retries": options.max_retries, "retry_timeout": _RETRY_TIMEOUT},
        )
    except (BaseError, ValueError) as error:
        raise ConfigurationError(f"s3://{bucket} cannot be reached with {options!r}: {error_message(error)}") from error


def error_message(error: Exception) -> str:
    """Return the message of an obstore error without the dump of its structure."""
    return str(error).partition("\n\nDebug source")[0].strip()


def is_refusal(error: Exception) -> bool:
    """Return whether a write was certainly not done: the store refused it at the first request.

    After a repetition the answer may be about the second request only, while the first was done.
    """
    text = error_message(error)
    match = _STATUS.search(text)
    if match is None or " retries, " in text:
        return False
    status = int(match[1])
    return 400 <= status < 500 and status != 408


def translate(error: Exception, action: str, path: str) -> HoldfastError:
    """Return Holdfast's error for an error of obstore.

    Args:
        error: The error.
        action: The attempted action, as a verb: ``"read"``.
        path: The object.
    """
    from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

    text = error_message(error)
    if "NoSuchBucket" in text:
        return StorageError(f"Could not {action} {path!r}: there is no such bucket. Make it, or correct the name.")
    if isinstance(error, FileNotFoundError):
        return NotExistError(f"Could not {action} {path!r}: it does not exist.")
    if isinstance(error, AlreadyExistsError):
        return AlreadyExistError(f"Could not {action} {path!r}: it exists already.")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StorageError(
            f"Could not {action} {path!r}: the store refuses these credentials ({text}). Give them the right to read, "
            "write, list and delete there."
        )
    return StorageError(
        f"Could not {action} {path!r}: {text}. Check the store, its endpoint and the credentials, then run the job "
        "again."
    )


def _is_url(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


S3_ENDPOINT: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.endpoint",
    str,
    None,
    f"URL of the store, such as http://minio:9000. {_OR_ENVIRONMENT}",
)
S3_ACCESS_KEY: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.access-key", str, None, f"Access key id. {_OR_ENVIRONMENT}", deprecated_keys=("s3.access.key",)
)
S3_SECRET_KEY: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.secret-key",
    str,
    None,
    f"Secret of the credentials; it is sent to executors. {_OR_ENVIRONMENT}",
    deprecated_keys=("s3.secret.key",),
)
S3_REGION: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.region", str, None, f"Region of the buckets. {_OR_ENVIRONMENT}", deprecated_keys=("s3.endpoint.region",)
)
S3_PATH_STYLE: Final[ConfigOption[bool | None]] = ConfigOption(
    "s3.path.style.access",
    bool,
    None,
    "Whether a bucket is part of the path (true, the default) instead of the host's name.",
    deprecated_keys=("s3.path-style-access",),
)

_lock = threading.Lock()


def s3_options(configuration: Configuration) -> S3Options:
    """Return the `s3.*` options of a configuration.

    Raises:
        ConfigurationError: A value is not valid.
    """
    return S3Options(
        endpoint=configuration.get(S3_ENDPOINT),
        access_key=configuration.get(S3_ACCESS_KEY),
        secret_key=configuration.get(S3_SECRET_KEY),
        region=configuration.get(S3_REGION),
        path_style=configuration.get(S3_PATH_STYLE),
    )


def use_s3_options(configuration: Configuration) -> None:
    """Set the `s3.*` options of this process; a configuration without such options changes nothing.

    A file system is chosen by the URI alone, wherever a file is opened, so there is one set of options a process.

    Raises:
        ConfigurationError: The process uses other options already, or a value is not valid.
    """
    global _current
    wanted = s3_options(configuration)
    with _lock:
        if wanted in (S3Options(), _current):
            return
        if _current != S3Options():
            raise ConfigurationError(
                f"This process uses object stores with {_current!r}, so it cannot use {wanted!r} as well. Run jobs "
                "with other s3.* options in another process."
            )
        _current = wanted


def current_s3_options() -> S3Options:
    return _current


def s3_environment() -> dict[str, str]:
    """Return the environment variables that give a child process the same options."""
    options = asdict(_current)
    return {_INHERITED: json.dumps({name: options[name] for name in _FIELDS})} if _current != S3Options() else {}


def _inherited() -> S3Options:
    text = os.environ.get(_INHERITED)
    return S3Options() if text is None else S3Options(**json.loads(text))


_current = _inherited()


def object_store_for(uri: str, options: S3Options | None = None) -> ObjectStoreFileSystem:
    """Return the file system of the bucket in a URI.

    Without options those of this process are used, and one file system is kept for each bucket as long as they and the
    environment variables stay the same, so that its connections and its probe are shared.

    Raises:
        ConfigurationError: The URI has no bucket, obstore is not installed, or the configuration is not valid.
    """
    bucket = uri.removeprefix(f"{SCHEME}://").partition("/")[0]
    if not uri.startswith(f"{SCHEME}://") or not bucket:
        raise ConfigurationError(f"{uri!r} has no bucket; write s3://bucket/directory.")
    if options is not None:
        return ObjectStoreFileSystem(bucket, options)
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _shared(bucket, current_s3_options(), variables, os.getpid())


@lru_cache(maxsize=32)
def _shared(
    bucket: str, options: S3Options, _variables: tuple[tuple[str, str], ...], _process: int
) -> ObjectStoreFileSystem:
    return ObjectStoreFileSystem(bucket, options)


class ObjectStoreFileSystem(FileSystem):
    """The objects of one bucket; a directory is a common prefix of keys.

    A file that is written stays in memory until it is complete, and is sent with one request: stores take up to 5 GB.

    Args:
        bucket: The bucket; it must exist.
        options: How to reach the store.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._store = connect(bucket, options)
        self._lock = threading.Lock()
        self._honours_conditions = False

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        key = self._key(path)
        if length == 0:
            self._head(path, "read")
            return b""
        options: GetOptions = {}
        if length is not None:
            options["range"] = (offset, offset + length)
        elif offset:
            options["range"] = {"offset": offset}
        REQUESTS.count("get")
        try:
            return obstore.get(self._store, key, options=options).bytes().to_bytes()
        except Exception as error:
            # The store refuses a range that begins at the end.
            if "status code: 416" in str(error) and self._head(path, "read")["size"] <= offset:
                return b""
            raise translate(error, "read", path) from error

    def open_input(self, path: str) -> BinaryIO:
        # One request has the size and the beginning, which is all of most objects.
        beginning, size = self._get_beginning(path)
        return io.BufferedReader(ObjectReader(self, path, size, beginning), min(_READ_AHEAD, max(size, 1)))

    def _get_beginning(self, path: str) -> tuple[bytes, int]:
        """Return up to `_READ_AHEAD` bytes from the beginning of an object, and its size."""
        import obstore

        REQUESTS.count("get")
        try:
            result = obstore.get(self._store, self._key(path), options={"range": (0, _READ_AHEAD)})
            return result.bytes().to_bytes(), result.meta["size"]
        except Exception as error:
            if "status code: 416" in str(error):  # a range of an empty object
                return b"", 0
            raise translate(error, "read", path) from error

    def mmap(self, path: str) -> memoryview:
        return memoryview(self.read(path))

    def keeps_mapped(self, path: str) -> bool:
        """Return True without a request: what `mmap` returns needs no disk of the store."""
        return True

    def content_mark(self, path: str) -> tuple[int, int]:
        """Return a constant without a request: no object is ever replaced."""
        return 0, 0

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        self._key(path)
        with io.BytesIO() as buffer:
            yield buffer
            try:
                self.create_exclusive(path, buffer.getvalue())
            except PossibleInconsistentStateError as error:
                raise StorageError(str(error)) from error

    def create_exclusive(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._require_conditions(path)
        nonce = new_nonce()
        try:
            self._put(key, data, nonce)
        except Exception as error:
            failure = translate(error, "create", path)
            if isinstance(failure, NotExistError):  # a creation needs no object: the bucket is missing
                failure = StorageError(f"Could not create {path!r}: {error_message(error)}")
            if is_refusal(error) and not isinstance(failure, AlreadyExistError):
                raise failure from error
            if self._is_own(path, nonce, error):
                return
            if isinstance(failure, AlreadyExistError):
                raise failure from error
            raise _unknown_outcome(path, error) from error

    def _put(self, key: str, data: bytes, nonce: str) -> None:
        import obstore

        REQUESTS.count("put")
        obstore.put(self._store, key, data, mode="create", use_multipart=False, attributes={_NONCE: nonce})

    def _is_own(self, path: str, nonce: str, error: Exception) -> bool:
        import obstore

        REQUESTS.count("get")
        try:
            return obstore.get(self._store, self._key(path)).attributes.get(_NONCE) == nonce
        except FileNotFoundError:
            return False
        except Exception as second:
            raise _unknown_outcome(path, error) from second

    def _require_conditions(self, path: str) -> None:
        from obstore.exceptions import AlreadyExistsError

        with self._lock:
            if self._honours_conditions:
                return
            probe = join(parent(path), temporary_name("holdfast-probe"))
            key = self._key(probe)
            try:
                self._put(key, b"Written to check that the store honours If-None-Match.\n", new_nonce())
                self._put(key, b"The store does not honour it.\n", new_nonce())
            except AlreadyExistsError:
                self._honours_conditions = True
            except Exception as error:
                failure = translate(error, "create", probe)
                if isinstance(failure, NotExistError):
                    failure = StorageError(f"Could not create {probe!r}: {error_message(error)}")
                raise failure from error
            finally:
                with suppress(HoldfastError):
                    self.delete(probe)
            if not self._honours_conditions:
                raise StorageError(
                    f"The store of s3://{self._bucket} ignores the condition If-None-Match: it let the object "
                    f"{probe!r} be created twice, so two drivers could not be kept apart on it. Nothing was written. "
                    "Use a store with conditional writes, or a newer version of this one."
                )

    def list(self, path: str) -> _Listing:
        import obstore

        key = self._key(path)
        try:
            found = obstore.list_with_delimiter(self._store, key or None)
        except Exception as error:
            REQUESTS.count("list")
            raise translate(error, "list", path) from error
        REQUESTS.count("list", 1 + (len(found["common_prefixes"]) + len(found["objects"])) // (_PAGE + 1))
        entries = [FileStatus(base_name(prefix), 0, 0, True) for prefix in found["common_prefixes"]]
        # A console makes an empty object with the directory's own name.
        entries += [_status(entry) for entry in found["objects"] if entry["path"] != key]
        return sorted(entries)

    def list_names(self, path: str) -> _Names:
        return [entry.name for entry in self.list(path)]

    def status(self, path: str) -> FileStatus:
        try:
            return _status(self._head(path, "look at"))
        except NotExistError:
            if self._is_directory(path):
                return FileStatus(base_name(path), 0, 0, True)
            raise

    def exists(self, path: str) -> bool:
        return self.has_file(path) or self._is_directory(path)

    def has_file(self, path: str) -> bool:
        try:
            self._head(path, "look at")
        except NotExistError:
            return False
        return True

    def _head(self, path: str, action: str) -> ObjectMeta:
        import obstore

        key = self._key(path)
        if not key:
            raise NotExistError(f"Could not {action} {path!r}: it is a bucket, not an object.")
        REQUESTS.count("head")
        try:
            return obstore.head(self._store, key)
        except Exception as error:
            raise translate(error, action, path) from error

    def _is_directory(self, path: str) -> bool:
        import obstore

        key = self._key(path)
        REQUESTS.count("list")
        try:
            return any(obstore.list(self._store, key or None, chunk_size=1))
        except Exception as error:
            raise translate(error, "look at", path) from error

    def mkdirs(self, path: str) -> None:
        self._key(path)

    def delete(self, path: str) -> bool:
        import obstore

        key = self._key(path)
        REQUESTS.count("delete")
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise translate(error, "delete", path) from error
        return True

    def delete_directory(self, path: str) -> bool:
        self._key(path)
        return True

    def link(self, source: str, target: str, *, is_durable: bool = True) -> None:
        raise StorageError(f"{source!r} cannot get the second name {target!r}: an object has one name. Copy it.")

    def rename(self, source: str, target: str) -> None:
        """Create the object under another name, unless that is taken, and delete the first one.

        The content goes through this process: few stores can copy conditionally.
        """
        self.write_atomic(target, self.read(source))
        self.delete(source)

    def _key(self, path: str) -> str:
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != SCHEME or bucket != self._bucket:
            raise ConfigurationError(f"{path!r} is not in s3://{self._bucket}.")
        key = key.rstrip("/")
        if key and not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise ConfigurationError(f"{path!r} has an empty part, or a part of dots only; leave it out.")
        return key

    def __repr__(self) -> str:
        return f"ObjectStoreFileSystem({self._bucket!r})"


def _status(entry: ObjectMeta) -> FileStatus:
    return FileStatus(base_name(entry["path"]), entry["size"], int(entry["last_modified"].timestamp() * 1000))


def _unknown_outcome(path: str, error: Exception) -> PossibleInconsistentStateError:
    return PossibleInconsistentStateError(
        f"It is not known whether {path!r} was created, because the request failed: {error_message(error)}"
    )
