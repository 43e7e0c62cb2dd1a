"""Members of a training's state, predicted by the optimizer's own arithmetic.

Weights and second moments follow from first moments by the formula of the optimizer's step.
``rules`` are these formulas, operation by operation; a ``Prediction`` is one of them with its
numbers, as a coding names it; ``kinds`` are the optimizers, and which rules
may have made their states; ``choice`` finds on a sample which one did.

What is predicted are words like any other: a delta to them is stored, so a wrong prediction costs
bytes and nothing else.
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
