"""Lightning's own ModelCheckpoint writes to, deletes from and resumes from a branch."""

from __future__ import annotations

import torch

from tests.frameworks.need import need

lightning = need("lightning", "fsspec")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from tests.frameworks.lightning_runs import fit as fitted  # noqa: E402


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def fit(net, epochs, checkpoint, path=None):
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    return fitted(
        checkpoint, resume=path, module=lambda: net, train=loader, max_epochs=epochs,
        enable_checkpointing=True,
    )[1]  # fmt: skip


def test_model_checkpoint(repo, beside, tmp_path):
    options = {"monitor": "loss", "save_top_k": 2, "save_last": True}
    options |= {"every_n_train_steps": 2, "dirpath": "mvc://models@main/ck"}
    torch.manual_seed(0)
    whole = Net()
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    checkpoint = ModelCheckpoint(**options)
    fit(whole, 4, checkpoint)
    paths = sorted(repo.manifest().by_path)
    assert len(paths) == 3 and paths[-1] == "ck/last.ckpt"
    assert checkpoint.best_model_path.removeprefix("mvc://models@main/") in paths
    messages = [e.commit.message for e in repo.log()]
    assert any(m.startswith("remove ck/epoch=") for m in messages)
    removed = next(m for m in messages if m.startswith("remove")).removeprefix("remove ")
    assert removed not in paths  # and in history all the same
    assert any(removed in repo.manifest(e.id).by_path for e in repo.log())

    repo.branch("again", list(repo.log())[-1].id.hex())
    options["dirpath"] = "mvc://models@again/ck"
    half = Net()
    half.load_state_dict(start)
    fit(half, 2, ModelCheckpoint(**options))
    resumed = Net()
    done = fit(resumed, 4, ModelCheckpoint(**options), "mvc://models@again/ck/last.ckpt")
    assert done.global_step == 16
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models"]
