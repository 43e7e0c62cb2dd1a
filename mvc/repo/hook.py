"""Runs the user's command after a deployment: ``deploy.hook`` in the user's settings.

The command runs after the deployment is durable. If the command fails, the deployment remains. A
repository's settings cannot set the command, because another person may have written ``.mvc``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from mvc.errors import MvcError, MvcWarning
from mvc.io.log import log_event
from mvc.names import printable
from mvc.repo.config import own_config
from mvc.repo.statements.live import Deployed, live_at
from mvc.store.store import Store
from mvc.times import format_time

if TYPE_CHECKING:
    import subprocess

Action: TypeAlias = Literal["deploy", "rollback", "retract"]
Announce: TypeAlias = Callable[[Action, Deployed], Deployed]

_HOOK, _TIMEOUT = "deploy.hook", "deploy.hook_timeout"
_PREFIX = "DEPLOY_"  # not MVC_, which is the prefix of settings
_SCHEMA = "mvc.hook/1"
_INSIDE = f"{_PREFIX}SCHEMA"  # set while a hook runs; CI systems may set DEPLOY_ACTION etc.
_LONGEST = 10_000  # longest text in a variable, in characters; the JSON has the complete text
_STDERR = 2  # for the output of the hook, because stdout is for the output of mvc


class HookFailed(MvcWarning):
    """The user's command after a deployment failed. The deployment remains."""


def announcing(store: Store, target: str | None) -> Announce:
    """Returns a function to call after a deployment on ``target`` is recorded.

    Call ``announcing`` before the deployment is recorded. The returned function runs the user's
    hook if there is one, warns if the hook fails, and returns the deployment. If the hook itself
    deploys with mvc, the hook does not run again.
    """
    if target is None or os.environ.get(_INSIDE) == _SCHEMA:
        return _logged
    try:
        config = own_config(store.fs, os.environ)
    except MvcError as error:
        problem = f"was not run: {error.message}"
        return lambda action, deployed: _warned(_logged(action, deployed), problem)
    command, seconds = config.get(_HOOK), config.get(_TIMEOUT)
    if not command.strip():
        return _logged
    previous = _live(store, target)

    def announce(action: Action, deployed: Deployed) -> Deployed:
        _logged(action, deployed)
        retracts = action == "retract"
        facts = {
            "schema": _SCHEMA,
            "action": action,
            "repository": str(store.root),
            "target": target,
            "version": str(deployed.commit),
            "live": _live(store, target),
            "previous": previous,
            "time": format_time(deployed.time_ns),
            "author": deployed.retracted_by if retracts else deployed.author,
            "reason": deployed.retracted_reason if retracts else deployed.reason,
        }
        problem = run_command(command, seconds, facts, folder=_folder())
        return deployed if problem is None else _warned(deployed, problem)

    return announce


def _logged(action: Action, deployed: Deployed) -> Deployed:
    """Writes a deployment to the program's log."""
    short, target = deployed.commit.short, printable(deployed.target)
    retracts = action == "retract"
    log_event(
        "mvc.deployments",
        f"{action} {short} {target}",
        action=action,
        version=str(deployed.commit),
        target=target,
        author=printable(deployed.retracted_by if retracts else deployed.author),
        reason=printable(deployed.retracted_reason if retracts else deployed.reason),
    )
    return deployed


def _warned(deployed: Deployed, problem: str) -> Deployed:
    """Warns in one line that the hook failed, and that the deployment is recorded."""
    fact = f"{deployed.commit.short} on {deployed.target} is recorded"
    warnings.warn(f"{fact}, but {_HOOK} {problem}", HookFailed, stacklevel=4)
    return deployed


def _live(store: Store, target: str) -> str | None:
    with suppress(MvcError):
        return str(live_at(store, None, target).commit)
    return None


def run_command(
    command: str, seconds: float, facts: Mapping[str, str | bool | None], *, folder: str
) -> str | None:
    """Runs a user's shell command until it ends. Returns a description of a failure, or None.

    The command receives ``facts`` as JSON on stdin, and as environment variables
    (``DEPLOY_TARGET`` etc.).
    """
    import json  # imported late, because few users have a hook
    import signal
    import subprocess

    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own setting
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=_STDERR,
            cwd=folder,
            env=os.environ | _variables(facts),
            start_new_session=True,  # so that the command's process group can be killed
        )
    except OSError as error:
        return f"did not start: {error.strerror}"
    try:
        process.communicate(json.dumps(facts).encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"took longer than {seconds:g} s and was killed"
    except BaseException:
        _end(process)
        raise
    code = process.returncode
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"failed with exit status {code}" if code else None


def _folder() -> str:
    """The hook's working folder.

    The folder is not the repository, because programs may load files from their working folder.
    """
    with suppress(RuntimeError, OSError):  # a user without a home
        home = Path.home()
        if home.is_absolute() and home.is_dir() and os.access(home, os.X_OK):
            return str(home)
    return "/"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the hook and all processes of its process group."""
    import signal

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _variables(facts: Mapping[str, str | bool | None]) -> dict[str, str]:
    """The environment variables ``DEPLOY_TARGET`` etc.

    None becomes an empty text. A boolean becomes 1 or 0. Texts are written on one line.
    """
    known = {
        name: str(int(value)) if isinstance(value, bool) else value or ""
        for name, value in facts.items()
    }
    for name in {"author", "reason"} & known.keys():
        known[name] = printable(known[name][:_LONGEST])
    return {_PREFIX + name.upper(): value for name, value in known.items()}
