"""Every error that mvc raises, as one tree (layer 0; docs/errors.md).

A class names a cause, its ``exit_code`` is what the command line returns, and
``hint`` says what the user can do. Library code raises these and nothing else
for anything that input, a repository or the operating system can cause.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package: the hint of NotInstalled."""
    return f"pip install 'mvc-weights[{extra}]'"


def need_torch(what: str, *others: str) -> None:
    """Raises NotInstalled, which names what needs it, where torch is not installed.

    ``others``: packages of the same extra that are needed as well.
    """
    from importlib.util import find_spec

    for package in ("torch", *others):
        if find_spec(package) is None:
            raise NotInstalled(f"{what} needs {package}: {how_to_install('torch')}")


class MvcError(Exception):
    """Root of the tree: refused or failed, one clear line, exit code 3.

    The hint is a note of the exception, too, so that a traceback shows it.
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
    """What goes on all the same, in one line for people; the command line prints it as such."""


class AmbiguousName(MvcWarning):
    """A revision is the name of a target, and of a branch, a tag or an id, too, which is used."""


class WrongUsage(MvcError):
    """Arguments that contradict each other or lie outside their range."""

    exit_code = 2


class NotARepository(MvcError):
    """No ``.mvc`` folder here or in any parent."""


class AlreadyARepository(MvcError):
    """``init`` where a repository exists."""


class DubiousOwnership(MvcError):
    """The repository belongs to another user, and the user's settings do not allow it."""


class UnsupportedFormat(MvcError):
    """The repository's format or one of its feature flags is newer than this program."""


class UnknownRevision(MvcError):
    """No commit goes by this name."""


class AmbiguousRevision(MvcError):
    """A short id that fits several commits."""


class StateForgotten(MvcError):
    """The state of a version was given up; the commit is all that is left of it.

    ``absent``: the id of the version, if a rule gave the state up, or it was never fetched: then
    another repository may have it.
    """

    absent: bytes | None = None


class UnknownOperation(MvcError):
    """The operation log has no operation of this number."""


class UnknownTarget(MvcError):
    """No deployment target goes by this name, or none was named where several exist."""


class TargetProtected(MvcError):
    """A setting protects the target, and what would deploy to it does not say that it is meant."""


class UnknownMetric(MvcError):
    """No version has a metric of this name."""


class NoDeployment(MvcError):
    """Nothing was deployed at or before the moment asked for."""


class UnknownPath(MvcError):
    """A version does not hold this path or tensor."""


class InvalidName(MvcError):
    """A name that mvc does not accept: control characters, ``..``, reserved words."""


class InvalidTime(MvcError):
    """A moment that cannot be read, or that a clock change makes ambiguous."""


class InvalidConfig(MvcError):
    """A setting that is unknown or out of range, or settings that others may have written."""


class InvalidPipeline(MvcError):
    """A pipeline that cannot be built: unknown stage, wrong order, bad parameter."""


class RefConflict(MvcError):
    """A branch or tag exists already, is in use, or has moved since."""


class WouldOverwrite(MvcError):
    """Uncommitted work would be lost."""


class NotConfirmed(MvcError):
    """What cannot be taken back was to be confirmed, and nobody is there to ask."""


class Unattainable(MvcError):
    """No layout of the store meets the bound that was asked for."""


class NotInstalled(MvcError):
    """An optional package that is needed here is not installed."""


class CannotResume(MvcError):
    """A version lacks what training needs to go on, or does not fit what was passed."""


class DoesNotFit(MvcError):
    """A version's tensors do not fit the module that they were to be loaded into."""


class BadMessage(MvcError):
    """A message of distributed training, or a model in it, that does not fit; nothing used it."""


class CannotDistribute(MvcError):
    """A training of several processes that cannot begin or go on; its global models are kept."""


class CannotRecord(MvcError):
    """Code or an argument that cannot be kept so that it could be run again."""


class CannotBuild(MvcError):
    """Stored code that does not import or does not make what was stored."""


class CannotSign(MvcError):
    """A signature cannot be made: no key, a key that is missing or locked, or an agent refuses."""


class NotTrusted(MvcError):
    """Stored code would run, and nobody has said that it may.

    ``versions``: the ids of those whose code it is.
    """

    versions: tuple[object, ...] = ()


class CannotRetrain(MvcError):
    """A version cannot be made again here: what its recipe needs is missing or has changed."""


class RetrainingDiffers(MvcError):
    """A replay made other weights than the version has; they are not returned.

    ``tensors``: how each that differs does (``mvc.recipes.replay.TensorDifference``).
    """

    tensors: tuple[object, ...] = ()


class WeightsDropped(MvcError):
    """The weights of a version were given up; its recipe can make them again."""


class NothingToCommit(MvcError):
    """No tracked path differs from HEAD: the answer is no."""

    exit_code = 1


class EncodingFailed(MvcError):
    """What was encoded does not decode to what was given; it was not published."""


class BadModelFile(MvcError):
    """A model file that is truncated, malformed or outside the limits."""


class UnsupportedTensor(MvcError):
    """A tensor kind that cannot be kept exactly."""


class SourceChanged(MvcError):
    """A file or array changed while it was being read."""


class IoFailed(MvcError):
    """The operating system refused a read or a write."""


class StorageFull(IoFailed):
    """No space left, or a quota is used up."""


class ReadOnly(IoFailed):
    """The repository's folder cannot be written."""


class SyncFailed(IoFailed):
    """A flush to disk failed; the handle is poisoned and must be reopened."""


class DamagedData(MvcError):
    """Stored bytes do not match their checksum or hash."""

    exit_code = 4


class HistoryMissing(MvcError):
    """The journal lacks operations that are known to have been acknowledged."""

    exit_code = 4


class Busy(MvcError):
    """Another process holds what is needed for too long."""

    exit_code = 5


class CommandFailed(MvcError):
    """A command that has to succeed before a follower serves a version failed, or took too long."""


class RemoteUnreachable(MvcError):
    """A remote does not answer, or the connection broke."""


class RemoteRefused(MvcError):
    """A remote answered, and does not do it: the token, its scopes, or what it is."""


def class_named(name: str) -> type[MvcError] | None:
    """The error class of this name or kind (``UnknownPath``, ``unknown-path``), None if none is."""
    classes = [c for c in globals().values() if isinstance(c, type) and issubclass(c, MvcError)]
    return next((c for c in classes if name in (c.__name__, c("").kind)), None)
