"""What the ranks of the tests of torch.distributed.checkpoint do; each is a process.

``run(act, world, folder, ...)`` starts them and gives back what each of them returned.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import mvc
from mvc.frameworks.dcp import MvcReader, MvcWriter
from mvc.training.pushing import NotPushed

_LOADED = ["tests.frameworks.dcp_ranks", "mvc.frameworks.dcp", "torch._dynamo"]
"""What every rank would import otherwise, by itself."""

PLACES = {
    "model.uneven": Shard(0),  # 7 rows
    "model.columns": Shard(1),
    "model.copied": Replicate(),
    "model.short": Shard(0),  # 1 row, so that all ranks but one have nothing
    "model.empty": Shard(0),
    "optim.state.uneven.exp_avg": Shard(0),
}


def state(seed: int) -> dict[str, Any]:
    """Whole tensors of many kinds, and values beside them."""
    draw = torch.Generator().manual_seed(seed)

    def bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Any bits at all: NaN payloads, infinities, subnormals."""
        count = torch.empty(shape, dtype=dtype).nbytes
        raw = torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8)
        return raw.view(dtype).reshape(shape)

    return {
        "model": {
            "uneven": bits(7, 5, dtype=torch.float32),
            "columns": bits(3, 6, dtype=torch.bfloat16),
            "copied": bits(4, 4, dtype=torch.float64),
            "short": bits(1, 9, dtype=torch.float16),
            "empty": torch.zeros(0, 3),
            "plain": bits(5, 3, dtype=torch.int64),
            "turned": bits(6, 4, dtype=torch.float32).t(),
            "count": torch.tensor(seed),
        },
        "optim": {
            "state": {
                "uneven": {"exp_avg": bits(7, 5, dtype=torch.float32), "step": torch.tensor(4.0)}
            },
            "param_groups": [{"lr": 0.1 * seed, "betas": (0.9, 0.999), "name": None}],
        },
        "epoch": seed,
        "seen": {seed, 2},  # a class that no state of mvc holds
    }


def spread(whole: dict[str, Any], world: int) -> dict[str, Any]:
    """The state with DTensors in the places that have a placement."""
    mesh = init_device_mesh("cpu", (world,))

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {k: walk(v, f"{path}.{k}" if path else k) for k, v in value.items()}
        return distribute_tensor(value, mesh, [PLACES[path]]) if path in PLACES else value

    return walk(whole, "")


def flat(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a nested state, whole, by its place."""
    if isinstance(value, torch.Tensor):
        return {path: value.full_tensor() if hasattr(value, "full_tensor") else value}
    items = value.items() if isinstance(value, dict) else ()
    return {k: t for key, item in items for k, t in flat(item, f"{path}.{key}").items()}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    def raw(t: torch.Tensor) -> bytes:
        return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return (a.dtype, a.shape, raw(a)) == (b.dtype, b.shape, raw(b))


# -- what ranks do -----------------------------------------------------------------------------

Place = tuple[str, str, str]
"""Repository, branch or revision, path."""


def writer(place: Place) -> MvcWriter:
    return MvcWriter(place[0], branch=place[1], path=place[2])


def reader(place: Place) -> MvcReader:
    return MvcReader(place[0], place[1], path=place[2])


def save(rank: int, world: int, place: Place, seed: int) -> None:
    dcp.save(spread(state(seed), world), storage_writer=writer(place))


def publish(rank: int, world: int, place: Place, seed: int) -> list[str]:
    """Saves the weights for those who follow the remote; what mvc warns of."""
    to = MvcWriter(place[0], branch=place[1], path=place[2], deploy="prod", push="origin")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NotPushed)
        dcp.save(spread(state(seed), world)["model"], storage_writer=to)
    return [str(each.message) for each in said if each.category is NotPushed]


def save_behind(rank: int, world: int, place: Place, seed: int) -> None:
    kept = spread(state(seed), world)
    future = dcp.async_save(kept, storage_writer=writer(place))
    with torch.no_grad():
        for name in ("uneven", "columns", "copied"):
            kept["model"][name].to_local().zero_()  # the save goes on with what it was given
    future.result()


def load(rank: int, world: int, place: Place, seed: int) -> list[str]:
    """The places where what was loaded differs from the state of ``seed``."""
    loaded = spread(state(seed + 1), world)
    dcp.load(loaded, storage_reader=reader(place))
    wanted, found = flat(state(seed)), flat(loaded)
    different = [k for k in wanted if not same_bits(wanted[k], found[k])]
    for name in ("epoch", "seen"):
        different += [name] * (loaded[name] != state(seed)[name])
    groups = loaded["optim"]["param_groups"] != state(seed)["optim"]["param_groups"]
    return different + ["param_groups"] * groups


def trained(world: int, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def save_fsdp(rank: int, world: int, place: Place) -> dict[str, bytes]:
    model, optimizer = trained(world, 3)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, storage_writer=writer(place))
    return {k: t.numpy().tobytes() for k, t in flat({"model": weights, "optim": moments}).items()}


def load_fsdp(rank: int, world: int, place: Place) -> dict[str, bytes]:
    model, optimizer = trained(world, 1)
    weights, moments = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optim": moments}
    dcp.load(loaded, storage_reader=reader(place))
    return {k: t.numpy().tobytes() for k, t in flat(loaded).items()}


class Dies(dcp.DefaultSavePlanner):
    """Kills its process once a part of the shard is written."""

    def resolve_data(self, write_item: Any) -> Any:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def save_and_die(rank: int, world: int, place: Place, seed: int) -> None:
    dcp.save(spread(state(seed), world), storage_writer=writer(place), planner=Dies())


def record(rank: int, world: int, root: str) -> tuple[str, str]:
    """What the Recorder and ``commit`` say to a sharded model."""
    model, optimizer = trained(world, 1)
    said = ["", ""]
    with mvc.Repository.init(Path(root) / f"r{rank}") as repo:
        try:
            with mvc.Recorder(repo, model, optimizer) as recorder:
                recorder.step()
        except mvc.MvcError as error:
            said[0] = f"{type(error).__name__}: {error} {error.hint}"
        try:
            repo.commit(model.state_dict())
        except mvc.MvcError as error:
            said[1] = f"{type(error).__name__}: {error} {error.hint}"
        assert not repo.handle.store.snapshot.ref("heads/main")
    return said[0], said[1]


# -- starting them -------------------------------------------------------------------------------


def _rank(act: Any, rank: int, world: int, folder: Path, args: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    outcome: Any
    try:
        store = dist.FileStore(str(folder / "store"), world)
        wait = timedelta(seconds=30)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=wait)
        outcome = "done", act(rank, world, *args)
        dist.barrier()  # nobody leaves while others still connect
    except BaseException:
        outcome = "failed", traceback.format_exc()
    (folder / f"{rank}.out").write_bytes(pickle.dumps(outcome))
    os._exit(0)  # a peer that has died must not hold up the end


def run(act: Any, world: int, folder: Path, *args: Any) -> list[tuple[str, Any]]:
    """``("done", result)``, ``("failed", traceback)`` or ``("killed", None)`` of each rank."""
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    ranks = [
        context.Process(target=_rank, args=(act, r, world, folder, args)) for r in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
        if process.is_alive():
            process.kill()
            process.join()
    outs = [folder / f"{r}.out" for r in range(world)]
    return [pickle.loads(o.read_bytes()) if o.exists() else ("killed", None) for o in outs]
