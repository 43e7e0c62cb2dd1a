"""Trains and records until it is killed; tells on stdout what it did, line by line.

``call N BITS`` before the N-th ``step``, ``done N DURABLE`` after it.
"""

from __future__ import annotations

import hashlib
import os
import sys

import torch
from torch import nn

import mvc

STEPS = 200


def digest(state: dict[str, torch.Tensor]) -> str:
    made = hashlib.sha256()
    for name, tensor in state.items():
        made.update(name.encode())
        made.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return made.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    repo = mvc.Repository.init(sys.argv[1])
    with mvc.Recorder(repo, model, optimizer, deploy="prod") as recorder:
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            say(f"call {number} {digest(model.state_dict())}")
            recorder.step(batch=number)
            say(f"done {number} {recorder.report.durable}")
    repo.close()


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
