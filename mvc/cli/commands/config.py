"""``mvc config``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from mvc.cli.options import json_option
from mvc.cli.program import Verb
from mvc.cli.session import Session, load, user_config
from mvc.cli.tables import Column, show
from mvc.errors import NotARepository
from mvc.io.files import FileSystem
from mvc.model.names import printable
from mvc.repo.config import KEYS, Config, set_value, unset_value

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = (
    Column("key"),
    Column("value", give="middle"),
    Column("from"),
    Column("meaning", give="end"),
)


@click.command("config", cls=Verb, example="mvc config store.reset_interval 50")
@click.argument("key", metavar="[KEY]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--user", is_flag=True, help="Change your own file, not the repository's.")
@click.option("--unset", is_flag=True, help="Take KEY out of the file.")
@json_option
@click.pass_obj
def command(
    session: Session, key: str | None, value: str | None, user: bool, unset: bool, as_json: bool
) -> None:
    """Show or change settings.

    Without KEY all settings are listed, each with where its value comes from: default,
    user file, repository file, environment (MVC_STORE_RESET_INTERVAL), flag; later ones win.
    """
    if unset and (key is None or value is not None):
        raise click.UsageError("--unset takes one KEY")
    if unset and key is not None:
        _unset(session, key, user=user)
    elif key is not None and value is not None:
        set_value(FileSystem(), _file(session, user=user), key, value)
    else:
        _print(session, _current(session), key, as_json=as_json)


def _file(session: Session, *, user: bool) -> Path:
    if user:
        return user_config(os.environ)
    return session.context.root / ".mvc" / "config.yaml"


def _current(session: Session) -> Config:
    """The configuration in force here; outside a repository, what applies to all."""
    try:
        return session.context.config
    except NotARepository:
        return load(None)


def _unset(session: Session, key: str, *, user: bool) -> None:
    file = _file(session, user=user)
    if not unset_value(FileSystem(), file, key):
        session.out.note(f"{printable(key)} is not set in {printable(str(file))}")


def _print(session: Session, config: Config, key: str | None, *, as_json: bool) -> None:
    if key is not None:
        config.get(key)  # refuses a name that is no setting
    names = [key] if key is not None else list(KEYS)
    if as_json:
        rows = {n: {"value": config.get(n), "from": config.origin(n)} for n in names}
        session.out.json("mvc.config/1", {"settings": rows})
    elif key is not None:
        session.out.line(_text(config.get(key)))
    else:
        show(
            session.out,
            _COLUMNS,
            [(n, _text(config.get(n)), config.origin(n), KEYS[n].help) for n in names],
        )


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else printable(str(value))
