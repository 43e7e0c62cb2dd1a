"""Trainings that can be run again: recipes, data sets, replays, weights given up for them.

Recipes rest on ``models``, which says what builds a model. What only compares two runs of a model
is ``probe``. Its functions are those of ``verbs``, ``dataset`` and ``weights``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.models.models import read_model as model
    from mvc.recipes.dataset import add_data, data_set, data_sets
    from mvc.recipes.verbs import (
        calls,
        code,
        drop_weights,
        environment,
        record,
        retrain,
        retraining,
        store_weights,
    )
    from mvc.recipes.weights import alternatives

__all__ = [
    "add_data",
    "alternatives",
    "calls",
    "code",
    "data_set",
    "data_sets",
    "drop_weights",
    "environment",
    "model",
    "record",
    "retrain",
    "retraining",
    "store_weights",
]

_IN = {
    **dict.fromkeys(__all__, "mvc.recipes.verbs"),
    **dict.fromkeys(("add_data", "data_set", "data_sets"), "mvc.recipes.dataset"),
    "alternatives": "mvc.recipes.weights",
}

__getattr__ = face(__name__, _IN)
