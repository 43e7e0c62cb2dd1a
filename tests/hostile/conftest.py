"""The program in an empty repository, as in tests/cli."""

from tests.cli.conftest import alone, mvc

__all__ = ["alone", "mvc"]
