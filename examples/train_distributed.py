"""One net learns scikit-learn's digits in several processes that talk only when it has moved.

Each process has its own share of the digits. Every global model becomes a version that is deployed
to the target ``global``:

    mvc init
    mvc train-distributed examples/train_distributed.py --workers 4
    mvc deploy --list global
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mvc.distributed

EPOCHS, BATCH, TEST = 10, 16, 397


def share(images: Tensor, labels: Tensor, rank: int, workers: int) -> Iterator[tuple[Tensor, ...]]:
    """The batches of one worker, the same ones in every run."""
    draw = torch.Generator().manual_seed(rank)
    images, labels = images[rank::workers], labels[rank::workers]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=draw).split(BATCH):
            yield images[rows], labels[rows]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with mvc.distributed.join(model, optimizer) as worker:
        stream = share(images[TEST:], labels[TEST:], worker.rank, worker.workers)
        for batch, wanted in worker.batches(stream):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), wanted).backward()
            optimizer.step()

    if worker.rank == 0:  # the model is the last global one, here and in all others
        with torch.no_grad():
            right = (model(images[:TEST]).argmax(1) == labels[:TEST]).double().mean().item()
        print(f"{right:.1%} of {TEST} digits that no worker has seen are read rightly")


if __name__ == "__main__":
    main()
