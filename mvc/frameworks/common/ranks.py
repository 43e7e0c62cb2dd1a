"""Support for trainings that accelerate runs in several processes.

Refuses sharded trainings, and collects the states of the random generators of all processes.
"""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object

from mvc.errors import WrongUsage
from mvc.training.state.rng import rng_state


def refuse_sharded() -> None:
    """Raises WrongUsage for sharded training, in which no process has the whole model."""
    kind = getattr(AcceleratorState().distributed_type, "value", "")
    if kind in {"FSDP", "DEEPSPEED", "MEGATRON_LM"}:
        raise WrongUsage(
            f"the training is sharded ({kind}): no process has the whole state",
            hint="commit the checkpoint folders that the training saves",
        )


def rng_of_other_processes() -> list[dict[str, Any]]:
    """The result of ``rng_state`` in each process except the first.

    Every process must call this function (it is collective).
    """
    if PartialState().num_processes == 1:
        return []
    states: list[dict[str, Any]] = gather_object([rng_state()])
    return states[1:]
