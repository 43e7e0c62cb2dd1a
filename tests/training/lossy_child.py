"""Trains with a lossy pipeline and deploys to a file until it is killed.

    python -m tests.training.lossy_child REPOSITORY FILE

Says ``served N DIGEST`` once version N is in the file.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

import mvc
from mvc.serving.sinks import FileSink
from mvc.state import ServedVersion
from tests.training.child import digest


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    sink = FileSink(sys.argv[2])

    def serve(delivered: ServedVersion) -> None:
        sink(delivered)
        os.write(1, f"served {delivered.commit} {digest(dict(delivered.state))}\n".encode())

    repo = mvc.Repository.init(sys.argv[1])
    pipeline = "every:2/1 | topk:0.1 | xor | lsb:16 | sparse | zstd:1"
    with mvc.Recorder(repo, model, pipeline=pipeline, deploy="prod", on_deploy=serve) as recorder:
        while True:
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            recorder.step()


if __name__ == "__main__":
    main()
