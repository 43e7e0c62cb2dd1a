"""A training dies and comes back from a lossy checkpoint: the LC-Checkpoint paper.

LC, SCAR, TOPN and full checkpoints see the same trainings and failures.
"""

from .commands import Buckets, Overhead, Sizes, Trials

__all__ = ["COMMANDS"]

COMMANDS = {"run": Trials, "sizes": Sizes, "buckets": Buckets, "overhead": Overhead}
