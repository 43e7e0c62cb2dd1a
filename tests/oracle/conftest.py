"""The compiled loops, for comparing them with numpy and with the second reader."""

from tests.codecs.conftest import kernels

__all__ = ["kernels"]
