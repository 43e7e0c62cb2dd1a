"""States of a training, predicted by the optimizer's own arithmetic.

Weights and second moments follow from first moments by the formula of the optimizer's step.
``rules`` has these formulas, operation by operation; a ``Prediction`` is one rule with its numbers,
as a coding names it; ``kinds`` lists the optimizers and their possible rules; ``choice`` determines
on a sample which rule was used.

A prediction is a base like any other: the delta from it is stored, so a wrong prediction only costs
bytes.
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
