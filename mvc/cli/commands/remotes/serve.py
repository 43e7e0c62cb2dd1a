"""``mvc serve`` serves repositories, so that other machines can clone, fetch and push.

If FOLDER is a repository, mvc serves it at http://HOST. Otherwise, mvc serves each repository below
FOLDER at http://HOST/NAME. Clients need a token. 'token add' creates and prints a token for the
current folder (or -C FOLDER), and stores only the token's hash. --stdio serves FOLDER on standard
input and output, for ssh.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import click

from mvc.cli.payload import stamped
from mvc.cli.verb import (
    CommandOptions,
    PathText,
    Session,
    argument,
    check_alone,
    fields,
    flag,
    nbytes,
    option,
    verb,
)
from mvc.names import printable
from mvc.server.repositories import names_in
from mvc.server.tokens import DAYS, Tokens
from mvc.transport import scopes


class _ServeOptions(CommandOptions, frozen=True, kw_only=True):
    words: tuple[PathText, ...] = argument(
        "FOLDER | token add NAME | token list | token remove NAME"
    )
    listen: str | None = option("ADDRESS", "HOST:PORT or unix:PATH; by default 127.0.0.1:7433.")
    tls_cert: Path | None = option("FILE", "The certificate chain, in PEM format.")
    tls_key: Path | None = option(
        "FILE", "The private key, if the file of --tls-cert does not contain it."
    )
    quota: int | None = option(
        "SIZE", "The size limit of each repository, such as 20GB.", type=nbytes
    )
    stdio: bool = flag("Serve on standard input and output.", allows="words scope quota")
    scope: tuple[str, ...] = option(
        "SCOPE",
        "A right: read, push:GLOB, deploy:GLOB, metrics or admin. 'token add' needs at least one.",
    )
    days: int = option(
        "N", f"With 'token add': days until the token expires; by default {DAYS}.",
        type=click.IntRange(1, 3650), default=DAYS,
    )  # fmt: skip


@verb("mvc serve /srv/models --tls-cert chain.pem --tls-key key.pem", _ServeOptions)
def command(session: Session, args: _ServeOptions) -> None:
    first, *rest = args.words or ("",)
    if first == "token" and (rest or session.fs.stat(Path(first)) is None):
        _token(session, rest, args)
    elif len(args.words) != 1:
        raise click.UsageError("name one FOLDER to serve")
    elif args.stdio:
        from mvc.server.stdio import serve_stdio

        serve_stdio(Path(first), args.scope, args.quota)
    else:
        _serve(session, Path(first), args)


def _serve(session: Session, folder: Path, args: _ServeOptions) -> None:
    check_alone("words", allows="listen tls_cert tls_key quota")
    from mvc.server.listening import ADDRESS, Listening, serve

    how = Listening(
        folder,
        ADDRESS if args.listen is None else args.listen,
        args.tls_cert,
        args.tls_key,
        quota=args.quota,
    )

    def ready(url: str) -> None:
        session.note(f"serving {folder} at {url}")
        if not Tokens(session.fs, folder).all():
            session.warn(
                "there is no token yet, so no client can connect: run "
                f"'mvc -C {printable(str(folder))} serve token add NAME --scope read'"
            )

    if not session.quiet:
        _print_requests()
    serve(how, ready=ready)


def _print_requests() -> None:
    """Prints the log of the server on stderr. Each line has the time (UTC) and the message."""
    lines = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    lines.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logger = logging.getLogger("mvc.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _token(session: Session, words: Sequence[str], args: _ServeOptions) -> None:
    tokens = Tokens(session.fs, Path())
    match words:
        case ["add", name]:
            check_alone("words", allows="scope days")
            text = tokens.add(name, args.scope, args.days)
            folder, names = printable(str(session.fs.cwd())), list(names_in(session.fs, Path()))
            for scope in scopes.parse_scopes(args.scope) if names else ():
                if not any(scopes.within([scope], name) for name in names):
                    session.warn(f"the scope {scope} matches no repository in {folder}")
            if not names:
                session.warn(
                    f"there is no repository in {folder} or below: create the token in the served "
                    "folder, with 'mvc -C FOLDER serve token add'"
                )
            if session.answered("mvc.serve.token/1", {"name": name, "token": text}):
                return
            session.line(text)
            session.note("This token is shown only once. Pass it on over a secure channel.")
        case ["list"]:
            check_alone("words")
            _list(session, tokens)
        case ["remove", name]:
            check_alone("words")
            tokens.remove(name)
            session.note(f"Removed token {name}")
            if session.as_json:
                _list(session, tokens)
        case _:
            raise click.UsageError("use token add NAME, token list or token remove NAME")


def _list(session: Session, tokens: Tokens) -> None:
    rows = [
        {
            **fields(token, "name scopes"),
            **stamped("made", token.created * 10**9),
            **stamped("expires", token.expires * 10**9),
            "expired": tokens.has_expired(token),
        }
        for token in tokens.all()
    ]
    if not session.answered("mvc.serve.tokens/1", {"tokens": rows}):
        if rows:
            session.table(
                "name, until, scopes",
                [
                    (
                        row["name"],
                        row["expires"][:10] + (" (expired)" if row["expired"] else ""),
                        ",".join(row["scopes"]),
                    )
                    for row in rows
                ],
            )
        else:
            session.note("No tokens yet: create one with 'mvc serve token add NAME --scope read'")
