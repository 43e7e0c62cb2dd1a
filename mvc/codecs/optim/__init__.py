"""Predicts the weights and optimizer states of a new version, so that its delta becomes small.

After an optimizer's step, new weights and second moments can be computed from the old ones and from
first moments (such as ``exp_avg``). ``rules`` has the formulas. A ``Prediction`` is a formula
together with its numbers, such as the learning rate. ``kinds`` lists the formulas of each
optimizer. ``choice`` tests on a sample of the values which formula fits.

A delta stores the difference between the predicted values and the new values. A wrong prediction
makes the delta larger, but the new values are restored exactly.
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
