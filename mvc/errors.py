"""All errors that mvc raises, as one class tree (docs/errors.md).

Each class names one cause. ``exit_code`` is the exit status of the command line. ``hint`` says
what the user can do next. For problems with input, repositories or the operating system, library
code raises only classes of this tree.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an optional extra of this package."""
    return f"pip install 'mvc-weights[{extra}]'"


def need_torch(feature: str, *packages: str) -> None:
    """Raises NotInstalled if torch, or one of ``packages``, is not installed.

    ``feature``: what needs torch, in words for the message. ``packages``: other packages that the
    feature needs. They must be in the extra ``torch`` of mvc, which the message names.
    """
    from importlib.util import find_spec

    for package in ("torch", *packages):
        if find_spec(package) is None:
            raise NotInstalled(f"{feature} needs {package}: {how_to_install('torch')}")


class MvcError(Exception):
    """Base class of all errors of mvc. The message is one line. Most subclasses have exit code 3.

    The hint is added to the exception as a note, so that tracebacks show the hint, too.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")

    @property
    def kind(self) -> str:
        """The cause as a stable word for ``--json``, such as ``unknown-revision``."""
        name = type(self).__name__
        return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


class MvcWarning(RuntimeWarning):
    """A problem that does not stop the operation. The command line prints one line."""


class AmbiguousName(MvcWarning):
    """A target has the same name as a branch, tag or id. mvc uses the branch, tag or id."""


class WrongUsage(MvcError):
    """Arguments that contradict each other or are out of range."""

    exit_code = 2


class NotARepository(MvcError):
    """Neither the given folder nor its parents contain ``.mvc``."""


class AlreadyARepository(MvcError):
    """The folder for a new repository already has a repository."""


class DubiousOwnership(MvcError):
    """The repository belongs to another user, and ``safe.directory`` does not list it."""


class UnsupportedFormat(MvcError):
    """The repository has a format version or feature flag that this program does not know."""


class UnknownRevision(MvcError):
    """No commit has the given name or id."""


class AmbiguousRevision(MvcError):
    """The ids of several commits begin with the given short id."""


class StateForgotten(MvcError):
    """The state of a version was forgotten or never fetched. Only the commit is stored.

    ``absent``: the version's id if another repository may have the state. This is the case if a
    retention rule forgot the state here, or if the state was never fetched. Otherwise None.
    """

    absent: bytes | None = None


class UnknownOperation(MvcError):
    """The operation log has no operation with the given number."""


class UnknownTarget(MvcError):
    """No target has the given name, or several targets exist and the call names no target."""


class TargetProtected(MvcError):
    """A setting protects the target, and the caller did not ask to override the setting."""


class UnknownMetric(MvcError):
    """No version has a metric with the given name."""


class NoDeployment(MvcError):
    """No version was live at the given moment, or the given deployment is missing."""


class UnknownPath(MvcError):
    """The version has no file at the given path, or no tensor with the given name."""


class InvalidName(MvcError):
    """A name that mvc does not accept: control characters, ``..``, reserved words."""


class InvalidTime(MvcError):
    """A moment that cannot be parsed, or that a clock change makes ambiguous."""


class InvalidConfig(MvcError):
    """An unknown setting, a value out of range, or a settings file that other users can write."""


class InvalidPipeline(MvcError):
    """A pipeline that cannot be built: unknown stage, wrong order, bad parameter."""


class RefConflict(MvcError):
    """A branch or tag exists already, is in use, or was moved by another process meanwhile."""


class WouldOverwrite(MvcError):
    """Uncommitted work would be lost."""


class NotConfirmed(MvcError):
    """An operation that cannot be undone needs confirmation, but stdin is no terminal."""


class Unattainable(MvcError):
    """No choice of reset points and deltas meets the requested bound."""


class NotInstalled(MvcError):
    """A required optional package is not installed."""


class CannotResume(MvcError):
    """A version has no training state, or its training state does not fit the passed objects."""


class DoesNotFit(MvcError):
    """A version's tensors do not fit the torch module that should load the tensors."""


class BadMessage(MvcError):
    """A message of distributed training, or the model in it, is invalid. The message is ignored."""


class CannotDistribute(MvcError):
    """A training with several processes cannot start or continue.

    The global models that were computed before the error are stored.
    """


class CannotRecord(MvcError):
    """Code or an argument cannot be stored in a form that can run again."""


class CannotBuild(MvcError):
    """Stored code does not import, or does not build the stored model."""


class CannotSign(MvcError):
    """No signature was made: the key is missing or locked, or the SSH agent refused."""


class NotTrusted(MvcError):
    """Stored code would run, but the user has not trusted it.

    ``versions``: ids of the versions that contain this code.
    """

    versions: tuple[object, ...] = ()


class CannotRetrain(MvcError):
    """A recipe cannot be replayed here: one of its inputs is missing or has changed."""


class RetrainingDiffers(MvcError):
    """A replay computed other weights than the stored weights. The new weights are not returned.

    ``tensors``: one ``mvc.recipes.replay.TensorDifference`` for each tensor that differs.
    """

    tensors: tuple[object, ...] = ()


class WeightsDropped(MvcError):
    """The weights of a version were dropped. A replay of the recipe recovers the weights."""


class NothingToCommit(MvcError):
    """No tracked path differs from HEAD."""

    exit_code = 1


class EncodingFailed(MvcError):
    """Encoded data did not decode to the input. The encoded data was not stored."""


class BadModelFile(MvcError):
    """A model file that is truncated, malformed or outside the limits."""


class UnsupportedTensor(MvcError):
    """A tensor kind that cannot be stored exactly."""


class SourceChanged(MvcError):
    """A file or array changed while mvc read it."""


class IoFailed(MvcError):
    """The operating system refused a read or a write."""


class StorageFull(IoFailed):
    """No space left, or a quota is used up."""


class ReadOnly(IoFailed):
    """The repository's folder is not writable."""


class SyncFailed(IoFailed):
    """A flush to disk failed. The open repository is unusable: open the repository again."""


class DamagedData(MvcError):
    """Stored bytes do not match their checksum or hash."""

    exit_code = 4


class HistoryMissing(MvcError):
    """The journal (the file with all operations) lacks operations that were reported as durable."""

    exit_code = 4


class Busy(MvcError):
    """Another process holds a lock for too long."""

    exit_code = 5


class CommandFailed(MvcError):
    """A user's command failed or timed out."""


class RemoteUnreachable(MvcError):
    """A remote does not answer, or the connection broke."""


class RemoteRefused(MvcError):
    """A remote refused the token, or does not support an operation.

    The token may be unknown, or lack the scope (the right) that the request needs.
    """


def class_named(name: str) -> type[MvcError] | None:
    """The error class with this name or kind (``UnknownPath``, ``unknown-path``), or None."""
    classes = [c for c in globals().values() if isinstance(c, type) and issubclass(c, MvcError)]
    return next((c for c in classes if name in (c.__name__, c("").kind)), None)
