"""For all tests: variables that mvc must not see; hypothesis measures no time.

A busy machine would fail by chance.
"""

from __future__ import annotations

from hypothesis import settings

from tests.prepared import forking, prepared
from tests.variables import put_aside

__all__ = ["forking", "prepared"]

put_aside()

settings.register_profile("mvc", deadline=None)
settings.load_profile("mvc")
