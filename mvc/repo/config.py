"""Settings: known keys with types and ranges, and the origin of each value.

A setting comes from one of five sources. From the lowest to the highest priority: defaults, the
user's file, the repository's file, environment variables (``MVC_*``), flags. An unknown key or an
invalid value raises InvalidConfig, so that no setting is silently ignored.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from mvc.errors import InvalidConfig
from mvc.io.files import FileIdentity, FileSystem
from mvc.io.process import host_name, memory_bytes, trusted_owners, user_folder, user_name
from mvc.limits import MAX_NAME_BYTES, MAX_PIPELINE_TEXT, MAX_REF_BYTES
from mvc.names import check_author, printable
from mvc.store.writing.layout import PATTERN
from mvc.text import SIZE, did_you_mean, parse_size

if TYPE_CHECKING:
    import yaml


Origin: TypeAlias = Literal["default", "user", "repository", "environment", "flag"]
Value: TypeAlias = str | int | float | bool | None

_PREFIX = "MVC_"
AUTHOR = "MVC_AUTHOR"
"""Environment variable with the author's name. It has priority over ``user.name``."""
TOKEN = "MVC_TOKEN_"  # noqa: S105 - a name
"""Prefix of environment variables with tokens of remotes."""
SSH = "MVC_SSH"
"""Environment variable with a command (program and arguments) for ssh:// remotes."""
_NO_SETTINGS = {AUTHOR, SSH, "MVC_PAGER"}
_MAX_FILE = 1 << 16
_BY_ALL = 0o002  # write permission for everyone
_MAX_FOLDERS = 1 << 15  # the largest length of safe.directory in bytes
_WHOLE = 1 << 63  # larger than any setting
_WORDS = {"true": True, "yes": True, "on": True, "1": True,
          "false": False, "no": False, "off": False, "0": False}  # fmt: skip
_AUTO = 4  # ``python.keep_base = auto`` means the machine's memory divided by this number
_EMPTY = re.compile(rb"(?:[ ]*(?:#[ -~]*)?\n)*")
_NOTHING = {"", "null", "none", "~"}


class Key(Struct, frozen=True):
    """A setting.

    ``low``, ``high``: bounds of a number, or of the length of a text in bytes. ``open_low``: the
    bound ``low`` itself is excluded. ``optional``: the setting may be null. ``pattern``: a text
    must match this pattern. ``personal``: a repository's file cannot set this setting.
    """

    name: str
    type: type[str] | type[int] | type[float] | type[bool]
    default: Value
    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    optional: bool = False
    pattern: str = ""
    personal: bool = False

    @property
    def variable(self) -> str:
        """The environment variable of the key, such as ``MVC_STORE_RESET_INTERVAL``."""
        return _PREFIX + self.name.upper().replace(".", "_")

    def check(self, value: object, where: str) -> Value:
        """Returns ``value`` in the key's type. Raises InvalidConfig for a wrong value.

        ``where``: the location of the value, for the message; empty if a caller passed the value.
        """
        if value is None and self.optional:
            return None
        if self.type is float and type(value) is int and abs(value) < _WHOLE:
            value = float(value)
        if type(value) is not self.type or not self._in_range(value):
            place = f" in {where}" if where else ""
            raise InvalidConfig(
                f"{self.name} = {_shown(value)}{place}: it must be {_expects(self)}",
                hint=f"for example: mvc config {self.name} {_shown(self.default)}"
                if self.default not in (None, "")
                else None,
            )
        return value

    def parse(self, text: str, where: str) -> Value:
        """Parses a value of the environment or the command line. Raises InvalidConfig."""
        word = text.strip().lower()
        if self.optional and word in _NOTHING:
            return None
        value: object = text
        if self.type is bool:
            value = _WORDS.get(word, text)
        elif self.type is not str:
            with suppress(ValueError):
                value = self.type(text)
        return self.check(value, where)

    def _in_range(self, value: object) -> bool:
        if isinstance(value, bool):
            return True
        if isinstance(value, str):
            size = len(value.encode("utf-8", "surrogatepass"))
            fits = not self.pattern or re.fullmatch(self.pattern, value) is not None
            return self.low <= size <= self.high and fits and printable(value) == value
        if not isinstance(value, int | float) or not -_WHOLE < value < _WHOLE:
            return False
        return self.low <= value <= self.high and not (self.open_low and value == self.low)


def _expects(key: Key) -> str:
    if key.type is bool:
        return "true or false"
    if key.pattern:
        return key.help.partition(": ")[2]
    if key.type is str:
        least = "1 to " if key.low >= 1 else "at most "
        return f"printable text of {least}{int(key.high)} bytes"
    noun = "a whole number" if key.type is int else "a number"
    if math.isinf(key.high):
        span = f"{'greater than' if key.open_low else 'of at least'} {key.low:g}"
    else:
        span = f"{'greater than' if key.open_low else 'from'} {key.low:g}"
        span += f"{', at most' if key.open_low else ' to'} {key.high:g}"
    return f"{noun} {span}{', or null' if key.optional else ''}"


_ALL = (
    Key("user.name", str, "", "the author of commits and deployments; empty means user@host",
        low=0, high=MAX_NAME_BYTES),
    Key("commit.pipeline", str, "lossless", "the pipeline or preset for stored data",
        low=1, high=MAX_PIPELINE_TEXT),
    Key("commit.patch", bool, False, "attach the uncommitted changes of the code to each version"),
    Key("store.layout", str, "skip:4", "choice of delta bases: skip:2 to skip:16, chain or "
        "chain:R", low=1, high=20, pattern=PATTERN),
    Key("store.reset_interval", int, None, "versions between reset points; null: 64 with skip, "
        "28 with chain", low=1, high=10_000, optional=True),
    Key("store.max_recovery", float, None, "longest recovery time of any version, in seconds",
        low=0, open_low=True, optional=True),
    Key("store.storage_weight", float, None, "seconds of recovery time that a stored gigabyte is "
        "worth; null: as few bytes as the layout allows", low=0, open_low=True, optional=True),
    Key("store.max_chain", float, 16.0, "most stored bytes from which mvc recovers a tensor, as a "
        "multiple of the tensor's size", low=1, high=1000),
    Key("gc.grace_days", float, 14.0, "days for which 'mvc gc' keeps unreachable versions after "
        "the newest operation that used them", low=0, high=36_500),
    Key("safe.directory", str, "", "folders whose repositories may belong to other users, joined "
        "by ':'; * for all", low=0, high=_MAX_FOLDERS, personal=True),
    Key("deploy.hook", str, "", "a shell command to run after each deployment, rollback and "
        "retraction", low=0, high=4096, personal=True),
    Key("deploy.hook_timeout", float, 60.0, "seconds after which the deploy.hook is killed",
        low=0, high=86_400, open_low=True, personal=True),
    Key("deploy.protect", str, "", "targets that need --anyway for a deployment; * matches any "
        "characters", low=0, high=4096),
    Key("sign.key", str, "", "the file of the SSH key for signatures, or of its public part if an "
        "SSH agent has the key", low=0, high=4096, personal=True),
    Key("sign.commits", bool, False, "sign every version", personal=True),
    Key("sign.deployments", bool, False, "sign every deployment, rollback and retraction",
        personal=True),
    Key("sign.allowed_signers", str, "", "the file of allowed signers, in the format of "
        "ssh-keygen", low=0, high=4096, personal=True),
    Key("sign.revoked", str, "", "the file of revoked keys", low=0, high=4096,
        personal=True),
    Key("recorder.timeout", float, 600.0, "how long a recorder waits for a stalled commit, in "
        "seconds", low=0, open_low=True),
    Key("recorder.push_timeout", float, 60.0, "how long the end of a recorder waits for a stalled "
        "push, in seconds", low=0, open_low=True),
    Key("mlflow.tags", bool, False, "tag MLflow runs that start in the repository with the "
        "version of HEAD"),
    Key("core.bare", bool, False, "the repository has no working files and serves as a remote"),
    Key("init.branch", str, "main", "the branch of a new repository",
        low=1, high=MAX_REF_BYTES - len("heads/")),
    Key("python.keep_base", str, "auto", "memory for states that are the delta bases of the next "
        "commit from Python: auto, none, or a size such as 2GB", low=1, high=32,
        pattern=rf"auto|none|{SIZE}(?<=[bB])"),
)  # fmt: skip
KEYS: dict[str, Key] = {key.name: key for key in _ALL}


class Config(Struct, frozen=True):
    """The value and origin of each setting."""

    values: Mapping[str, tuple[Value, Origin]]

    def get(self, name: str) -> Any:
        """The value of a key, in its type in ``KEYS``. Raises InvalidConfig for an unknown key."""
        return self.values[_known(name).name][0]

    def origin(self, name: str) -> Origin:
        return self.values[_known(name).name][1]

    @property
    def author(self) -> str:
        """The author's name: ``MVC_AUTHOR``, ``user.name``, or login and host.

        Raises InvalidName.
        """
        if name := os.environ.get(AUTHOR):
            return check_author(name)
        return str(self.get("user.name") or f"{user_name()}@{host_name()}")


def cache_bytes(text: str) -> int:
    """The number of bytes that ``python.keep_base`` means. ``auto``: a quarter of the memory."""
    if text == "auto":
        return memory_bytes() // _AUTO
    return parse_size(text) or 0


def load_config(
    fs: FileSystem,
    repo_file: Path | None,
    user_file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> Config:
    """Reads all sources of settings. Files may be missing. ``flags``: maps keys to texts.

    Raises InvalidConfig for the first unknown key or invalid value. The message names the source of
    the key or value.
    """
    values: dict[str, tuple[Value, Origin]] = {key.name: (key.default, "default") for key in _ALL}
    files: dict[Origin, Path | None] = {"user": user_file, "repository": repo_file}
    for origin, file in files.items():
        personal = origin == "user"
        from_file = _checked(read_yaml(fs, file, personal=personal), f"{file}", personal=personal)
        values |= {name: (value, origin) for name, value in from_file.items()}
    variables = {key.variable: key for key in _ALL}
    for variable in sorted(environment):
        if (
            not variable.startswith(_PREFIX)
            or variable in _NO_SETTINGS
            or variable.startswith(TOKEN)
        ):
            continue
        if variable not in variables:
            raise InvalidConfig(
                f"the environment sets {printable(variable)}, which is not a setting of mvc",
                hint=_suggest(variable, list(variables)),
            )
        key = variables[variable]
        where = f"the environment ({variable})"
        values[key.name] = (key.parse(environment[variable], where), "environment")
    for name, text in flags.items():
        values[name] = (_known(name, "a flag").parse(text, "a flag"), "flag")
    return Config(values)


def settings(repo_file: Path | None, environment: Mapping[str, str]) -> Config:
    """Settings of a repository's file, the user's file and the environment.

    Use this function to make an argument ``config=`` of ``Repository.open``. Raises InvalidConfig.
    """
    return load_config(FileSystem(), repo_file, user_file(environment), environment, flags={})


def own_config(fs: FileSystem, environment: Mapping[str, str]) -> Config:
    """Settings without a repository: from the user's file, and personal settings from the
    environment.

    Raises InvalidConfig.
    """
    named = {key.variable for key in _ALL if key.personal} & environment.keys()
    variables = frozenset((variable, environment[variable]) for variable in named)
    file = user_file(environment)
    return _unless_changed(fs, file, fs.stat(file), variables)


@lru_cache(maxsize=1)  # each commit needs these settings, and parsing YAML is slow
def _unless_changed(
    fs: FileSystem, file: Path, _: FileIdentity | None, variables: frozenset[tuple[str, str]]
) -> Config:
    return load_config(fs, None, file, dict(variables), flags={})


def user_path(name: str, text: str) -> Path:
    """The file that a personal setting names. ``~`` is the home folder. Raises InvalidConfig."""
    with suppress(RuntimeError):  # a user without a home
        path = Path(text).expanduser()
        if path.is_absolute():
            return path
    raise InvalidConfig(
        f"{name} = {printable(text)}: it must be an absolute path",
        hint=f"for example: mvc config --user {name} ~/.ssh/FILE",
    )


def user_file(environment: Mapping[str, str]) -> Path:
    """The path of the user's settings file, which may not exist."""
    return user_folder(environment, "config") / "config.yaml"


def set_value(fs: FileSystem, file: Path, key: str, value: str, *, user: bool = False) -> None:
    """Sets one key in a file. A missing file is created. Comments in the file are lost.

    ``user``: ``file`` is the user's own file, which may set all keys.
    """
    parsed = _known(key).parse(value, "")
    with changing(fs, file):
        tree = read_yaml(fs, file, personal=user)
        _checked(tree, f"{file}", personal=user)
        if KEYS[key].personal and not user:
            raise _personal(key, f"{file}")
        section, _, name = key.partition(".")
        tree[section] = {**(tree.get(section) or {}), name: parsed}  # a section may be empty
        write_yaml(fs, file, tree)


def unset_value(fs: FileSystem, file: Path, key: str, *, user: bool = False) -> bool:
    """Removes one key from a file. Returns False if the file does not set the key.

    Unknown keys in the file are accepted, so that an unknown key can be removed.
    """
    with changing(fs, file):
        tree = read_yaml(fs, file, personal=user)
        section, dot, name = key.rpartition(".")
        inside = tree.get(section) if dot else tree
        if not isinstance(inside, dict) or name not in inside:
            return False
        del inside[name]
        write_yaml(fs, file, {part: values for part, values in tree.items() if values != {}})
        return True


@contextmanager
def changing(fs: FileSystem, file: Path) -> Iterator[None]:
    """Locks a file between a read and a write. Raises Busy."""
    fs.make_dirs(file.parent)
    with fs.shared_by(file.parent).lock(file.with_name(f"{file.name}.lock")):
        yield


def read_yaml(fs: FileSystem, file: Path | None, *, personal: bool = False) -> dict[str, Any]:
    """The mapping in a file. If the file is missing or empty, an empty mapping.

    ``personal``: refuse a file that other users can write. Raises InvalidConfig.
    """
    if file is None or fs.stat(file) is None:
        return {}
    if personal:
        _refuse_foreign(fs, file)
    data = fs.read_bytes(file, _MAX_FILE)
    if _EMPTY.fullmatch(data):  # the common case, without importing yaml, which is slow
        return {}
    import yaml

    try:
        tree = yaml.load(data, _loader())  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, ValueError, ArithmeticError, TypeError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InvalidConfig(
            f"{file}{line}: not valid YAML", hint="correct the file or remove it"
        ) from e
    if not isinstance(tree, dict | None):
        raise _no_section(f"{file}")
    return tree or {}


def _refuse_foreign(fs: FileSystem, file: Path) -> None:
    """Raises InvalidConfig if other users can write the user's file.

    Root may own the file. The file's group may write the file, because on many systems each user
    has an own group.
    """
    identities = [i for i in (fs.stat(file, follow=False), fs.stat(file)) if i is not None]
    if strangers := {identity.owner for identity in identities} - trusted_owners() - {0}:
        problem = f"belongs to {user_name(min(strangers))}"
        hint = "read it, then replace it by your own copy, or remove it"
    elif any(i.is_file and i.permissions & _BY_ALL for i in identities):
        import shlex  # rarely needed

        problem = "is writable by everyone"
        hint = f"read it, then: chmod o-w {shlex.quote(str(file))}"
    else:
        return
    raise InvalidConfig(f"{printable(str(file))} is ignored as unsafe: it {problem}", hint=hint)


@cache
def _loader() -> type[yaml.SafeLoader]:
    """A YAML loader that refuses references, because they can expand a small file without limit.

    The C loader is not used, because a deeply nested file crashes it.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise yaml.YAMLError("references are not accepted")
            return super().compose_node(parent, index)

    return Loader


def write_yaml(fs: FileSystem, file: Path, tree: Mapping[str, Any]) -> None:
    """Replaces the content of a file by a mapping, durably."""
    import yaml

    fs.make_dirs(file.parent)
    text = yaml.safe_dump(dict(tree), allow_unicode=True, sort_keys=False) if tree else ""
    fs.write_atomic(file, text.encode())


def _flat(tree: Mapping[Any, Any], where: str) -> Iterator[tuple[str, object]]:
    """Yields (dotted name, value) of all settings in a file with sections."""
    for section, values in tree.items():
        if not isinstance(values, dict | None):
            raise _no_section(where)
        yield from ((f"{section}.{name}", value) for name, value in (values or {}).items())


def _no_section(where: str) -> InvalidConfig:
    return InvalidConfig(
        f"{where}: a setting is written as 'section:', and 'name: value' indented on a line below",
        hint="for store.max_chain, write 'store:', and 'max_chain: 16' indented on the next line",
    )


def _checked(tree: Mapping[str, Any], where: str, *, personal: bool) -> dict[str, Value]:
    """Maps dotted names to the settings of a file. Raises InvalidConfig."""
    values = {n: _known(n, where).check(value, where) for n, value in _flat(tree, where)}
    if not personal and (own := [name for name in values if KEYS[name].personal]):
        raise _personal(own[0], where)
    return values


def _personal(name: str, where: str) -> InvalidConfig:
    return InvalidConfig(
        f"{name} is a personal setting, which a repository cannot set: {where}",
        hint=f"set it with 'mvc config --user {name} ...'",
    )


def _known(name: str, where: str = "") -> Key:
    if (key := KEYS.get(name)) is not None:
        return key
    raise InvalidConfig(
        f"{where} sets {printable(name[:200])}, which is not a setting of mvc"
        if where
        else f"mvc has no setting {printable(name[:200])}",
        hint=_suggest(name[:200], list(KEYS)),
    )


def _suggest(name: str, names: list[str]) -> str:
    return did_you_mean(name, names, f"one of {', '.join(sorted(names))}")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return printable(value[:80]) or "''"
    if isinstance(value, int) and not -_WHOLE < value < _WHOLE:
        return "a huge number"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return f"a {type(value).__name__}"  # the text of a list or mapping may be huge
