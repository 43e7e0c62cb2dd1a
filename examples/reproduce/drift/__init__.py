"""A label that hardly occurs, then comes online: what versions of the model cost.

VSOL's thesis on virtual drift. Trainings are recorded once and replayed for every pipeline.
"""

from .bounds import Bounds
from .commands import Accuracy, Pipelines, Split, Table, Trainings
from .delay import Delays
from .timing import Times

__all__ = ["COMMANDS"]

COMMANDS = {
    "split": Split,
    "train": Trainings,
    "run": Pipelines,
    "table": Table,
    "accuracy": Accuracy,
    "bounds": Bounds,
    "delay": Delays,
    "times": Times,
}
