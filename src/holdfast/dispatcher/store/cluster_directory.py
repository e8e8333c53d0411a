"""Where the job managers of a cluster keep what they tell others in files."""

from __future__ import annotations

from holdfast.ha.services.cluster_storage import ClusterStorage
from holdfast.ha.services.kubernetes_options import CLUSTER_ID
from holdfast.ha.services.options import HA_CLUSTER_ID, ha_type
from holdfast.kernel.configuration import Configuration
from holdfast.storage.file_system.s3_options import use_s3_options
from holdfast.storage.file_system.scheme import FileSystem, file_system_for


def cluster_directory(configuration: Configuration, working_directory: str) -> tuple[FileSystem, str]:
    """Return the directory of a cluster in its storage; without elections that is the working directory.

    Raises:
        ConfigurationError: The storage of the cluster is not configured, or this process uses other s3.* options.
    """
    use_s3_options(configuration)
    kind = ha_type(configuration)
    if kind == "none":
        return file_system_for(working_directory), working_directory
    named = None
    if kind == "kubernetes" and not configuration.contains(HA_CLUSTER_ID):
        named = configuration.get(CLUSTER_ID)
    storage = ClusterStorage(configuration, named)
    return storage.fs, storage.path
