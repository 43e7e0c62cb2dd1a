"""Accelerate: what ``accelerator.save_state`` saves becomes a version as well."""

from mvc.frameworks.accelerate.recording import Attached, attach

__all__ = ["Attached", "attach"]
