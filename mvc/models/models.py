"""Records which code builds the model of a version, and runs this code to build the model.

A version has its weights, and as attachments the file ``model.json`` and source files below
``code/``. ``model.json`` names a class or function and its arguments. Only ``build`` runs stored
code.
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
"""Name of the attachment that describes a version's model."""

_SCHEMA = "mvc.model/1"
_SHOWN, _FILES_SHOWN = 5, 20  # names of arguments and of files in a message


class Architecture(Struct, frozen=True):
    """A description of how to build a model, for ``describe_model``.

    ``model``: a live module, its class, or a function that returns such a module. ``arguments``:
    maps parameters of the class or function to plain data (texts, numbers, True, None, lists,
    tuples, dictionaries). If None, the arguments are the attribute ``mvc_arguments`` of the live
    module; without this attribute, ``model`` must have no parameters. ``sources``: names of modules
    to store, such as ``"nets.plugins"``, that the code imports without a visible ``import``.
    """

    model: Any
    arguments: Mapping[str, Any] | None = None
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        arguments = self.arguments
        if arguments is not None and not (
            isinstance(arguments, Mapping) and all(isinstance(name, str) for name in arguments)
        ):
            raise WrongUsage("arguments must be a mapping from parameter names to values")
        if isinstance(self.sources, str) or not all(isinstance(n, str) for n in self.sources):
            raise WrongUsage("sources must be a list of module names")


class StoredModel(Struct, frozen=True):
    """The content of ``model.json``. ``name``: a class or function of the Python module ``module``.

    ``weights``: the path of the weights in the version. ``files``: maps the names of the attached
    source files to their BLAKE3 hashes. ``packages``: maps the installed packages that the source
    files import to their versions.
    """

    module: str
    name: str
    arguments: Mapping[str, Any]
    weights: str
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """``nets.Net(width=64)``, for messages."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return printable(f"{self.module}.{self.name}({arguments})")

    @property
    def encoded(self) -> bytes:
        arguments = as_node(self.arguments, _only_plain)
        return encoded(replace(self, arguments=arguments), _SCHEMA, sort_keys=True)

    @classmethod
    def decode(cls, data: bytes) -> StoredModel:
        """Raises DamagedData for an invalid record, UnsupportedFormat for a newer format."""
        damaged = DamagedData(f"the stored {NAME} is not a valid description of a model")
        try:
            stored = decoded(data, cls, _SCHEMA)
            check_path(stored.weights)
            arguments = of_node(stored.arguments, _no_tensor)
        except OtherSchema as error:
            raise error.unsupported(NAME) or damaged from None
        except (ValueError, InvalidName, DamagedData):
            raise damaged from None
        names = [*stored.module.split("."), *stored.name.split(".")]
        is_valid = isinstance(arguments, dict) and all(map(is_code, stored.files))
        if not is_valid or not all(name.isidentifier() for name in names):
            raise damaged
        return replace(stored, arguments=arguments)


# -- recording -------------------------------------------------------------------------


def describe_model(
    model: object, state: Mapping[str, Any] | None = None, *, path: str = DEFAULT_STATE
) -> dict[str, bytes]:
    """The attachments from which a version's model can be built (docs/models.md).

    ``model``: a live module, or an Architecture. ``state``: the state to commit at ``path``, by
    default the state of the live module. Raises CannotRecord if the model could not be built from
    the attachments.
    """
    stored, files = describe(model, state, path)
    return {NAME: stored.encoded, environment.NAME: environment.capture().encoded, **files}


def describe(
    model: object, state: Mapping[str, Any] | None, path: str
) -> tuple[StoredModel, Mapping[str, bytes]]:
    """Returns the description of a model, and its source files.

    ``state``: the model's state, which is stored at ``path``.
    """
    live = _live(model)
    architecture = model if isinstance(model, Architecture) else Architecture(live)
    if state is None and live is not None:
        state = live.state_dict()
    if not isinstance(state, Mapping):
        raise WrongUsage(
            "describing a model needs its state",
            hint="pass model.state_dict() as the second argument, or the live model",
        )
    if live is not None and architecture.arguments is None:
        architecture = _BUILT.get(live) or architecture
    target = architecture.model if live is None or architecture is _BUILT.get(live) else type(live)
    arguments = _arguments(target, live, architecture.arguments)
    packed = encode(arguments, _only_plain)
    if len(packed) > MAX_ARGUMENTS:
        raise CannotRecord(
            f"the arguments of {_shown(target)} have more than {MAX_ARGUMENTS} bytes"
        )
    sources = sources_of([target], architecture.sources)
    _check_fit(target, arguments, packed, state)
    module, name = place_of(target)
    hashes = {file: blake3(data).hexdigest() for file, data in sources.files.items()}
    stored = StoredModel(
        module, name, arguments, weights=path, files=hashes, packages=sources.packages
    )
    return stored, sources.files


def _live(model: object) -> torch.nn.Module | None:
    """The live module; None for an Architecture without one."""
    need_torch("recording how a model is built")
    import torch

    from mvc.training.state.parts import unwrap

    module = model.model if isinstance(model, Architecture) else model
    if isinstance(module, torch.nn.Module):
        if unwrap(module) is not module:
            raise CannotRecord(
                f"the model is wrapped ({type(module).__qualname__})",
                hint="pass the wrapped module, and commit its state",
            )
        return module
    if isinstance(model, Architecture):
        return None
    kind = "a class" if isinstance(model, type) else f"of type {type(model).__name__}"
    raise WrongUsage(
        f"model is {kind}: it must be a torch.nn.Module",
        hint="pass the model itself, or mvc.Architecture(CLASS, ARGUMENTS) and its state",
    )


def _arguments(
    target: Any, live: torch.nn.Module | None, known: Mapping[str, Any] | None
) -> dict[str, Any]:
    place_of(target)  # checks the target before its arguments
    offered = getattr(live, "mvc_arguments", None) if known is None else known
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    names = [] if _takes_nothing(target) else [str(p) for p in signature.parameters.values()]
    if offered is None and names:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise CannotRecord(
            f"{_shown(target)} has parameters ({shown}), and its arguments are unknown",
            hint="pass the arguments: mvc.Architecture(model, {'NAME': VALUE}), {} for none; or "
            "set the attribute mvc_arguments of the model; if the class needs more than plain "
            "data, name a function that returns the model",
        )
    if not (offered is None or isinstance(offered, Mapping)):
        raise CannotRecord(f"mvc_arguments of {_shown(target)} is not a mapping")
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
    """Raises CannotRecord for an argument that is not plain data."""
    if place and type(value) not in {dict, OrderedDict, list, tuple}:
        raise CannotRecord(
            f"the argument {printable(place)} is not plain data: a {type(value).__name__}",
            hint="pass texts, numbers, True, None, and lists, tuples and dictionaries with these; "
            "or name a function that builds the other objects and returns the model",
        )


def _no_tensor(_: str, name: str) -> NoReturn:
    raise DamagedData(f"the stored {NAME} has the tensor {name} as an argument")


_FITS: WeakKeyDictionary[Any, set[tuple[str, int]]] = WeakKeyDictionary()
"""Maps a class or function to its calls that ``_check_fit`` has accepted."""


def _check_fit(target: Any, arguments: Any, packed: str, state: Mapping[str, Any]) -> None:
    """Raises CannotRecord unless ``target(**arguments)`` builds a module that fits ``state``.

    The names and shapes of the tensors must be equal. If possible, the module is built on torch's
    meta device, which needs no memory for weights. The random generators are restored.
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
                built = target(**arguments)
        except Exception:  # the code of the model may need real values
            try:
                built = target(**arguments)
            except Exception as error:
                raise CannotRecord(
                    f"{_shown(target)} cannot be called with these arguments: "
                    + printable(f"{type(error).__name__}: {error}".partition("\n")[0])
                ) from error
    if not isinstance(built, torch.nn.Module):
        raise CannotRecord(f"{_shown(target)} returns a {type(built).__name__}, not a module")
    actual = _shapes(built.state_dict())
    wrong = [name for name in {**shapes, **actual} if shapes.get(name) != actual.get(name)]
    if wrong:
        first = wrong[0]
        raise CannotRecord(
            f"with these arguments {_shown(target)} does not build the committed model: "
            f"{printable(first)} is {_shape(actual.get(first))}, not {_shape(shapes.get(first))}"
            + (f", and {len(wrong) - 1:,} more differ" if wrong[1:] else ""),
            hint="pass the arguments that the model was built with; if it was changed afterwards, "
            "put these changes into a function: mvc.Architecture(FUNCTION, ARGUMENTS)",
        )
    _FITS[target].add(key)


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    from torch.nn.parameter import is_lazy

    for name, value in state.items():
        if is_lazy(value):
            raise CannotRecord(
                f"{printable(name)} gets its shape at the first forward pass (a lazy module)",
                hint="specify the size when you create the module",
            )
    return {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(shape)


# -- reading, without running code -----------------------------------------------------


def read_model(repo: Repository, rev: Rev = "HEAD") -> StoredModel:
    """The recorded description of a version's model.

    Raises UnknownPath if the version has no ``model.json``, and DamagedData.
    """
    commit = repo.find(rev)
    if NAME not in repo.version(commit).attached:
        raise UnknownPath(
            f"{commit.short} has weights, but no code that builds a model",
            hint="mvc.load(repo, model, rev) loads the weights into a model; "
            "repo.commit(..., attachments=mvc.describe_model(model)) records the code, too",
        )
    return StoredModel.decode(attached_bytes(repo, commit, NAME))


def attached_bytes(repo: Repository, commit: CommitId, name: str) -> bytes:
    """The bytes of an attachment. Raises DamagedData if the attachment is a state."""
    data = repo.attachment(commit, name)
    if not isinstance(data, bytes):
        raise DamagedData(f"{printable(name)} of {commit.short} is a state instead of bytes")
    return data


def code_of(
    repo: Repository, commit: CommitId, hashes: Mapping[str, str], packages: Mapping[str, str]
) -> StoredCode:
    """Reads a version's source files. Raises DamagedData if a file does not have its hash.

    ``hashes``, ``packages``: as ``files`` and ``packages`` of StoredModel.
    """
    files = {}
    for name, expected in sorted(hashes.items()):
        files[name] = attached_bytes(repo, commit, name)
        if blake3(files[name]).hexdigest() != expected:
            raise DamagedData(f"{name} of {commit.short} does not match its recorded hash")
    return StoredCode(files, packages)


# -- building --------------------------------------------------------------------------

_BUILT: WeakKeyDictionary[Any, Architecture] = WeakKeyDictionary()
"""Maps modules that ``build`` returned to their architectures, which ``describe`` uses again."""


def build(
    stored: StoredModel,
    code: StoredCode,
    weights: Callable[[], Any],
    *,
    version: str,
    trust: bool,
) -> torch.nn.Module:
    """Runs the stored code, which returns a module. Then loads weights into the module.

    ``weights``: a function that returns the weights. ``version``: the version's name, for messages.
    Raises NotTrusted, before any code runs, unless ``trust`` is true; CannotBuild if code is
    missing or fails; DoesNotFit if the weights have other names or shapes than the module.
    """
    need_torch("building a model")
    import torch

    from mvc.training.resume import load_state
    from mvc.training.state.rng import same_rng

    if not trust:
        files = sorted(code.files)
        rest = len(files) - _FILES_SHOWN
        names = ", ".join(files[:_FILES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        raise NotTrusted(
            f"building the model of {version} would run {stored.call} from "
            + (names or f"the installed module {printable(stored.module)}"),
            hint=f"read the code with 'mvc show --code {version}'; if you trust it: "
            "load_model(..., trust=True)",
        )
    with same_rng():
        target = code.load(stored.module, stored.name)
        try:
            model = target(**stored.arguments)
        except (Exception, SystemExit) as error:
            raise code.failed(f"{stored.call} fails", error) from error
    if not isinstance(model, torch.nn.Module):
        raise CannotBuild(f"{stored.call} returns a {type(model).__name__}, not a torch.nn.Module")
    state = weights()
    if isinstance(state, Mapping):
        adopt_dtypes(model, state)
    try:
        load_state(model, state)
    except DoesNotFit as error:
        raise DoesNotFit(
            error.message.replace("the model", printable(f"{stored.module}.{stored.name}"), 1),
            hint="the stored code does not build the model of these weights",
        ) from error
    _BUILT[model] = Architecture(target, stored.arguments)
    return model


def adopt_dtypes(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Converts the floating-point parameters and buffers of ``model`` to their dtypes in ``state``.

    If ``model`` has one floating-point dtype, and ``state`` another one, converts buffers that are
    not in ``state``, too.
    """
    import torch

    floats = [v for v in state.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    dtypes = {value.dtype for value in floats}
    present = {v.dtype for v in model.state_dict().values() if v.is_floating_point()}
    every = next(iter(dtypes)) if len(dtypes) == len(present) == 1 and dtypes != present else None
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
    """The versions whose code may run.

    If ``trust`` is True, these are the versions ``named``. If ``trust`` is a list, these are the
    versions in the list.
    """
    if isinstance(trust, str | bytes):
        raise WrongUsage("trust must be True, or a list of versions")
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
    """Builds a version's model: runs its stored code, and loads its weights.

    ``rev``, ``at`` and ``target`` select the version as in ``Repository.checkout``. ``trust``: True
    permits running the stored code; a list of versions permits running the code of these versions.
    ``mvc.recipes.code`` returns the code without running it. Raises UnknownPath if the version has
    no code, NotTrusted, CannotBuild, DoesNotFit.
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
