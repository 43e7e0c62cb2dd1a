"""Completes the arguments of commands in a shell, such as branches, paths and settings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

import mvc.recipes as recipes
from mvc.api import KEYS, LogOptions
from mvc.cli.catalog import COMMANDS
from mvc.cli.session import Session
from mvc.cli.topics import TOPICS
from mvc.errors import MvcError

_NEWEST = 100  # number of newest versions that are searched for names of metrics

_Read: TypeAlias = Callable[[Session, click.Context], Iterable[str]]


def completed(
    name: str, ctx: click.Context, param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """The possible values of a parameter that begin with ``typed``.

    ``name``: the name of the parameter in the help, such as ``[REV] [PATH]...``. For files and
    folders, returns an item that makes the shell complete the path.
    """
    word, *_ = re.findall(r"\w+", name) or [""]
    if kind := _ON_DISK.get(name) or _ON_DISK.get(word):
        return [CompletionItem(typed, type=kind)]
    read = _READ.get(name) or _READ.get(word)
    if read is None:
        return param.type.shell_complete(ctx, param, typed)
    items = [CompletionItem(text) for text in _offered(read, ctx, typed)]
    return [*items, CompletionItem(typed, type="file")] if word in {"A", "B"} else items


def _offered(read: _Read, ctx: click.Context, typed: str) -> list[str]:
    session, folder = Session(), ctx.find_root().params.get("directory")
    try:
        with contextlib.closing(session), contextlib.chdir(folder or "."):
            return sorted(name for name in set(read(session, ctx)) if name.startswith(typed))
    except (MvcError, OSError):
        return []


def _names(refs: Iterable[Any]) -> list[str]:
    return [ref.name for ref in refs]


def _actions(session: Session, ctx: click.Context) -> list[str]:
    typed = ctx.params.get("words") or ()
    if not typed:
        return ["list", "add", "remove", "show"]
    return (
        _names(session.repo.remotes.list())
        if typed[0] in {"remove", "show"} and len(typed) == 1
        else []
    )


def _refs(session: Session) -> list[str]:
    return _names([*session.repo.refs(), *session.repo.refs("tag")])


def _revisions(session: Session) -> list[str]:
    repo = session.repo
    return ["HEAD", *_refs(session), *_names(repo.refs("remote")), *repo.targets()]


def _metrics(session: Session) -> set[str]:
    newest = session.repo.log("HEAD", LogOptions(every=True), limit=_NEWEST, incomplete=[])
    return {name for entry in newest for name in entry.commit.metrics}


def _tracked(session: Session, rev: str) -> list[str]:
    return [session.from_here(path) for path in session.repo.manifest(rev).by_path]


def _tensors(session: Session, rev: str) -> list[str]:
    return [tensor.key for entry in session.repo.manifest(rev).entries for tensor in entry.tensors]


def _revision_then(parts: Callable[[Session, str], list[str]]) -> _Read:
    """Completes a revision as the first word, and ``parts`` of this version as later words.

    If ``--at`` or ``--target`` names the version, completes parts as the first word, too.
    """

    def read(session: Session, ctx: click.Context) -> list[str]:
        words, at, target = (ctx.params.get(name) for name in ("words", "at", "target"))
        if at is not None or target is not None:
            return parts(session, str(session.repo.find(at=at, target=target)))
        return parts(session, words[0]) if words else _revisions(session)

    return read


def _presets(*_: object) -> Iterable[str]:
    from mvc.pipelines import PRESETS

    return PRESETS


def _values(_: Session, ctx: click.Context) -> Iterable[str]:
    name = ctx.params.get("key")
    if name == "commit.pipeline":
        return _presets()
    key = KEYS.get(str(name))
    return ("true", "false") if key is not None and key.type is bool else ()


_ON_DISK = {"DIR": "dir", **dict.fromkeys(("FILE", "SCRIPT", "DIR|FILE..."), "file")}
_READ: dict[str, _Read] = {
    **dict.fromkeys(("A", "B", "OTHER", "REV", "START"), lambda session, _: _revisions(session)),
    "BRANCH": lambda session, _: _names(session.repo.refs()),
    "COMMAND": lambda *_: [*COMMANDS, *TOPICS],
    "DATA": lambda session, _: _names(recipes.data_sets(session.repo)),
    "KEY": lambda *_: KEYS,
    "METRIC": lambda session, _: _metrics(session),
    "ORDER": lambda session, _: [sign + n for n in _metrics(session) for sign in ("", "-")],
    "PATH": lambda session, ctx: _tracked(
        session, ctx.params.get("rev") or ctx.params.get("a") or "HEAD"
    ),
    "REF": lambda session, _: _refs(session),
    "REMOTE": lambda session, _: _names(session.repo.remotes.list()),
    "[REV] [PATH]...": _revision_then(_tracked),
    "[REV] [TENSOR]": _revision_then(_tensors),
    "TAG": lambda session, _: _names(session.repo.refs("tag")),
    "SPEC": _presets,
    "STATES": lambda *_: ("all", "last:1", "live", "none"),
    **dict.fromkeys(("T", "TARGET"), lambda session, _: session.repo.targets()),
    "VALUE": _values,
    "list": _actions,
}
"""Maps the name of a parameter, or its first word, to a function that returns possible values."""
