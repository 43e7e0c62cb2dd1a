"""``mvc remote``.

'remote add NAME URL' names one: a folder, or a URL such as ssh://HOST/PATH or s3://BUCKET. Nothing
is fetched yet. 'remote show' asks one, or a URL, what it has.
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
    force: bool = flag("With add: change a remote that is there.", "-f", needs="words")


@verb("mvc remote add origin /srv/models", _RemoteOptions)
def command(session: Session, args: _RemoteOptions) -> None:
    words = args.words or ("list",)
    if words[0] != "add" and (args.options or args.force):
        raise click.UsageError("-o and -f go with add")
    match words:
        case ("add", name, url):
            _add(session, name, url, args)
        case ("remove", name):
            gone = session.repo.remotes.remove(name)
            session.note(f"Removed {gone.name}; what it brought stays until 'mvc gc'")
        case ("show",) | ("show", _):
            _show(session, *words[1:])
            return
        case ("list",):
            pass
        case _:
            raise click.UsageError("mvc remote [list | add NAME URL | remove NAME | show [NAME]]")
    if session.as_json or words[0] == "list":
        _list(session)


def _add(session: Session, name: str, url: str, args: _RemoteOptions) -> None:
    if "force" in args.options:
        raise click.UsageError("force is -f")
    remotes = session.repo.remotes
    made = remotes.add(name, url, force=args.force, **args.options)
    session.note(f"{made.name} is {made.url}")
    if made.scheme == "file":
        try:
            remotes.folder(made.name)
        except MvcError as error:
            session.warn(str(error))


def _list(session: Session) -> None:
    found = session.repo.remotes.list()
    if session.answered("mvc.remote/1", {"remotes": found}):
        return
    rows = []
    for each in found:
        told = {key: value for key, value in fields(each).items() if key not in {"name", "url"}}
        usual = fields(type(each)(each.url))
        given = [f"{key}={value}".lower() for key, value in told.items() if value != usual[key]]
        rows.append((each.name, each.url, " ".join(given)))
    session.table("remote, url, options", rows)
    if not rows:
        session.note("No remotes yet: name one with 'mvc remote add origin URL'")


def _show(session: Session, name: str | None = None) -> None:
    here = dict[tuple[str, str], CommitId]()  # by kind and name
    try:
        remote = session.repo.remotes.find(name)
    except NotARepository:
        if name is None:
            raise
        remote, found = None, refs_of(name)
    else:
        found = session.repo.remotes.show(name)
        here = _known(session, remote.name if remote else "")
    there = {
        **{("branch", each): commit for each, commit in found.branches.items()},
        **{("tag", each): commit for each, commit in found.tags.items()},
    }
    gone = sorted(each for kind, each in here.keys() - there.keys() if kind == "branch")
    if session.answered("mvc.remote.show/1", {"remote": remote, **fields(found), "gone": gone}):
        return
    kind = "bare" if found.bare else "with working files"
    title = f"{printable(remote.name)}: " if remote is not None and remote.name else ""
    session.line(f"{title}{printable(found.url)}, {kind}")
    head = found.head if isinstance(found.head, str) else "detached"
    session.line(f"HEAD: {printable(head)}")
    rows = []
    for named, commit in there.items():
        state = "same here" if here.get(named) == commit else "another here"
        rows.append((*named, session.id_text(commit), state if named in here else "new"))
    rows += [("branch", each, session.id_text(here["branch", each]), "gone there") for each in gone]
    session.table("kind, name, version, state", rows)


def _known(session: Session, remote: str) -> dict[tuple[str, str], CommitId]:
    """The branches of a remote as of the last fetch or push, and the tags here."""
    branches = session.repo.refs("remote", remote=remote) if remote else []
    return {
        **{("branch", ref.name.partition("/")[2]): ref.commit for ref in branches},
        **{("tag", tag.name): tag.commit for tag in session.repo.refs("tag")},
    }
