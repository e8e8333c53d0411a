"""The lease of a leader in the annotation of a ConfigMap; what cannot be read counts as none."""

from holdfast.ha.kubernetes.config_map import LeaseRecord, LeaseRecordForm
from holdfast.kernel.clock import ManualClock


def parse(data: bytes) -> None:
    record = LeaseRecord.parse(data.decode("utf-8", "replace"))
    form = LeaseRecordForm(ManualClock(1000))
    form.acquired("next", record, 15.0).encode()
    if record is not None:
        form.renewed(record, 15.0).encode()
        record.encode()
