"""A training dies and comes back from a lossy checkpoint: the LC-Checkpoint paper.

LC, SCAR, TOPN and full checkpoints see the same trainings and failures.
"""

from .commands import Buckets, Exponents, Failure, Noise, Overhead, Sizes, Tables, Trials

__all__ = ["COMMANDS"]

COMMANDS = {
    "run": Trials,
    "sizes": Sizes,
    "tables": Tables,
    "exponents": Exponents,
    "buckets": Buckets,
    "noise": Noise,
    "overhead": Overhead,
    "failure": Failure,
}
