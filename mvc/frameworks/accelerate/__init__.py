"""Accelerate: every ``accelerator.save_state`` commits a version, too."""

from mvc.frameworks.accelerate.recording import Attached, attach

__all__ = ["Attached", "attach"]
