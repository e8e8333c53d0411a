"""What must not be shown: the one list of it, for everything that a person may read.

The values of some options, known by words in their keys, and who one is in URLs: the user before the host, and the
parameters behind the question mark that have such a word. REST, logs, messages of errors, `info` and `repr` ask here.
"""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "******"
_WORDS: Final = (
    "secret",
    "token",
    "passw",
    "passphrase",
    "authorization",
    "credential",
    "access-key",
    "access.key",
    "accesskey",
    "account.key",
    "api-key",
    "api.key",
    "apikey",
    "private-key",
    "private.key",
    "privatekey",
    "tls.key",
    "key.pem",
    "jaas",
    "signature",
)
_USER: Final = re.compile(r"(?P<before>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"]*@")
_PARAMETER: Final = re.compile(r"(?P<name>[?&;](?P<key>[A-Za-z0-9_.-]+)=)[^\s&;'\"]+")
_NAMED: Final = frozenset({"user", "username", "sig", "pwd"})


def is_secret(key: str) -> bool:
    """Whether the value of an option is not to be shown, by the words in its key."""
    plain = key.lower().replace("_", "-")
    return any(word in plain for word in _WORDS)


def shown(key: str, value: Any) -> str:
    """Return the value of an option as it may be shown."""
    return HIDDEN if is_secret(key) else without_credentials(str(value))


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords that URLs in it have."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(_hide, _USER.sub(rf"\g<before>{HIDDEN}@", text))


def _hide(found: re.Match[str]) -> str:
    is_named = found["key"].lower() in _NAMED or is_secret(found["key"])
    return f"{found['name']}{HIDDEN}" if is_named else found[0]


def shown_error(error: BaseException) -> str:
    """Return the message of an error as it may be shown; those of other libraries quote what they connect to."""
    return without_credentials(str(error))
