"""Options as a command line, an environment or a file of options has them: lines of `key=value`."""

from holdfast.kernel.configuration import Configuration, all_options, parse_duration, parse_memory_size


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    configuration = Configuration.from_properties(text.splitlines())
    for option in all_options().values():
        configuration.get(option)
    configuration.to_texts()
    for read in (parse_duration, parse_memory_size):
        read(text.partition("=")[2])
    configuration.validate()
