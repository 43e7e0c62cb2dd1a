"""Ten models derived from one another, kept in several ways: MMlib's thesis."""

from .commands import Approaches, Networks, Served
from .determinism import Determinism

__all__ = ["COMMANDS"]

COMMANDS = {
    "architectures": Networks,
    "run": Approaches,
    "server": Served,
    "determinism": Determinism,
}
