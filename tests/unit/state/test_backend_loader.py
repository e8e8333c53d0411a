"""How a job comes to its state backend, and how pointers to checkpoints are resolved."""

import pytest

from holdfast.errors import ConfigurationError, NotExistError
from holdfast.kernel.configuration import Configuration
from holdfast.state import (
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    TaskEnvironment,
    TaskKvStateRegistry,
    ValueStateDescriptor,
    load_state_backend,
)
from holdfast.state.columnar import ColumnarStateBackend
from holdfast.testing.state_contract.state_access_contract import StateEpochs
from tests.contract.plain_state_backend import PlainStateBackend

PLAIN = "tests.contract.plain_state_backend"


@pytest.mark.parametrize("name", [None, "hashmap", "HashMap", "filesystem", "jobmanager", "memory"])
@pytest.mark.parametrize("key", ["state.backend.type", "state.backend"])
def test_short_names(name, key):
    configuration = Configuration({} if name is None else {key: name})
    assert type(load_state_backend(configuration)) is HashMapStateBackend


def test_older_names_say_what_to_use_instead(caplog):
    load_state_backend(Configuration({"state.backend": "filesystem"}))
    assert "execution.checkpointing.dir" in caplog.text


@pytest.mark.parametrize("name", ["rocksdb", "RocksDB", "forst"])
def test_what_keeps_state_on_disk_in_flink_is_here_what_keeps_it_in_mapped_files(name, caplog):
    assert type(load_state_backend(Configuration({"state.backend": name}))) is ColumnarStateBackend
    assert f"'{name}' is not available: using 'columnar'" in caplog.text


@pytest.mark.parametrize("path", [f"{PLAIN}:PlainStateBackendFactory", f"{PLAIN}.PlainStateBackendFactory"])
def test_class_paths(path):
    assert isinstance(load_state_backend(Configuration({"state.backend.type": path})), PlainStateBackend)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("heap", "'hashmap'"),
        ("no.such.module:Factory", "could not be loaded"),
        (f"{PLAIN}:NoSuchFactory", "could not be loaded"),
        (f"{PLAIN}:PlainStateBackend", "not a subclass of StateBackendFactory"),
        (f"{PLAIN}:FailingFactory", "no such option"),
        (f"{PLAIN}:OddFactory", "not a StateBackend"),
    ],
)
def test_what_is_no_backend_is_refused(name, says):
    with pytest.raises(ConfigurationError, match=says) as error:
        load_state_backend(Configuration({"state.backend.type": name}))
    assert name.split(":")[0] in str(error.value)


def test_the_backend_of_the_program_wins():
    backend = FsStateBackend("file:///checkpoints")
    assert load_state_backend(Configuration({"state.backend.type": "no.such:Backend"}), backend) is backend


def test_the_backends_of_older_programs():
    assert isinstance(MemoryStateBackend(), HashMapStateBackend)
    assert MemoryStateBackend().get_max_state_size() == 5 * 1024 * 1024
    assert FsStateBackend("file:///checkpoints").get_checkpoint_path() == "file:///checkpoints"
    with pytest.raises(ConfigurationError):
        FsStateBackend("")
    with pytest.raises(ConfigurationError):
        MemoryStateBackend(0)


def test_a_pointer_leads_to_a_checkpoint_by_any_of_its_spellings(tmp_path):
    directory = tmp_path / "chk-7"
    directory.mkdir()
    (directory / "_metadata").write_bytes(b"{}")
    backend = HashMapStateBackend()
    pointers = [f"{directory}", f"{directory}/", f"{directory}/_metadata", f"file://{directory}"]
    found = [backend.resolve_checkpoint(pointer).result() for pointer in pointers]
    assert [location.get_external_pointer() for location in found] == [str(directory)] * 3 + [f"file://{directory}"]
    assert found[0].metadata_path == f"{directory}/_metadata"
    for pointer, error in ((str(tmp_path), NotExistError), ("", ConfigurationError), (None, ConfigurationError)):
        with pytest.raises(error):
            backend.resolve_checkpoint(pointer).result()


def test_queryable_states_are_told_to_the_registry(tmp_path):
    class Registry(TaskKvStateRegistry):
        def __init__(self):
            self.known = []

        def register_kv_state(self, key_group_range, registration_name, state_name):
            self.known.append((registration_name, state_name))

        def unregister_all(self):
            self.known.clear()

    epochs = StateEpochs(HashMapStateBackend(), str(tmp_path))
    registry = Registry()
    backend = HashMapStateBackend().create_keyed_state_backend(
        TaskEnvironment("job", "op"), "job", "op", epochs.codec, 8, epochs.range_of(0), registry
    )
    descriptor = ValueStateDescriptor("count", "bigint")
    descriptor.set_queryable("counts")
    backend.get_state(descriptor)
    backend.get_state(ValueStateDescriptor("private"))
    assert registry.known == [("counts", "count")]
    backend.dispose()
    assert registry.known == []
