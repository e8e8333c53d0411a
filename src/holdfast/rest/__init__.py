"""The REST interface of a job's master, with Flink's paths and JSON, and its client."""

from holdfast.rest.client import RestClient
from holdfast.rest.server import RestServer

__all__ = ["RestClient", "RestServer"]
