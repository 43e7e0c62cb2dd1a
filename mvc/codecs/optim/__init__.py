"""Predicts weights and optimizer states by the arithmetic of the optimizer's step.

Weights and second moments follow from first moments (such as ``exp_avg``) by the formula of the
step. ``rules`` has these formulas, the rules, operation by operation. A ``Prediction`` is one rule
with its numbers, such as the learning rate. ``kinds`` lists the optimizers and their possible
rules. ``choice`` determines on a sample which rule was used.

The difference between prediction and new values is stored. So a wrong prediction only makes this
difference larger.
"""

from mvc.codecs.optim.choice import ChosenRule, choose_predictions
from mvc.codecs.optim.kinds import ORDER, kinds_of
from mvc.codecs.optim.prediction import GRADES, PREDICTED, Prediction

__all__ = [
    "GRADES",
    "ORDER",
    "PREDICTED",
    "ChosenRule",
    "Prediction",
    "choose_predictions",
    "kinds_of",
]
