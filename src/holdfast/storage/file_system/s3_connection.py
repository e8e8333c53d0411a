"""How an S3-compatible store is reached, and what its errors mean.

obstore is imported by the functions that need it, because it is an extra: ``pip install "holdfast[s3]"``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from holdfast.errors import AlreadyExistError, ConfigurationError, HoldfastError, NotExistError, StorageError
from holdfast.kernel.secret import without_credentials

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REQUEST_TIMEOUT: Final = timedelta(seconds=60)
_RETRY_TIMEOUT: Final = timedelta(seconds=60)
_MAX_RETRIES: Final = 5
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")


@dataclass(frozen=True)
class S3Options:
    """How to reach a store; what is None is taken from the usual AWS environment variables.

    Attributes:
        endpoint: Such as ``http://minio:9000``; without one it is AWS itself. Option ``s3.endpoint``.
        access_key: Option ``s3.access-key``.
        secret_key: Option ``s3.secret-key``.
        region: Option ``s3.region``.
        path_style: Whether the bucket is part of the path instead of the host's name; true if nothing is said.
            Option ``s3.path.style.access``.
        timeout: How long one request may take.
        max_retries: How often one is repeated that the store did not answer, or answered with a fault of its own.
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
    """The URL of the store, None for AWS itself."""
    found = (os.environ.get(name) for name in _ENDPOINT_VARIABLES)
    return options.endpoint or next(filter(None, found), None)


def asked_endpoint(bucket: str, options: S3Options) -> str | None:
    """The URL of the store as clients ask for it that are built on `object_store`: the bucket's host where it has one.

    None for AWS itself.
    """
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
            f"The endpoint {without_credentials(endpoint)!r} of s3://{bucket} is no URL of a host that begins with "
            "http:// or https://."
        )
    config: S3Config = {}
    if options.access_key is not None:
        config["access_key_id"] = options.access_key
    if options.secret_key is not None:
        config["secret_access_key"] = options.secret_key
    if options.region is not None:
        config["region"] = options.region
    asked = asked_endpoint(bucket, options)
    if asked is not None and (options.endpoint is not None or options.path_style is False):
        # Otherwise a variable that names an endpoint for S3 alone would win over the option.
        config["endpoint"] = config["aws_endpoint_url_s3"] = asked
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
        raise ConfigurationError(f"s3://{bucket} cannot be reached with {options!r}: {brief(error)}") from error


def brief(error: Exception) -> str:
    """Return what an error of obstore says, without the dump of its structure."""
    return str(error).partition("\n\nDebug source")[0].strip()


def is_refusal(error: Exception) -> bool:
    """Whether a write was certainly not carried out: the store said so, and to the first request.

    After a repetition the answer may be about the second request only, while the first was carried out.
    """
    text = brief(error)
    match = _STATUS.search(text)
    if match is None or " retries, " in text:
        return False
    status = int(match[1])
    return 400 <= status < 500 and status != 408


def translate(error: Exception, action: str, path: str) -> HoldfastError:
    """Return the error of our tree for one of obstore.

    Args:
        error: What was raised.
        action: What was tried, as a verb: ``"read"``.
        path: On what.
    """
    from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

    text = brief(error)
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
