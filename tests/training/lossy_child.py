"""Trains with a lossy pipeline and deploys to a file until it is killed.

    python -m tests.training.lossy_child REPOSITORY FILE [first [N]]

Says ``served N DIGEST TIME`` once version N is in the file, and stops there after N versions.
``first``: a version is served before it is stored.
"""

from __future__ import annotations

import os
import sys
import time

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
        words = delivered.commit, digest(dict(delivered.state)), delivered.time_ns
        os.write(1, " ".join(("served", *map(str, words), "\n")).encode())
        said.append(words)
        while len(said) == stop:
            time.sleep(1)

    said: list[tuple[object, ...]] = []
    options = sys.argv[3:]
    first, stop = "first" in options, int(options[1]) if options[1:] else -1
    repo = mvc.Repository.init(sys.argv[1])
    pipeline = "every:2/1 | topk:0.1 | xor | lsb:16 | sparse | zstd:1"
    with mvc.Recorder(repo, model, pipeline=pipeline, deploy="prod", on_deploy=serve,
                      deploy_first=first) as recorder:  # fmt: skip
        while True:
            optimizer.zero_grad()
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            recorder.step()


if __name__ == "__main__":
    main()
