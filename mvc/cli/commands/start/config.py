"""``mvc config``.

Without KEY, mvc lists all settings with their sources. Later sources override earlier ones:
default, user file, repository file, environment (MVC_STORE_RESET_INTERVAL), flag.
"""

from __future__ import annotations

import os

from mvc.api import KEYS, Config, set_value, unset_value, user_file
from mvc.cli.session import load
from mvc.cli.verb import CommandOptions, Session, argument, flag, verb
from mvc.errors import NotARepository
from mvc.names import printable


class _ConfigOptions(CommandOptions, frozen=True, kw_only=True):
    key: str | None = argument("[KEY]")
    value: str | None = argument("[VALUE]")
    listing: bool = flag("List all settings, as without KEY.", "-l", "--list", allows="")
    user: bool = flag("Change your user file, not the file of the repository.")
    unset: bool = flag("Remove KEY from the file.", needs="key", allows="key user")


@verb("mvc config store.reset_interval 50", _ConfigOptions)
def command(session: Session, args: _ConfigOptions) -> None:
    if args.key is None or (args.value is None and not args.unset):
        try:
            config = session.repo.config
        except NotARepository:  # only the settings of the user, and defaults
            config = load(None)
        _print(session, config, args.key)
        return
    file = user_file(os.environ) if args.user else session.config_file
    if args.value is not None:
        set_value(session.fs, file, args.key, args.value, user=args.user)
    elif not unset_value(session.fs, file, args.key, user=args.user):
        session.note(f"{args.key} is not set in {file}")


def _print(session: Session, config: Config, key: str | None) -> None:
    values = [
        (name, config.get(name), config.origin(name))
        for name in (list(KEYS) if key is None else [key])
    ]
    if session.as_json:
        rows = {name: {"value": value, "from": origin} for name, value, origin in values}
        session.json("mvc.config/1", {"settings": rows})
    elif key is not None:
        session.line(_text(config.get(key)))
    else:
        texts = [(name, _text(value), origin, KEYS[name].help) for name, value, origin in values]
        session.table("key, value, from, meaning", texts)


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else printable(str(value))
