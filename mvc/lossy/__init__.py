"""Lossy stages of pipelines, which change the weights of a training before they are stored.

    reducer      turns the state of a training into the state to store
    topk, grid, bits, weights    stages that make production weights, near the training weights
    lc           stages that store a state as the previous state plus a coded step
    decisions, guard    stages that decide whether a version is saved
    production   applies the stages above to each version of a training

No module here does I/O. Code that needs a repository is in ``mvc.repo.commit.commit`` and
``mvc.training``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.lossy.accuracy import Evaluate
    from mvc.lossy.decisions import DriftStage, Monitor, OnNewWeights
    from mvc.lossy.lc.payload import decode_steps, encode_steps
    from mvc.lossy.lc.quantise import quantise
    from mvc.lossy.lc.step import Addition
    from mvc.lossy.production import Production
    from mvc.lossy.reducer import Arrays, Reducer
    from mvc.lossy.topk import TopKOfEach

__all__ = [
    "Addition",
    "Arrays",
    "DriftStage",
    "Evaluate",
    "Monitor",
    "OnNewWeights",
    "Production",
    "Reducer",
    "TopKOfEach",
    "decode_steps",
    "encode_steps",
    "quantise",
]

_IN = {
    "Addition": "mvc.lossy.lc.step",
    "Arrays": "mvc.lossy.reducer",
    "DriftStage": "mvc.lossy.decisions",
    "Evaluate": "mvc.lossy.accuracy",
    "Monitor": "mvc.lossy.decisions",
    "OnNewWeights": "mvc.lossy.decisions",
    "Production": "mvc.lossy.production",
    "Reducer": "mvc.lossy.reducer",
    "TopKOfEach": "mvc.lossy.topk",
    "decode_steps": "mvc.lossy.lc.payload",
    "encode_steps": "mvc.lossy.lc.payload",
    "quantise": "mvc.lossy.lc.quantise",
}

__getattr__ = face(__name__, _IN)
