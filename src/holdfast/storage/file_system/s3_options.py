"""Options of object stores, and what they are in this process.

A file system is chosen by the URI of a file alone, wherever files are met; so there is one set of options a process.
What is not set is taken from the usual AWS environment variables.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.option import ConfigOption
from holdfast.storage.file_system.s3_connection import S3Options

_OR_ENVIRONMENT: Final = "By default what the usual AWS environment variables say."

S3_ENDPOINT: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.endpoint",
    str,
    None,
    f"URL of the store, such as http://minio:9000. {_OR_ENVIRONMENT}",
)
S3_ACCESS_KEY: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.access-key", str, None, f"Name of the credentials. {_OR_ENVIRONMENT}", deprecated_keys=("s3.access.key",)
)
S3_SECRET_KEY: Final[ConfigOption[str | None]] = ConfigOption(
    "s3.secret-key",
    str,
    None,
    f"Secret of the credentials; executors get it too. {_OR_ENVIRONMENT}",
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

_INHERITED: Final = "HOLDFAST_S3_OPTIONS"
_FIELDS: Final = ("endpoint", "access_key", "secret_key", "region", "path_style")
_lock = threading.Lock()


def s3_options(configuration: Configuration) -> S3Options:
    """The options of a configuration.

    Raises:
        ConfigurationError: A value does not fit.
    """
    return S3Options(
        endpoint=configuration.get(S3_ENDPOINT),
        access_key=configuration.get(S3_ACCESS_KEY),
        secret_key=configuration.get(S3_SECRET_KEY),
        region=configuration.get(S3_REGION),
        path_style=configuration.get(S3_PATH_STYLE),
    )


def use_s3_options(configuration: Configuration) -> None:
    """Let this process reach object stores as a configuration says; one without such options changes nothing.

    Raises:
        ConfigurationError: The process uses other options already, or a value does not fit.
    """
    global _current
    wanted = s3_options(configuration)
    with _lock:
        if wanted in (S3Options(), _current):
            return
        if _current != S3Options():
            raise ConfigurationError(
                f"This process reaches object stores with {_current!r}, so it cannot do so with {wanted!r} as well. "
                "Run jobs with other s3.* options in a process of their own."
            )
        _current = wanted


def current_s3_options() -> S3Options:
    """What this process uses."""
    return _current


def s3_environment() -> dict[str, str]:
    """What a process that this one starts has to have in its environment to use the same options."""
    options = asdict(_current)
    return {_INHERITED: json.dumps({name: options[name] for name in _FIELDS})} if _current != S3Options() else {}


def _inherited() -> S3Options:
    text = os.environ.get(_INHERITED)
    return S3Options() if text is None else S3Options(**json.loads(text))


_current = _inherited()
