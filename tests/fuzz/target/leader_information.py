"""Who leads, as the stores of an election say it; what cannot be read counts as nobody."""

from holdfast.ha.leader_election import LeaderInformation


def parse(data: bytes) -> None:
    information = LeaderInformation.decode(data.decode("utf-8", "replace"))
    assert information.is_empty == (information.encode() == "")
