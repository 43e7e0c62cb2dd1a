"""Whole models: what builds a version's model, recorded beside its weights, and built again.

``model.json`` names a class or function, its arguments and the files that it is imported from,
which lie beside it under ``code/``. Reading these runs nothing; ``build`` does.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from blake3 import blake3
from msgspec import Struct, field
from msgspec.structs import replace

from mvc.documents import OtherSchema, decoded, encoded
from mvc.errors import (
    CannotBuild,
    CannotRecord,
    DamagedData,
    DoesNotFit,
    InvalidName,
    NotTrusted,
    UnknownPath,
    WrongUsage,
    need_torch,
)
from mvc.ids import CommitId
from mvc.limits import MAX_ARGUMENTS
from mvc.models import environment
from mvc.models.sources import place_of, sources_of
from mvc.models.stored_code import StoredCode, is_code
from mvc.names import DEFAULT_STATE, check_path, printable
from mvc.structure import as_node, encode, of_node

if TYPE_CHECKING:
    import torch

    from mvc.api import Repository, Rev
    from mvc.times import Time


NAME = "model.json"
"""The name under which a version says how its model is built."""

_SCHEMA = "mvc.model/1"
_SHOWN, _FILES_SHOWN = 5, 20  # names of arguments and of files in a message


class Architecture(Struct, frozen=True):
    """What builds a model; given to ``describe_model``.

    ``model`` is the live module, its class, or a function that makes one like it. ``arguments``
    are what the class or function is called with, by name: plain data (texts, numbers, True,
    None, lists, tuples and dictionaries of them). They may be left out (None) where it takes
    none, or where a live module has an attribute ``mvc_arguments`` that holds them. ``sources``
    names further modules whose files are needed, such as ``"nets.plugins"``, where the code
    imports them in a way that its text does not show.
    """

    model: Any
    arguments: Mapping[str, Any] | None = None
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        given = self.arguments
        if given is not None and not (
            isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
        ):
            raise WrongUsage("arguments are a mapping from the names of parameters to values")
        if isinstance(self.sources, str) or not all(isinstance(n, str) for n in self.sources):
            raise WrongUsage("sources are names of modules in a list")


class StoredModel(Struct, frozen=True):
    """How a version's model is built. ``name`` is a class or function of ``module``.

    ``weights`` is the path of its state in the version. ``files`` are the BLAKE3 of the source
    files by attached name; ``packages`` the versions of the installed packages that they import.
    """

    module: str
    name: str
    arguments: Mapping[str, Any]
    weights: str
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """``nets.Net(width=64)``, as it can be shown."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return printable(f"{self.module}.{self.name}({given})")

    @property
    def encoded(self) -> bytes:
        arguments = as_node(self.arguments, _only_plain)
        return encoded(replace(self, arguments=arguments), _SCHEMA, sort_keys=True)

    @classmethod
    def decode(cls, data: bytes) -> StoredModel:
        """Raises DamagedData for what is no such record, UnsupportedFormat for a newer form."""
        damaged = DamagedData(f"the stored {NAME} does not say how a model is built")
        try:
            found = decoded(data, cls, _SCHEMA)
            check_path(found.weights)
            arguments = of_node(found.arguments, _no_tensor)
        except OtherSchema as error:
            raise error.unsupported(NAME) or damaged from None
        except (ValueError, InvalidName, DamagedData):
            raise damaged from None
        names = [*found.module.split("."), *found.name.split(".")]
        sound = isinstance(arguments, dict) and all(map(is_code, found.files))
        if not sound or not all(name.isidentifier() for name in names):
            raise damaged
        return replace(found, arguments=arguments)


# -- recording -------------------------------------------------------------------------


def describe_model(
    model: object, state: Mapping[str, Any] | None = None, *, path: str = DEFAULT_STATE
) -> dict[str, bytes]:
    """The attachments by which a version's model can be built again (docs/models.md).

    ``model`` is a live module, or an Architecture. ``state`` is what is committed at ``path``, by
    default that of the live module. Raises CannotRecord for what could not be built again.
    """
    stored, files = describe(model, state, path)
    return {NAME: stored.encoded, environment.NAME: environment.capture().encoded, **files}


def describe(
    model: object, state: Mapping[str, Any] | None, path: str
) -> tuple[StoredModel, Mapping[str, bytes]]:
    """How the model of ``state``, kept at ``path``, is built, and the files of its code."""
    live = _live(model)
    given = model if isinstance(model, Architecture) else Architecture(live)
    if state is None and live is not None:
        state = live.state_dict()
    if not isinstance(state, Mapping):
        raise WrongUsage(
            "this says how a state is built, and none is given",
            hint="pass model.state_dict() as the second argument, or the live model",
        )
    if live is not None and given.arguments is None:
        given = _BUILT.get(live) or given
    target = given.model if live is None or given is _BUILT.get(live) else type(live)
    arguments = _arguments(target, live, given.arguments)
    packed = encode(arguments, _only_plain)
    if len(packed) > MAX_ARGUMENTS:
        raise CannotRecord(
            f"the arguments of {_shown(target)} take more than {MAX_ARGUMENTS} bytes"
        )
    sources = sources_of([target], given.sources)
    _check_fit(target, arguments, packed, state)
    module, name = place_of(target)
    hashes = {file: blake3(data).hexdigest() for file, data in sources.files.items()}
    stored = StoredModel(
        module, name, arguments, weights=path, files=hashes, packages=sources.packages
    )
    return stored, sources.files


def _live(model: object) -> torch.nn.Module | None:
    """The live module; None for an Architecture of none."""
    need_torch("recording how a model is built")
    import torch

    from mvc.training.state.parts import unwrap

    found = model.model if isinstance(model, Architecture) else model
    if isinstance(found, torch.nn.Module):
        if unwrap(found) is not found:
            raise CannotRecord(
                f"the model is wrapped ({type(found).__qualname__})",
                hint="pass the module inside, and commit its state",
            )
        return found
    if isinstance(model, Architecture):
        return None
    what = "a class" if isinstance(model, type) else f"of type {type(model).__name__}"
    raise WrongUsage(
        f"model is {what}: it must be a torch.nn.Module",
        hint="pass the model itself, or mvc.Architecture(CLASS, ARGUMENTS) beside its state",
    )


def _arguments(
    target: Any, live: torch.nn.Module | None, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    place_of(target)  # refused before its arguments are asked for
    offered = getattr(live, "mvc_arguments", None) if given is None else given
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    names = [] if _takes_nothing(target) else [str(p) for p in signature.parameters.values()]
    if offered is None and names:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise CannotRecord(
            f"{_shown(target)} takes arguments ({shown}), and it is not known with which it was "
            "called",
            hint="mvc.Architecture(model, {'NAME': VALUE}) gives them, {} for none, or "
            "the model has them as its attribute mvc_arguments; instead of a class that takes more "
            "than plain data, name a function that makes the model",
        )
    if not (offered is None or isinstance(offered, Mapping)):
        raise CannotRecord(f"mvc_arguments of {_shown(target)} is no mapping")
    arguments = dict(offered or {})
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise CannotRecord(f"the arguments do not fit {_shown(target)}: {error}") from None
    return arguments


def _takes_nothing(target: Any) -> bool:
    from torch.nn import Module

    return isinstance(target, type) and getattr(target, "__init__", None) is Module.__init__


def _shown(target: Any) -> str:
    return printable(str(getattr(target, "__qualname__", type(target).__name__)))


def _only_plain(place: str, value: Any) -> None:
    """Refuses, within arguments, whatever is neither plain nor holds what is plain."""
    if place and type(value) not in {dict, OrderedDict, list, tuple}:
        raise CannotRecord(
            f"the argument {printable(place)} is not plain data: a {type(value).__name__}",
            hint="give texts, numbers, True, None, and lists, tuples and dictionaries of them; "
            "a function of your own may make what the class needs of these, and take its place",
        )


def _no_tensor(_: str, name: str) -> NoReturn:
    raise DamagedData(f"the stored {NAME} has the tensor {name} as an argument")


_FITS: WeakKeyDictionary[Any, set[tuple[str, int]]] = WeakKeyDictionary()
"""Calls of a class or function whose result had the names and shapes of a state."""


def _check_fit(target: Any, arguments: Any, packed: str, state: Mapping[str, Any]) -> None:
    """Raises CannotRecord unless the call makes a module with the state's names and shapes.

    The live class is called once for each new set of arguments and shapes: without memory for
    its weights if it bears that. The random generators stay as they are.
    """
    import torch

    from mvc.training.state.rng import same_rng

    shapes = _shapes(state)
    key = (packed, hash(tuple(shapes.items())))
    if key in _FITS.setdefault(target, set()):
        return
    with same_rng():
        try:
            with torch.device("meta"):
                made = target(**arguments)
        except Exception:  # code that looks at values
            try:
                made = target(**arguments)
            except Exception as error:
                raise CannotRecord(
                    f"{_shown(target)} cannot be called with these arguments: "
                    + printable(f"{type(error).__name__}: {error}".partition("\n")[0])
                ) from error
    if not isinstance(made, torch.nn.Module):
        raise CannotRecord(f"{_shown(target)} returns a {type(made).__name__}, not a module")
    there = _shapes(made.state_dict())
    wrong = [name for name in {**shapes, **there} if shapes.get(name) != there.get(name)]
    if wrong:
        first = wrong[0]
        raise CannotRecord(
            f"with these arguments {_shown(target)} makes another model than the one committed: "
            f"{printable(first)} is {_shape(there.get(first))}, not {_shape(shapes.get(first))}"
            + (f", and {len(wrong) - 1:,} more" if wrong[1:] else ""),
            hint="give the arguments that the model was made with; what is built later by hand "
            "belongs into a function, mvc.Architecture(FUNCTION, ARGUMENTS)",
        )
    _FITS[target].add(key)


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    from torch.nn.parameter import is_lazy

    for name, value in state.items():
        if is_lazy(value):
            raise CannotRecord(
                f"{printable(name)} gets its shape at the first forward pass (a lazy module)",
                hint="write its size where it is made",
            )
    return {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(shape)


# -- reading, which runs nothing -------------------------------------------------------


def read_model(repo: Repository, rev: Rev = "HEAD") -> StoredModel:
    """How a version's model is built. Raises UnknownPath if it does not say so, DamagedData."""
    commit = repo.find(rev)
    if NAME not in repo.version(commit).attached:
        raise UnknownPath(
            f"{commit.short} has weights, but no code that builds a model",
            hint="mvc.load(repo, model, rev) puts them into a model of yours; "
            "repo.commit(..., attachments=mvc.describe_model(model)) records its code, too",
        )
    return StoredModel.decode(attached_bytes(repo, commit, NAME))


def attached_bytes(repo: Repository, commit: CommitId, name: str) -> bytes:
    """An attachment that is no state. Raises DamagedData for one that is."""
    data = repo.attachment(commit, name)
    if not isinstance(data, bytes):
        raise DamagedData(f"{printable(name)} of {commit.short} is a state, and should be bytes")
    return data


def code_of(
    repo: Repository, commit: CommitId, hashes: Mapping[str, str], packages: Mapping[str, str]
) -> StoredCode:
    """Source files that a version carries, compared with their BLAKE3; they are not run."""
    files = {}
    for name, expected in sorted(hashes.items()):
        files[name] = attached_bytes(repo, commit, name)
        if blake3(files[name]).hexdigest() != expected:
            raise DamagedData(f"{name} of {commit.short} is not the code that it was made with")
    return StoredCode(files, packages)


# -- building --------------------------------------------------------------------------

_BUILT: WeakKeyDictionary[Any, Architecture] = WeakKeyDictionary()
"""What live modules were built by: they can be committed again without saying so."""


def build(
    stored: StoredModel,
    code: StoredCode,
    weights: Callable[[], Any],
    *,
    version: str,
    trust: bool,
) -> torch.nn.Module:
    """Runs the stored code, and returns its module with the state that ``weights`` returns.

    Raises NotTrusted without ``trust``, before anything runs; CannotBuild for code that fails or
    is not there; DoesNotFit for weights of other names or shapes.
    """
    need_torch("building a model")
    import torch

    from mvc.training.resume import load_state
    from mvc.training.state.rng import same_rng

    if not trust:
        files = sorted(code.files)
        rest = len(files) - _FILES_SHOWN
        where = ", ".join(files[:_FILES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        raise NotTrusted(
            f"building the model of {version} would run {stored.call} from "
            + (where or f"the installed module {printable(stored.module)}"),
            hint=f"read it with 'mvc show --code {version}'; if you trust it: load_model(..., "
            "trust=True)",
        )
    with same_rng():
        target = code.take(stored.module, stored.name)
        try:
            made = target(**stored.arguments)
        except (Exception, SystemExit) as error:
            raise code.failed(f"{stored.call} fails", error) from error
    if not isinstance(made, torch.nn.Module):
        raise CannotBuild(f"{stored.call} returns a {type(made).__name__}, not a torch.nn.Module")
    state = weights()
    if isinstance(state, Mapping):
        take_dtypes(made, state)
    try:
        load_state(made, state)
    except DoesNotFit as error:
        raise DoesNotFit(
            error.message.replace("the model", printable(f"{stored.module}.{stored.name}"), 1),
            hint="the stored code does not make the model that these weights are of",
        ) from error
    _BUILT[made] = Architecture(target, stored.arguments)
    return made


def take_dtypes(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Gives floating-point parameters and buffers the dtypes of the stored ones.

    A model is often made in float32 and then converted. If all of it was, so are buffers that
    are not stored.
    """
    import torch

    floats = [v for v in state.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    dtypes = {value.dtype for value in floats}
    there = {v.dtype for v in model.state_dict().values() if v.is_floating_point()}
    every = dtypes.copy().pop() if len(dtypes) == len(there) == 1 and dtypes != there else None
    for prefix, owner in model.named_modules():
        for leaf, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            stored = state.get(f"{prefix}.{leaf}" if prefix else leaf)
            dtype = stored.dtype if isinstance(stored, torch.Tensor) else every
            if tensor is None or dtype is None or tensor.dtype == dtype:
                continue
            if tensor.is_floating_point() and dtype.is_floating_point:
                tensor.data = tensor.data.to(dtype)


def trusted_versions(
    repo: Repository, trust: bool | Sequence[Rev], named: Sequence[CommitId]
) -> frozenset[CommitId]:
    """The versions whose stored code may run: with True those of this call, else a list's."""
    if isinstance(trust, str | bytes):
        raise WrongUsage("trust is True, or a list of versions")
    if isinstance(trust, Collection):
        return frozenset(repo.find(rev) for rev in trust)
    return frozenset(named if trust is True else ())


def load_model(
    repo: Repository,
    rev: Rev | None = None,
    *,
    trust: bool | Sequence[Rev] = False,
    at: Time | None = None,
    target: str | None = None,
) -> torch.nn.Module:
    """Builds a version's model by the code that it carries, with its weights, and returns it.

    The version is named as for ``Repository.checkout``. This runs the stored code, and so needs
    ``trust=True``, or a list with the version in it; ``mvc.recipes.code`` and ``model`` show first
    what would run. Raises UnknownPath if the version carries no code, NotTrusted, CannotBuild,
    DoesNotFit.
    """
    commit = repo.find(rev, at=at, target=target)
    stored = read_model(repo, commit)
    code = code_of(repo, commit, stored.files, stored.packages)
    return build(
        stored,
        code,
        lambda: repo.checkout(commit, path=stored.weights),
        version=commit.short,
        trust=commit in trusted_versions(repo, trust, [commit]),
    )
