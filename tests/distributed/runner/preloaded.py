"""What the processes of the tests share: it is imported before they are forked."""

import torch
import torch._dynamo

import mvc.distributed.runner.participant  # noqa: F401
from tests.distributed.runner import small

torch.set_num_threads(1)
small.Trainer(0, count=1)
