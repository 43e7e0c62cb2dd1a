"""Accelerate: every ``accelerator.save_state`` also commits a version."""

from mvc.frameworks.accelerate.recording import Attached, attach

__all__ = ["Attached", "attach"]
