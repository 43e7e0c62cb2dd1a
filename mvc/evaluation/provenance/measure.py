"""What an approach costs on the ten models: measured run by run, kept as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mvc.api import Repository
from mvc.errors import BadModelFile, DamagedData
from mvc.evaluation.common.progress import Tell, named
from mvc.evaluation.common.results import bytes_in, empty_folder, read_result, write_result
from mvc.evaluation.provenance.approaches import Approach, Model, changed_tensors, root_of
from mvc.evaluation.provenance.flow import BASES, Models
from mvc.ids import CommitId
from mvc.io.files import FileSystem
from mvc.repo.commit.request import CommitOptions

__all__ = ["Figures", "Run", "measure", "runs"]


@dataclass(frozen=True)
class Figures:
    """One model kept by one approach. Sizes in bytes; seconds by step, in order.

    ``stored``: by how much everything below ``.mvc`` has grown. ``payload``: the encoded
    weights among that, full or as deltas; the rest is metadata: headers, manifest, journal, and
    what the version carries, such as its environment.
    ``changed``: the tensors that are not those of the base, uncompressed; ``tensors`` counts
    them (for U1 all). ``processor``: seconds of the processor to save and to recover, all
    threads together.
    """

    stored: int
    payload: int
    changed: int
    tensors: int
    save: Mapping[str, float]
    recover: Mapping[str, float]
    processor: Mapping[str, float]

    @property
    def metadata(self) -> int:
        """What was stored beside weights."""
        return self.stored - self.payload


Run = Mapping[str, Figures]
"""The figures of one run by use case."""


def runs(
    models: Models,
    approach: Approach,
    count: int,
    folder: Path,
    fs: FileSystem,
    tell: Tell | None = None,
) -> list[Run]:
    """So many runs; those that ``folder`` does not have yet are measured."""
    own = folder / models.experiment.name
    fs.make_dirs(own)
    file = own / f"{approach.name}.json"
    with fs.lock(own / f"{approach.name}.lock"):  # nobody measures it beside this
        known = _read(fs, file)
        while len(known) < count:
            said = named(tell, f"{models.experiment.name} {approach.title} {len(known) + 1}")
            with empty_folder(own / f"{approach.name}.repository") as place:
                known.append(measure(models, approach, place, said))
            write_result(fs, file, {"runs": [_plain(run) for run in known]})
        return known[:count]


def _read(fs: FileSystem, file: Path) -> list[Run]:
    found = read_result(fs, file)
    if found is None:
        return []
    try:
        return [{name: Figures(**run[name]) for name in BASES} for run in found["runs"]]
    except (KeyError, TypeError):
        raise BadModelFile(f"{file} is no result", hint="delete it: it is made again") from None


def _plain(run: Run) -> dict[str, Any]:
    return {name: asdict(figures) for name, figures in run.items()}


def measure(models: Models, approach: Approach, folder: Path, tell: Tell | None = None) -> Run:
    """Saves the ten models in new repositories in ``folder``, then recovers and checks them all.

    A repository is opened anew for each model, so nothing of its base is in memory. Raises
    DamagedData if a single bit of a recovered network differs.
    """
    _warm_up(models, folder / "warm-up")
    places = {name: folder / (name if approach.apart else "all") for name in BASES}
    for place in set(places.values()):
        Repository.init(place).close()
    commits: dict[str, CommitId] = {}
    kept: dict[str, dict[str, Any]] = {}
    for number, use_case in enumerate(BASES, start=1):
        commits[use_case], kept[use_case] = _save(models, approach, places, use_case, commits)
        if tell is not None:
            tell("saving", number, len(BASES))
    found = {}
    for number, (use_case, commit) in enumerate(commits.items(), start=1):
        seconds, spent = _recover(models, approach, places[use_case], use_case, commit)
        kept[use_case]["processor"]["recover"] = spent
        found[use_case] = Figures(**kept[use_case], recover=seconds)
        if tell is not None:
            tell("recovering", number, len(BASES))
    return found


def _warm_up(models: Models, folder: Path) -> None:
    """What a process does once belongs to no model."""
    models.experiment.architecture.empty()
    Repository.init(folder).close()
    for pipeline in ("none", "lossless"):
        with Repository.open(folder, discover=False) as repo:
            repo.commit(
                {"weight": torch.zeros(1 << 16)},
                pipeline=pipeline,
                reset_point=True,
                options=CommitOptions(environment=True),
            )
            repo.environment()
            root_of(repo.checkout())
            repo.stats()


def _save(
    models: Models,
    approach: Approach,
    places: Mapping[str, Path],
    use_case: str,
    commits: Mapping[str, CommitId],
) -> tuple[CommitId, dict[str, Any]]:
    """The version, and what is known of its figures. Nodes commit to branches of their own."""
    name, folder = BASES[use_case], places[use_case]
    base = None if name is None or approach.apart else commits[name]
    branch = f"node-{use_case[3]}" if base and use_case.startswith("U3") else None
    state = models.state(use_case)
    old = {} if name is None else models.state(name)
    changed = changed_tensors(old, state)
    with Repository.open(folder, discover=False) as repo:
        if branch and branch not in {ref.name for ref in repo.branches()}:
            repo.branch(branch, str(base))
    before, weights_before = _sizes(folder)
    with Repository.open(folder, discover=False) as repo:
        model = Model(use_case, state, base, old, branch, models.experiment)
        begun = time.process_time()
        saved = approach.save(repo, model)
        spent = time.process_time() - begun
    after, weights_after = _sizes(folder)
    return saved.commit, {
        "stored": after - before,
        "payload": weights_after - weights_before,
        "changed": sum(state[key].nbytes for key in changed),
        "tensors": len(changed),
        "save": saved.seconds,
        "processor": {"save": spent},
    }


def _sizes(folder: Path) -> tuple[int, int]:
    """Bytes of everything below ``.mvc``, and of weights among them."""
    with Repository.open(folder, discover=False) as repo:
        sizes = repo.stats().bytes
        carried = _carried(repo)
    return bytes_in(folder / ".mvc"), sizes["full"] + sizes["delta"] - carried


def _carried(repo: Repository) -> int:
    """Encoded bytes of what versions carry beside their files, each content once."""
    versions = repo.log(every=True) if repo.branches() else ()
    graph, found = repo.context.store.graph, dict[bytes, int]()
    for entry in (file for each in versions for file in repo.manifest(each.id).attached):
        for content in entry.contents:
            step = graph.path(content.id, 0).steps[-1]
            found[content.id] = step.header.share(step.member)
    return sum(found.values())


def _recover(
    models: Models, approach: Approach, folder: Path, use_case: str, commit: CommitId
) -> tuple[Mapping[str, float], float]:
    """Seconds of each step, and of the processor; DamagedData if the network is another one."""
    with Repository.open(folder, discover=False) as repo:
        begun = time.process_time()
        recovered = approach.recover(repo, commit, models.experiment.architecture)
        spent = time.process_time() - begun
    got, meant = recovered.network.state_dict(), models.state(use_case)
    if list(got) != list(meant) or changed_tensors(meant, got):
        raise DamagedData(f"{use_case} is not what was saved")
    return recovered.seconds, spent
