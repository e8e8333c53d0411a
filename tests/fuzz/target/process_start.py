"""What is to be run, in the file that a job manager leaves for the process of a job."""

import json

from holdfast.dispatcher.process import ProcessStart
from tests.fuzz.document import directory, replaced

PLACE = directory() / "start"
PATH = str(PLACE)


def parse(data: bytes) -> None:
    replaced(PLACE / "start.json", data)
    start = ProcessStart.read(PLACE)
    start.write(PLACE)
    assert ProcessStart.read(PLACE) == start
    json.dumps([start.script, *start.arguments, *start.options.items(), *start.defaults.items()])
