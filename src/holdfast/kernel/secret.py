"""What must not be shown: the one list of it, for everything that a person may read.

The values of some options, known by words in their keys; who one is in URLs: the user before the host; and what stands
after a name with such a word, in parameters of URLs, in `name=value` and in entries of dictionaries. REST, logs,
messages of errors, checkpoints, `info` and `repr` ask here.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any, Final

HIDDEN: Final = "******"
_SECRET: Final = re.compile(
    r"secret|token|passw|passphrase|authorization|credential|jaas|signature"
    r"|auth-params|basic[-.]auth|http-headers|azure\.sas"
    r"|(access|account|api|private|service|tls)[-.]?key|key\.pem"
    r"|(encryption|customer|keystore)[-.]?key(?![a-z])"  # spark.io.encryption.keySizeBits is none
    r"|(^|[-.])(pass|pwd)$"
)
_NAMED: Final = frozenset({"user", "username", "sig"})
"""Hidden in a URL; elsewhere they may be anything."""

_CHARACTER: Final = r"(?:[^\s'\"]|(?<=\w)['\"](?=\w))"  # a quote inside a word ends nothing
_URL: Final = re.compile(
    # Of Azure's paths what stands there is the container.
    rf"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://(?P<rest>(?:(?!://){_CHARACTER})+)"
)
_ORACLE: Final = re.compile(rf"\b(?P<before>jdbc:oracle:\w+:)(?P<rest>[^@\s'\"](?:(?!://|jdbc:){_CHARACTER})*)@")
_NAME: Final = re.compile(r"(?<![A-Za-z0-9_./-])(?P<key>[A-Za-z0-9_.-]+)(?:=|(?P<mark>\\*['\"])\s*:\s*(?=\\*['\"]))")
_QUOTED: Final = r"(?P<quote>\\*['\"])(?:\\.|.)*?(?:(?P=quote)|$)"
_VALUE: Final = re.compile(rf"{_QUOTED}|{_CHARACTER}+", re.MULTILINE)
_PARAMETER: Final = re.compile(rf"{_QUOTED}|\{{[^}}\n]*\}}|(?:(?![&;]){_CHARACTER})+", re.MULTILINE)
_PEM: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?s:.*?)(-----END|$)")
_QUERY: Final = re.compile(r"[?;][\w.%-]+=")
_PATH: Final = re.compile(r"[/?#;]")
_PORT: Final = re.compile(r"\[.*|[^:]*(:\d*)?")
_HOST: Final = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?|[\w-]+:\d+|\[.*\](:\d+)?")
_CONNECTION: Final = re.compile(r"\b(host|hostaddr|dbname)=")
"""A text with it may be what libpq is told."""


def is_secret(key: str) -> bool:
    """Whether the value of an option is not to be shown, by the words in its key."""
    return _SECRET.search(key.lower().replace("_", "-")) is not None


def redacted_value(key: str, value: Any) -> str:
    """Return the value of an option as it may be shown."""
    return HIDDEN if is_secret(key) else without_credentials(str(value))


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords that URLs and settings in it have."""
    if "@" in text:
        text = _URL.sub(_without_user, _ORACLE.sub(rf"\g<before>{HIDDEN}@", text))
    if "PRIVATE KEY-----" in text:
        text = _PEM.sub(rf"\1{HIDDEN}\2", text)
    return _without_values(text) if "=" in text or ":" in text else text


def location_without_credentials(text: str) -> str:
    """Return how a checkpoint names a place: it is the same place when somebody else reads it."""
    return without_credentials(text).replace(f"//{HIDDEN}@", "//")


def _without_user(found: re.Match[str]) -> str:
    """A password may have any character that a URL ends something with; a host has a dot or a port, or is one word."""
    rest = found["rest"]
    if "@" not in rest:
        return found[0]
    before_query = _QUERY.split(rest, maxsplit=1)[0]
    searched = before_query if "@" in before_query else rest
    authority = _PATH.split(searched, maxsplit=1)[0]
    user, _, host = authority.rpartition("@")
    if "@" not in authority:
        end = -1 if all(map(_PORT.fullmatch, authority.split(","))) else searched.rfind("@")
    elif ":" in user and not _HOST.fullmatch(host):
        end = searched.rfind("@")
    else:
        end = len(user)
    return found[0] if end < 0 else f"://{HIDDEN}{rest[end:]}"


def _without_values(text: str) -> str:
    parts: list[str] = []
    end = 0
    is_connection = _CONNECTION.search(text) is not None
    for name in _NAME.finditer(text):
        is_parameter = text[max(0, name.start() - 1) : name.start()] in ("?", "&", ";")
        is_user = name["key"].lower() in _NAMED and (is_parameter or is_connection)
        if name.start() < end or not (is_user or is_secret(name["key"])):
            continue
        value = (_PARAMETER if is_parameter else _VALUE).match(text, name.end())
        if value is not None:
            quote = value["quote"] or ""
            parts += text[end : name.end()], quote, HIDDEN, quote
            end = value.end()
    return "".join([*parts, text[end:]])


def redacted_message(error: BaseException) -> str:
    """Return the message of an error as it may be shown; those of other libraries quote what they connect to."""
    return without_credentials(str(error))


class _WithoutCredentials(logging.Filter):
    """Hides what must not be shown in a line and in its traceback, before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # a line that cannot be made is for its handler to complain about
            message = record.getMessage()
            hidden = without_credentials(message)
            if hidden != message:
                record.msg, record.args = hidden, None
        if record.exc_info and record.exc_info[1] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            hidden = without_credentials(trace)
            if hidden != trace:  # a handler may ask the error itself
                record.exc_info, record.exc_text = None, hidden
        if record.stack_info:
            record.stack_info = without_credentials(record.stack_info)
        return True


_FILTER: Final = _WithoutCredentials()


def get_logger(name: str) -> logging.Logger:
    """Return a logger of this package; whoever handles its lines finds no credentials in them."""
    logger = logging.getLogger(name)
    logger.addFilter(_FILTER)
    return logger
