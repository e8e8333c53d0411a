"""What the process of a job writes into its pipe, line by line; what is no line of it is nothing."""

from holdfast.dispatcher.process import LaunchedJob, ended_line, is_ready_line, launched_line, parse_line
from holdfast.errors import HoldfastError


def parse(data: bytes) -> None:
    understood = 0
    for line in data.splitlines(keepends=True):
        is_ready_line(line)
        found = parse_line(line)
        if found is not None:
            understood += 1
            again = launched_line(found) if isinstance(found, LaunchedJob) else ended_line(found)
            assert parse_line(again) == found
    if not understood:
        raise HoldfastError("the process has died without a word")
