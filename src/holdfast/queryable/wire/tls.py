"""TLS contexts of both sides."""

from __future__ import annotations

import ssl

from holdfast.errors import ConfigurationError


def client_context(tls: ssl.SSLContext | str | bool | None) -> ssl.SSLContext | None:
    """Return the context of a client.

    Args:
        tls: True for the system's authorities, a file with certificates, or a context; None or False for no TLS.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return ssl.create_default_context(cafile=tls if isinstance(tls, str) else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"The certificates in {tls!r} cannot be read: {error}") from error


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the context of a server; None without a certificate.

    Raises:
        ConfigurationError: A file cannot be read, or they do not belong together.
    """
    if certificate is None:
        if key is not None:
            raise ConfigurationError("queryable-state.tls.key is of no use without queryable-state.tls.certificate.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"The certificate {certificate!r} and key {key!r} cannot be used: {error}") from error
    return context
