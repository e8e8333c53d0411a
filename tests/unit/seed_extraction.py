"""Reads the names out of the seed documents: Javadoc pages and Java snippets, as text.

A name is written `Class`, `Class.method()`, `Class.FIELD`, or `Class(argument, argument)` for a constructor, already in
Python's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Types of Java itself, of its testing, and of the example code; and what only stands for a task in an argument.
NOT_OURS = frozenset(
    [
        "Boolean",
        "Callable",
        "ClassLoader",
        "Collection",
        "CompletableFuture",
        "Exception",
        "Executor",
        "ExecutionJobVertex",
        "ExecutionVertex",
        "FSDataInputStream",
        "FlinkException",
        "Function",
        "Integer",
        "IOException",
        "List",
        "Logger",
        "Long",
        "Map",
        "MyState",
        "MyStateTypeSerializer",
        "Object",
        "Optional",
        "Override",
        "Predicate",
        "Serializable",
        "Set",
        "StatefulMapFunction",
        "String",
        "System",
        "Throwable",
        "Throws",
        "Tuple2",
        "Type",
        "T",
        "TypeHint",
        "Void",
        "Nullable",
        "AutoCloseable",
        "KubernetesConfigMap",
    ]
)
_OBJECT_METHODS = frozenset(
    {"clone", "equals", "finalize", "get_class", "hash_code", "notify", "notify_all", "to_string", "wait"}
)
_IDENTIFIER = r"[A-Za-z_]\w*"
_DECLARATION = re.compile(r"public\s+(?:abstract\s+)?(class|interface|enum)\s+(\w+)")


def names_in(documents: Iterable[str]) -> list[str]:
    """All names in the documents, sorted, each once."""
    found: set[str] = set()
    for document in documents:
        text = document.replace("\u00a0", " ")
        if "\npublic interface " in text or text.startswith("public interface ") or "import org.apache" in text:
            found.update(_from_snippets(text))
        else:
            found.update(_from_javadoc(text))
    return sorted(found)


def _from_snippets(text: str) -> Iterator[str]:
    """Java declarations and examples, one after the other without a separator."""
    text = re.sub(r"//[^\n]*", "", text)
    for match in _DECLARATION.finditer(text):
        kind, name = match.groups()
        start = text.find("{", match.end())
        if name in NOT_OURS or start < 0:
            continue
        body = _braces(text, start)
        yield name
        yield from _members(name, kind, body)
    yield from _used_in_examples(text)


def _members(name: str, kind: str, body: str) -> Iterator[str]:
    if kind == "enum":
        head = body.split(";", maxsplit=1)[0]
        for constant in re.findall(r"\b([A-Z][A-Z0-9_]+)\b(?:\([^)]*\))?\s*(?=,|$)", head.strip()):
            yield f"{name}.{constant}"
    for constructor in re.findall(rf"\b{name}\s*\(([^)]*)\)\s*(?:throws[^;]*)?[;{{]", body):
        yield f"{name}({', '.join(_arguments(constructor))})"
    for method in re.findall(rf"[\w>\]]\s+({_IDENTIFIER})\s*\([^)]*\)\s*(?:throws [\w, ]+)?;", body):
        if method != name:
            yield f"{name}.{snake(method)}()"
    for signature in re.findall(r"[^;{}]+\([^)]*\)\s*(?:throws [\w, ]+)?;", body):
        yield from _ours(re.findall(r"\b[A-Z]\w*[a-z]\w*\b|\bJobID\b", signature))


def _used_in_examples(text: str) -> Iterator[str]:
    """Classes that examples make, constants that they name, methods that they call on variables of a known type."""
    yield from _ours(re.findall(r"\bnew (\w+)(?:<[^>]*>)?\(", text))
    for line in re.findall(r"\bclass \w+ extends (\w+)[^{]*?\bimplements (\w+)", text):
        yield from _ours(line)
    for owner, inner, constant in re.findall(r"\b([A-Z]\w+)\.(?:([A-Z][a-z]\w+)\.)?([A-Z][A-Z_]+)\b", text):
        if owner not in NOT_OURS:
            yield owner
            yield f"{inner or owner}.{constant}"
    for owner, method in re.findall(r"\b([A-Z]\w+)\.([a-z]\w+)\(", text):
        if owner not in NOT_OURS:
            yield f"{owner}.{snake(method)}()"
    yield from _calls(text)


def _calls(text: str) -> Iterator[str]:
    """Methods called on a variable, by the type that it was last declared with before the call."""
    declaration = r"\b(?P<kind>[A-Z]\w+)(?:<[\w, <>]*>)?\s+(?P<declared>[a-z]\w*)\s*[=;)]"
    call = r"\b(?P<variable>[a-z]\w*)\.(?P<method>[a-z]\w*)\("
    kinds: dict[str, str] = {}
    for match in re.finditer(f"{declaration}|{call}", text):
        if match["kind"]:
            kinds[match["declared"]] = match["kind"]
        elif kinds.get(match["variable"], "System") not in NOT_OURS:
            yield f"{kinds[match['variable']]}.{snake(match['method'])}()"


def _from_javadoc(text: str) -> Iterator[str]:
    """A Javadoc page: the class of its title, its methods, and the classes that it mentions."""
    title = re.search(r"(?:Class|Interface) (\w+)", text)
    assert title is not None
    name = title.group(1)
    yield name
    for constructor in re.findall(rf"(?:protected|public|Constructors?\s+Description)\s+{name}\(([^)]*)\)", text):
        yield f"{name}({', '.join(_arguments(constructor))})"
        yield from _ours(re.findall(r"\b([A-Z]\w*[a-z]\w*) \w+(?:,|$)", constructor))
    yield from _ours(re.findall(r"(?:copied from interface:|in interface ?)(?:[a-z]\w*\.)*([A-Z]\w+)", text))
    for method in _javadoc_methods(text, name):
        yield f"{name}.{method}()"
    for path, listed in re.findall(r"inherited from (?:interface|class)\s+([\w.]+)\n([^\n-][^\n]*)", text):
        owner = path.rpartition(".")[2]
        if owner not in NOT_OURS and not owner.startswith("StateHandleStore"):
            for member in re.split(r",\s*", listed.strip()):
                if re.fullmatch(_IDENTIFIER, member) and snake(member) not in _OBJECT_METHODS:
                    yield f"{owner}.{member}" if member.isupper() else f"{owner}.{snake(member)}()"
    for mentioned in re.findall(r"\borg\.apache\.flink(?:\.[a-z]\w*)+\.((?:[A-Z]\w+)(?:\.[A-Z]\w+)?)", text):
        yield from _ours(mentioned.split("."))
    yield from _ours(re.findall(r"\b(?:protected|public)(?: final| abstract)* ([A-Z]\w+)(?:<[^>]*>)? \w+\(", text))
    fields = re.findall(r"^protected final [\w.]+ (\w+)$", text, re.MULTILINE)
    yield from (f"{name}.{snake(field)}" for field in fields)
    yield from _ours(re.findall(r"\b(KvState\w+|Flink\w+Client|\w+HaServices)\b", text))


def _javadoc_methods(text: str, name: str) -> Iterator[str]:
    declared = r"^[ \t]*(?:(?:public|protected|abstract|final) )*(?:\w[\w.,? <>]*[\w>]) (\w+)\((?!e\.g\.)[^()]*\)"
    for method in re.findall(declared, text, re.MULTILINE):
        if method != name and method[0].islower() and snake(method) not in _OBJECT_METHODS:
            yield snake(method)


def _ours(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name not in NOT_OURS)


def _arguments(text: str) -> list[str]:
    flat = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", text)).replace("@Nullable", "")
    return [snake(argument.split()[-1]) for argument in flat.split(",") if argument.strip()]


def _braces(text: str, start: int) -> str:
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return text[start + 1 :]


def snake(name: str) -> str:
    """The Python spelling of a Java name."""
    if name.isupper():
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
