"""For all tests: hypothesis measures no time, because a busy machine would fail by chance."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("mvc", deadline=None)
settings.load_profile("mvc")
