"""A training whose version has a recipe, and its replay: see docs/provenance.md.

    python examples/train_recipe.py

Creates the repository ``models`` and a data set of random numbers in this folder.
"""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import mvc


def train(model, optimizer, data, *, epochs):  # an ordinary function
    digits = TensorDataset(*torch.load(data / "digits.pt"))
    for _ in range(epochs):
        for x, y in DataLoader(digits, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def main():
    folder = Path("data/digits")  # random numbers in this example
    folder.mkdir(parents=True, exist_ok=True)
    torch.save((torch.rand(256, 64), torch.randint(10, (256,))), folder / "digits.pt")

    with mvc.Repository.init("models") as repo:
        model = mvc.constructed(torch.nn.Linear, 64, 10)  # Linear(64, 10), with the call recorded
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        repo.commit(model.state_dict())  # the base: the weights before training

        with mvc.record(repo, model, optimizer, data=folder, service=train) as run:
            run.train(epochs=3)  # calls train(model, optimizer=..., data=..., epochs=3)

        print(run.result.id.short, run.seconds)
        print(mvc.retrain(repo, run.result.id, trust=True))  # a replay; .state has the weights


if __name__ == "__main__":  # required: a replay imports the file and must not train
    main()
