"""One line of a watch of the Kubernetes API server."""

from holdfast.ha.kubernetes.watch import ExpiredError, _parse


def parse(data: bytes) -> None:
    try:
        event = _parse(data.decode("utf-8", "replace"))
    except ExpiredError:
        return  # the watch begins anew
    if event.config_map is not None:
        event.config_map.to_object()
