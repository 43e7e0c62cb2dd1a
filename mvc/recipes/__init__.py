"""Trainings that can be run again: recipes, data sets, replays, weights given up for them.

Recipes rest on ``models``, which says what builds a model. What only compares two runs of a model
is ``probe``. The functions of ``verbs`` are those of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.models.models import read_model as model
    from mvc.recipes.verbs import (
        add_data,
        calls,
        code,
        data_set,
        data_sets,
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

__getattr__ = face(
    __name__, {**dict.fromkeys(__all__, "mvc.recipes.verbs"), "alternatives": "mvc.recipes.weights"}
)
