"""GGUF files, and what is said of a stored one whose bytes outside of tensors are any."""

from mvc.adapters.files.detect import parse_file
from mvc.adapters.files.facts import file_facts
from tests.adapters import test_fuzz
from tests.adapters.helpers import MemorySource, to_entry
from tests.fuzz.targets.files import taken_apart

SMALL = to_entry(parse_file(MemorySource(test_fuzz.SEEDS["gguf"]), "x"))[0]


def run(data: bytes) -> None:
    taken_apart(data)
    file_facts(SMALL, lambda: data)


def seeds() -> list[bytes]:
    return [test_fuzz.SEEDS["gguf"]]
