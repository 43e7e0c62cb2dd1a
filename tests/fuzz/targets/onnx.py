"""ONNX files."""

from tests.adapters import test_fuzz
from tests.fuzz.targets.files import taken_apart


def run(data: bytes) -> None:
    taken_apart(data)


def seeds() -> list[bytes]:
    return [test_fuzz.SEEDS["onnx"]]
