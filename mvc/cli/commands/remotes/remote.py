"""``mvc remote``.

'remote add NAME URL' gives the repository at URL a name. URL is the path of a folder, or a URL such
as ssh://HOST/PATH or s3://BUCKET. 'remote add' fetches nothing. 'remote show' lists the refs of a
remote, or of the repository at a URL.
"""

from __future__ import annotations

import click

from mvc.api import refs_of
from mvc.cli.verb import CommandOptions, PathText, Session, argument, fields, flag, option, verb
from mvc.errors import MvcError, NotARepository
from mvc.ids import CommitId
from mvc.names import printable


class _RemoteOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[PathText, ...] = argument("[list | add NAME URL | remove NAME | show [NAME|URL]]")
    options: dict[str, str] = option(
        "K=V", "With add: lazy=true, data=false, states=last:5, ... (repeatable).",
        "-o", "--option", needs="words",
    )  # fmt: skip
    force: bool = flag("With add: change an existing remote.", "-f", needs="words")


@verb("mvc remote add origin /srv/models", _RemoteOptions)
def command(session: Session, args: _RemoteOptions) -> None:
    words = args.words or ("list",)
    if words[0] != "add" and (args.options or args.force):
        raise click.UsageError("-o and -f need 'remote add'")
    match words:
        case ("add", name, url):
            _add(session, name, url, args)
        case ("remove", name):
            removed = session.repo.remotes.remove(name)
            session.note(f"Removed {removed.name}; its versions stay until 'mvc gc'")
        case ("show",) | ("show", _):
            _show(session, *words[1:])
            return
        case ("list",):
            pass
        case _:
            raise click.UsageError("use list, add NAME URL, remove NAME or show [NAME|URL]")
    if session.as_json or words[0] == "list":
        _list(session)


def _add(session: Session, name: str, url: str, args: _RemoteOptions) -> None:
    if "force" in args.options:
        raise click.UsageError("use -f, not -o force")
    remotes = session.repo.remotes
    added = remotes.add(name, url, force=args.force, **args.options)
    session.note(f"{added.name} is {added.url}")
    if added.scheme == "file":
        try:
            remotes.folder(added.name)
        except MvcError as error:
            session.warn(str(error))


def _list(session: Session) -> None:
    remotes = session.repo.remotes.list()
    if session.answered("mvc.remote/1", {"remotes": remotes}):
        return
    rows = []
    for remote in remotes:
        values = {key: value for key, value in fields(remote).items() if key not in {"name", "url"}}
        usual = fields(type(remote)(remote.url))
        changed = [f"{key}={value}".lower() for key, value in values.items() if value != usual[key]]
        rows.append((remote.name, remote.url, " ".join(changed)))
    session.table("remote, url, options", rows)
    if not rows:
        session.note("No remotes yet: add one with 'mvc remote add origin URL'")


def _show(session: Session, name: str | None = None) -> None:
    known = dict[tuple[str, str], CommitId]()  # keys: kind and name of a ref
    try:
        remote = session.repo.remotes.find(name)
    except NotARepository:
        if name is None:
            raise
        remote, refs = None, refs_of(name)
    else:
        refs = session.repo.remotes.show(name)
        known = _known(session, remote.name if remote else "")
    listed = {
        **{("branch", branch): commit for branch, commit in refs.branches.items()},
        **{("tag", branch): commit for branch, commit in refs.tags.items()},
    }
    deleted = sorted(branch for kind, branch in known.keys() - listed.keys() if kind == "branch")
    if session.answered("mvc.remote.show/1", {"remote": remote, **fields(refs), "gone": deleted}):
        return
    kind = "bare" if refs.bare else "with working files"
    title = f"{printable(remote.name)}: " if remote is not None and remote.name else ""
    session.line(f"{title}{printable(refs.url)}, {kind}")
    session.line(f"HEAD: {printable(refs.head) if isinstance(refs.head, str) else 'detached'}")
    rows = []
    for named, commit in listed.items():
        state = "same here" if known.get(named) == commit else "differs here"
        rows.append((*named, session.id_text(commit), state if named in known else "new"))
    rows += [
        ("branch", branch, session.id_text(known["branch", branch]), "deleted there")
        for branch in deleted
    ]
    session.table("kind, name, version, state", rows)


def _known(session: Session, remote: str) -> dict[tuple[str, str], CommitId]:
    """The tracking refs of a remote, and the local tags."""
    branches = session.repo.refs("remote", remote=remote) if remote else []
    return {
        **{("branch", ref.name.partition("/")[2]): ref.commit for ref in branches},
        **{("tag", tag.name): tag.commit for tag in session.repo.refs("tag")},
    }
