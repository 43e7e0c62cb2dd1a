"""Pipelines, which encode and decode tensors. A pipeline is a line of stages.

An example is ``xor | planes | zstd:1``. The lossless stages are in ``mvc.codecs``, all other stages
in ``mvc.lossy``. This package does no I/O and starts no threads. Several threads may encode chunks
at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.pipelines.pipeline import Pipeline
    from mvc.pipelines.requirements import (
        ACCURACY_DROPS,
        SPEEDS,
        Requirements,
        pipeline_and_bound,
    )
    from mvc.pipelines.table import PRESETS, STAGES, read_stages

__all__ = [
    "ACCURACY_DROPS",
    "PRESETS",
    "SPEEDS",
    "STAGES",
    "Pipeline",
    "Requirements",
    "pipeline_and_bound",
    "read_stages",
]

_IN = {
    "ACCURACY_DROPS": "mvc.pipelines.requirements",
    "PRESETS": "mvc.pipelines.table",
    "Pipeline": "mvc.pipelines.pipeline",
    "Requirements": "mvc.pipelines.requirements",
    "SPEEDS": "mvc.pipelines.requirements",
    "STAGES": "mvc.pipelines.table",
    "pipeline_and_bound": "mvc.pipelines.requirements",
    "read_stages": "mvc.pipelines.table",
}

__getattr__ = face(__name__, _IN)
