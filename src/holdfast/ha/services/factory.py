"""Makes the services that the configuration names."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.ha.services import options
from holdfast.ha.services.ha_services import ClientHighAvailabilityServices, HighAvailabilityServices
from holdfast.ha.services.options import ha_type
from holdfast.ha.services.standalone import StandaloneClientHaServices, StandaloneHaServices
from holdfast.kernel.configuration import Configuration
from holdfast.storage.file_system.s3_options import use_s3_options

T = TypeVar("T")
_UNKNOWN_ADDRESS: Final = "UNKNOWN"
# Imported when they are chosen, so that a cluster of one type needs no client of another.
_SERVICES: Final = {
    "embedded": ("holdfast.ha.embedded.services", "EmbeddedHaServices"),
    "filesystem": ("holdfast.ha.file_system.services", "FileSystemHaServices"),
    "zookeeper": ("holdfast.ha.zookeeper.services", "ZooKeeperLeaderElectionHaServices"),
    "kubernetes": ("holdfast.ha.kubernetes.services", "KubernetesLeaderElectionHaServices"),
}
_CLIENT_SERVICES: Final = {
    "filesystem": ("holdfast.ha.file_system.services", "FileSystemClientHaServices"),
    "zookeeper": ("holdfast.ha.zookeeper.services", "ZooKeeperClientHaServices"),
    "kubernetes": ("holdfast.ha.kubernetes.services", "KubernetesClientHaServices"),
}
_EXTRAS: Final = {"kazoo": "zookeeper", "lightkube": "kubernetes"}


class HighAvailabilityServicesFactory(ABC):
    """Makes services of a type of one's own; ``high-availability.type`` names its class path."""

    @abstractmethod
    def create_ha_services(self, configuration: Configuration, executor: Executor) -> HighAvailabilityServices:
        """Make the services of a process.

        Args:
            configuration: The configuration.
            executor: Where clean-up that blocks is done.
        """

    def create_client_ha_services(self, configuration: Configuration) -> ClientHighAvailabilityServices:
        """Make what a client needs."""
        raise ConfigurationError(f"{type(self).__name__} makes no services for clients.")


def create_high_availability_services(
    configuration: Configuration,
    executor: Executor,
    *,
    resource_manager_address: str = _UNKNOWN_ADDRESS,
    dispatcher_address: str = _UNKNOWN_ADDRESS,
    rest_address: str = _UNKNOWN_ADDRESS,
) -> HighAvailabilityServices:
    """Make the services of a process. Blocks until they are connected.

    Args:
        configuration: ``high-availability.*`` and what belongs to it.
        executor: Where clean-up that blocks is done.
        resource_manager_address: What the type none answers.
        dispatcher_address: What the type none answers.
        rest_address: What the type none answers.

    Raises:
        ConfigurationError: An option is missing or wrong, a package is not installed, or the cluster id is taken.
        StorageError: The backend does not answer, or the storage directory cannot be written.
    """
    use_s3_options(configuration)
    chosen = ha_type(configuration)
    if chosen == "none":
        return StandaloneHaServices(resource_manager_address, dispatcher_address, rest_address, configuration)
    if chosen in _SERVICES:
        services: HighAvailabilityServices = _load(*_SERVICES[chosen])(configuration, executor)
        return services
    factory = _custom_factory(chosen)
    return _made(chosen, lambda: factory.create_ha_services(configuration, executor))


def create_client_high_availability_services(
    configuration: Configuration, *, rest_address: str = _UNKNOWN_ADDRESS
) -> ClientHighAvailabilityServices:
    """Make what a client of a cluster needs. Blocks until it is connected.

    Raises:
        ConfigurationError: An option is missing or wrong, or the type serves no other processes.
        StorageError: The backend does not answer.
    """
    use_s3_options(configuration)
    chosen = ha_type(configuration)
    if chosen == "none":
        return StandaloneClientHaServices(rest_address)
    if chosen == "embedded":
        raise ConfigurationError(
            f"With {options.HA_TYPE.key!r} 'embedded' everything is in one process, which no client can reach."
        )
    if chosen in _CLIENT_SERVICES:
        services: ClientHighAvailabilityServices = _load(*_CLIENT_SERVICES[chosen])(configuration)
        return services
    factory = _custom_factory(chosen)
    return _made(chosen, lambda: factory.create_client_ha_services(configuration))


def _custom_factory(class_path: str) -> HighAvailabilityServicesFactory:
    module, _, name = class_path.rpartition(".")
    try:
        if not module:
            raise ConfigurationError(f"It is none of {['none', *_SERVICES]} and not a class path.")
        factory = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, HoldfastError) as error:
        raise ConfigurationError(
            f"Option {options.HA_TYPE.key!r}: no HighAvailabilityServicesFactory can be made of {class_path!r}. {error}"
        ) from error
    if not isinstance(factory, HighAvailabilityServicesFactory):
        raise ConfigurationError(
            f"Option {options.HA_TYPE.key!r}: {class_path!r} is not a HighAvailabilityServicesFactory."
        )
    return factory


def _made(class_path: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except Exception as error:
        raise ConfigurationError(
            f"Could not create the ha services from the instantiated HighAvailabilityServicesFactory {class_path}: "
            f"{error}"
        ) from error


def _load(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ConfigurationError(
            f"High availability of this type needs the package {error.name!r}: pip install 'holdfast[{extra}]'."
        ) from error
