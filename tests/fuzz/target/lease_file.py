"""The lease of a leader in a file, and what is made of it by whoever leads next."""

from holdfast.ha.shared_directory import LeaderLeaseForm, LeaseDocument
from holdfast.storage.local import LocalFileSystem
from tests.fuzz.document import directory, replaced, sealed

LEASES = directory() / "leases"
PATH = str(LEASES)


def parse(data: bytes) -> None:
    replaced(LEASES / f"v-{1:020d}", sealed("leader-lease", 1, data))
    lease = LeaseDocument(LocalFileSystem(), PATH).read().body
    LeaderLeaseForm().acquired("next", lease, 15.0)
    if lease is not None:
        LeaderLeaseForm().given_up(lease).to_json()
