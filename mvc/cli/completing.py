"""Completion of values in the shell: names of a repository, settings, files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import click

import mvc.recipes as recipes
from mvc.cli.session import Session
from mvc.errors import MvcError
from mvc.repo.history.log import LogOptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_NEWEST = 100  # versions that are searched for names of metrics

_Completion: TypeAlias = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
_Read: TypeAlias = Callable[[Session, click.Context], Iterable[str]]


def _completing(read: _Read, *, files: bool = False) -> _Completion:
    """Offers the names that begin with what is typed; none where there is no repository.

    With ``files`` the shell adds those of the disk.
    """

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        session = Session()
        with contextlib.ExitStack() as stack:
            stack.callback(session.close)
            try:
                folder = ctx.find_root().params.get("directory")
                if folder is not None:
                    stack.enter_context(contextlib.chdir(folder))
                names = sorted(n for n in set(read(session, ctx)) if n.startswith(typed))
            except (MvcError, OSError):
                names = []
        return [*map(_item, names), _item(typed, "file")] if files else [*map(_item, names)]

    return complete


def _names(found: Iterable[Any]) -> list[str]:
    return [each.name for each in found]


def _remotes(session: Session) -> list[str]:
    return _names(session.repository.remotes.list())


def _actions(session: Session, ctx: click.Context) -> list[str]:
    typed = ctx.params.get("words") or ()
    if not typed:
        return ["list", "add", "remove", "show"]
    return _remotes(session) if typed[0] in {"remove", "show"} and len(typed) == 1 else []


def _refs(session: Session) -> list[str]:
    return _names([*session.repository.branches(), *session.repository.tags()])


def _revisions(session: Session) -> list[str]:
    return ["HEAD", *_refs(session), *_names(session.repository.remote_refs())]


def _metrics(session: Session) -> set[str]:
    newest = session.repository.log("HEAD", LogOptions(every=True), limit=_NEWEST, incomplete=[])
    return {name for entry in newest for name in entry.commit.metrics}


def _tracked(session: Session, rev: str) -> list[str]:
    return [session.from_here(path) for path in session.repository.manifest(rev).by_path]


def _of_version(session: Session, ctx: click.Context) -> list[str]:
    return _tracked(session, ctx.params.get("rev") or ctx.params.get("a") or "HEAD")


def _tensors(session: Session, rev: str) -> list[str]:
    entries = session.repository.manifest(rev).entries
    return [tensor.key for entry in entries for tensor in entry.tensors]


def _revision_then(parts: Callable[[Session, str], list[str]]) -> _Read:
    """A revision first; then, and for a moment, parts of that version."""

    def read(session: Session, ctx: click.Context) -> list[str]:
        given, at, target = (ctx.params.get(name) for name in ("words", "at", "target"))
        if at is not None or target is not None:
            return parts(session, str(session.repository.find(at=at, target=target)))
        return parts(session, given[0]) if given else _revisions(session)

    return read


def _topics(_: Session, ctx: click.Context) -> Iterable[str]:
    from mvc.cli.topics import TOPICS

    root = ctx.find_root()
    commands = root.command.list_commands(root) if isinstance(root.command, click.Group) else ()
    return [*commands, *TOPICS]


def _presets(*_: object) -> Iterable[str]:
    from mvc.pipelines.table import PRESETS

    return PRESETS


def _keys(*_: object) -> Iterable[str]:
    from mvc.repo.config import KEYS

    return KEYS


def _values(_: Session, ctx: click.Context) -> Iterable[str]:
    from mvc.repo.config import KEYS

    name = ctx.params.get("key")
    key = KEYS.get(str(name))
    if name == "commit.pipeline":
        return _presets()
    if key is None:
        return ()
    return ("true", "false") if key.type is bool else ()


def _item(value: str, type_: str = "plain") -> CompletionItem:
    from click.shell_completion import CompletionItem  # only a shell that completes needs it

    return CompletionItem(value, type=type_)


def _on_disk(type_: str) -> _Completion:
    """What the shell itself finds: ``file`` (folders, too) or ``dir``."""
    return lambda _ctx, _param, typed: [_item(typed, type_)]


def completed(
    name: str, ctx: click.Context, param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """What begins with ``typed``, for a value of this name or of its first word."""
    word, *_ = re.findall(r"\w+", name) or [""]
    found = _COMPLETIONS.get(name) or _COMPLETIONS.get(word)
    return (found or param.type.shell_complete)(ctx, param, typed)


_COMPLETIONS = {
    **dict.fromkeys(("A", "B"), _completing(lambda session, _: _revisions(session), files=True)),
    "BRANCH": _completing(lambda session, _: _names(session.repository.branches())),
    "COMMAND": _completing(_topics),
    "DATA": _completing(lambda session, _: _names(recipes.data_sets(session.repository))),
    "DIR": _on_disk("dir"),
    **dict.fromkeys(("FILE", "SCRIPT", "DIR|FILE..."), _on_disk("file")),
    "KEY": _completing(_keys),
    "METRIC": _completing(lambda session, _: _metrics(session)),
    "ORDER": _completing(
        lambda session, _: [sign + name for name in _metrics(session) for sign in ("", "-")]
    ),
    "PATH": _completing(_of_version),
    "REF": _completing(lambda session, _: _refs(session)),
    "REMOTE": _completing(lambda session, _: _remotes(session)),
    **dict.fromkeys(("OTHER", "REV", "START"), _completing(lambda session, _: _revisions(session))),
    "[REV] [PATH]...": _completing(_revision_then(_tracked)),
    "[REV] [TENSOR]": _completing(_revision_then(_tensors)),
    "TAG": _completing(lambda session, _: _names(session.repository.tags())),
    "SPEC": _completing(_presets),
    **dict.fromkeys(("T", "TARGET"), _completing(lambda session, _: session.repository.targets())),
    "VALUE": _completing(_values),
    "list": _completing(_actions),
}
"""What the shell offers for a value, by its name in the help or the first word of that."""
