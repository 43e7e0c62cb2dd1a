"""Write a series of checkpoints, as a model in use leaves them behind.

    python examples/make_series.py digits OUT    31 versions of the conv net, one batch apart
    python examples/make_series.py resnet OUT    9 versions of ResNet-50, most with a new head only

Invariant: with the same options, torch build and processor, the same bytes are written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from digits import drift_stream, number_images
from models import conv_net, resnet50
from training import rmsprop, train_batch, train_epoch, train_head

State = dict[str, Tensor]

RESNET_PLAN = ("base", "head", "head", "whole", "head", "whole", "head", "head", "whole")
"""What was trained for each version, from the one before: a body, then heads fitted to it."""


def digit_versions(
    versions: int = 31, *, label: int = 6, epochs: int = 2, batch_size: int = 80, seed: int = 2
) -> Iterator[State]:
    """Train the conv net offline, then on a drifting stream; yield its state after each batch.

    Version 0 is the offline model, which never saw class ``label``. The state yielded is the
    live one: it changes when the next is asked for. torch's global generator is left as found
    once the iterator is used up or closed.

    Raises:
        ValueError: ``versions`` is below 2, or as for ``drift_stream``.
    """
    if versions < 2:
        raise ValueError(f"a series has at least 2 versions, not {versions}")
    batches = versions - 1
    stream = drift_stream(label, batches=batches, batch_size=batch_size, seed=seed + label)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + label)
        model = conv_net()
        optimizer = rmsprop(model)
        for _ in range(epochs):
            train_epoch(model, optimizer, stream.offline, batch_size)
        yield model.state_dict()
        for batch in stream.online:
            train_batch(model, optimizer, batch)
            yield model.state_dict()


def resnet_versions(
    *, classes: int = 100, batch_size: int = 32, size: int = 64, warm_up: int = 60, seed: int = 2
) -> Iterator[State]:
    """Train ResNet-50 on two-digit numbers along ``RESNET_PLAN``; yield its state each time.

    ``base`` is ``warm_up`` SGD steps (lr 0.03, momentum 0.9) from random weights. ``head``
    changes ``fc.weight`` and ``fc.bias`` alone. ``whole`` is one SGD step of lr 1e-3 in train
    mode, which moves all parameters and BN buffers; its weight decay of 1e-4 reaches the
    tensors whose gradient alone would round to no change. States are live, as above.
    """
    images, labels = number_images((warm_up + len(RESNET_PLAN)) * batch_size, size, seed=seed)
    data = list(zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = resnet50(classes)
        warming = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
        for batch in data[:warm_up]:
            train_batch(model, warming, batch)
        slow = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=1e-4)
        for kind, batch in zip(RESNET_PLAN, data[warm_up:], strict=True):
            if kind == "head":
                train_head(model, batch)
            elif kind == "whole":
                train_batch(model, slow, batch)
            yield model.state_dict()


def write_series(states: Iterator[State], out: Path, file_format: str) -> int:
    """Write each state as ``out/0000.<format>``, ``out/0001.<format>``...; return the bytes.

    Raises:
        FileExistsError: ``out`` holds something already.
    """
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty: name a new folder")
    written = 0
    for number, state in enumerate(states):
        path = out / f"{number:04d}.{file_format}"
        if file_format == "pt":
            torch.save(state, path)
        else:
            save_file(state, path)
        written += path.stat().st_size
    return written


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a series of checkpoints.")
    parser.add_argument("--threads", type=int, default=2, help="part of the result; default 2")
    kinds = parser.add_subparsers(dest="kind", required=True)
    digits = kinds.add_parser("digits", help="conv net on a drifting stream, one batch apart")
    digits.add_argument("out", type=Path)
    digits.add_argument("--versions", type=int, default=31)
    digits.add_argument("--format", choices=["safetensors", "pt"], default="safetensors")
    digits.add_argument("--label", type=int, default=6, help="the class that drifts in")
    digits.add_argument("--epochs", type=int, default=2, help="offline, before version 0")
    digits.add_argument("--seed", type=int, default=2)
    resnet = kinds.add_parser("resnet", help="ResNet-50: 5 new heads, 3 whole changes, as .pt")
    resnet.add_argument("out", type=Path)
    resnet.add_argument("--seed", type=int, default=2)
    options = parser.parse_args(arguments)

    # How sums are split over threads decides their last bits, so the number is fixed.
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    try:
        if options.kind == "digits":
            states = digit_versions(
                options.versions, label=options.label, epochs=options.epochs, seed=options.seed
            )
            written = write_series(states, options.out, options.format)
        else:
            written = write_series(resnet_versions(seed=options.seed), options.out, "pt")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{written / 1e6:.1f} MB in {options.out}{os.sep}")


if __name__ == "__main__":
    main()
