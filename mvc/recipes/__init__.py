"""Replayable trainings: mvc can compute the weights of a version again from a recipe.

A recipe contains the code, the data sets and the settings of a training. A replay runs the training
again. This module exports the public functions of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.models.models import read_model as model
    from mvc.recipes.dataset import add_data, data_set, data_sets
    from mvc.recipes.recipe import carrier_of
    from mvc.recipes.verbs import (
        calls,
        code,
        drop_weights,
        environment,
        record,
        retrain,
        retraining,
        steps,
        store_weights,
    )
    from mvc.recipes.weights import alternatives, late

__all__ = [
    "add_data",
    "alternatives",
    "calls",
    "carrier_of",
    "code",
    "data_set",
    "data_sets",
    "drop_weights",
    "environment",
    "late",
    "model",
    "record",
    "retrain",
    "retraining",
    "steps",
    "store_weights",
]

_IN = {
    **dict.fromkeys(__all__, "mvc.recipes.verbs"),
    **dict.fromkeys(("add_data", "data_set", "data_sets"), "mvc.recipes.dataset"),
    **dict.fromkeys(("alternatives", "late"), "mvc.recipes.weights"),
    "carrier_of": "mvc.recipes.recipe",
}

__getattr__ = face(__name__, _IN)
