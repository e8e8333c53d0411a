"""The file that says which cluster a storage directory belongs to, and the entry that says it in an elected cluster."""

from holdfast.errors import HoldfastError
from holdfast.ha.cluster_storage import ClusterStorage
from holdfast.kernel.configuration import Configuration
from tests.fuzz.document import directory, replaced, sealed

ROOT = directory() / "clusters"
FILE = ROOT / "one" / "cluster.json"
STORAGE = ClusterStorage(
    Configuration({"high-availability.storageDir": str(ROOT), "high-availability.cluster-id": "one"})
)


def parse(data: bytes) -> None:
    """In the place of the file, then in that of the entry; `@root@` stands for the directory."""
    if b"s3:" in data.replace(b"\\", b""):
        raise HoldfastError("it is looked for where nobody answers")
    document = sealed("cluster", 1, data.replace(b"@root@", str(ROOT).encode()))
    replaced(FILE, document)
    refused = []
    for recall in (None, lambda new: document):
        try:
            STORAGE.open("filesystem", recall)
        except HoldfastError as error:
            assert len(str(error)) < 20_000
            refused.append(error)
        assert FILE.read_bytes() == document, "what another cluster says is changed"
    if refused:
        raise refused[0]
    FILE.unlink()
    STORAGE.open("filesystem", lambda new: document)
