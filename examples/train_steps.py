"""A version of every training step, most of them as step recipes: see docs/recorder.md.

    python examples/train_steps.py

Creates the repository ``models`` and the file ``digits.pt`` (random numbers) in this folder.
"""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import mvc


def samples(path):
    return TensorDataset(*torch.load(path))


def step(model, optimizer, batch):  # everything that a step does
    x, y = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def main():
    file = Path("digits.pt")  # random numbers in this example
    torch.save((torch.rand(512, 64), torch.randint(10, (512,))), file)
    torch.set_num_threads(1)
    model = mvc.constructed(nn.Linear, 64, 10)  # nn.Linear(64, 10), with the call recorded
    optimizer = torch.optim.Adam(model.parameters())
    data = mvc.constructed(samples, file)
    order = torch.Generator().manual_seed(0)

    with mvc.Repository.init("models") as repo:
        with mvc.Recorder(repo, model, optimizer, recipe=step, data=data, prove=True) as recorder:
            for rows, batch in recorder.loader(batch_size=16, shuffle=True, generator=order):
                recorder.train(rows, batch)  # calls step(model, optimizer, batch), and records
        print(recorder.report.proof)

        old = repo.log()[10].id  # its weights were dropped; a replay restores them
        with mvc.retraining(repo, old, trust=True):
            print(len(repo.checkout(old)), "tensors")


if __name__ == "__main__":  # required: a replay imports the file and must not train
    main()
