"""Creates and checks signatures with OpenSSH's ``ssh-keygen``, as git does.

This process never reads a private key: ``ssh-keygen`` or the SSH agent reads the key. The program
``ssh-keygen`` runs without a terminal and without a shell. A signature to check may come from an
attacker, so this module checks its format before it passes the signature to ``ssh-keygen``.
"""

from __future__ import annotations

import binascii
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from mvc.errors import CannotSign, NotInstalled
from mvc.limits import MAX_SIGNATURE
from mvc.names import printable

if TYPE_CHECKING:
    import subprocess

Trust: TypeAlias = Literal["good", "unsigned", "bad", "unknown", "not-allowed", "revoked"]

_PROGRAM = "ssh-keygen"
_NEWEST = "OpenSSH 8.8 or newer"
_PATIENCE_SECONDS = 60.0  # a hardware key may wait for a touch
_MAGIC = b"SSHSIG"
_NAME = re.compile(rb"[A-Za-z0-9@._+-]{1,64}")
"""The accepted names of algorithms and namespaces in a signature.

Other characters may be misread in the output of ``ssh-keygen``.
"""
_LINE = 70
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"
_LONGEST = 200  # maximum number of characters of ssh-keygen's error output in a message
_MOST = 8  # maximum number of signers with the same key
_LAST_SECOND = 253_402_300_799  # of the year 9999
_TOO_OLD = ("unknown option", "illegal option", "unsupported operation", "invalid option", "usage:")
_WORDS: dict[Trust, str] = {
    "good": "by {}",
    "unsigned": "without a signature",
    "bad": "for other content than the recorded one",
    "unknown": "with a key of no allowed signer",
    "not-allowed": "by {}, who may not sign this",
    "revoked": "by {}, with a revoked key",
}


class Checked(Struct, frozen=True):
    """The result of checking a signature.

    ``trust`` is one of: ``good`` (signed by ``signer``), ``unsigned`` (there is no signature),
    ``bad`` (not a valid signature of this content), ``unknown`` (the key belongs to no signer that
    was allowed at the time), ``not-allowed`` (``signer`` may not sign content of this kind),
    ``revoked`` (signed with a revoked key). ``key``: type and fingerprint of the key, if known.
    """

    trust: Trust
    signer: str = ""
    key: str = ""

    def __str__(self) -> str:
        """Signer and key, as in ``by ada@example.com (ssh-ed25519 SHA256:...)``."""
        key = f" ({printable(self.key)})" if self.key else ""
        return _WORDS[self.trust].format(printable(self.signer)) + key

    @property
    def words(self) -> str:
        """The result in words: ``signed by ada@example.com (ssh-ed25519 ...)`` or ``unsigned``."""
        return "unsigned" if self.trust == "unsigned" else f"signed {self}"


class Signers(Struct, frozen=True):
    """The files with the allowed signers and the revoked keys, in the formats of OpenSSH.

    If ``allowed`` is None, every signer is unknown.
    """

    allowed: Path | None
    revoked: Path | None = None


# -- signing -----------------------------------------------------------------------------


def sign(key: Path, namespace: str, message: bytes) -> bytes:
    """Signs ``message`` with the key in the file ``key``. Returns the binary signature.

    If the SSH agent has the private key, the file may contain only the public key. Raises
    CannotSign and NotInstalled.
    """
    done = _run(["-Y", "sign", "-n", namespace, "-f", os.fspath(key)], message)
    if done.returncode != 0:
        raise CannotSign(
            f"{_PROGRAM} cannot sign with {key}: {_output(done) or 'it gives no reason'}",
            hint=f"add a key with a passphrase to the agent: 'ssh-add {key}'; 'ssh-add -l' lists "
            "the agent's keys; the setting sign.key names the file",
        )
    armored = done.stdout
    with suppress(ValueError):
        middle = armored[armored.index(_BEGIN) + len(_BEGIN) : armored.index(_END)]
        signature = binascii.a2b_base64(b"".join(middle.split()), strict_mode=True)
        if key_of(signature) and len(signature) <= MAX_SIGNATURE:
            return signature
    raise CannotSign(f"{_PROGRAM} made no signature with {key}", hint=f"install {_NEWEST}")


# -- checking ----------------------------------------------------------------------------


def key_of(blob: bytes) -> str:
    """Type and fingerprint of the key of a signature. Empty if ``blob`` is not a signature."""
    import hashlib  # late: slow to import

    with suppress(ValueError, struct.error):
        if blob[:6] != _MAGIC or blob[6:10] != b"\0\0\0\1":
            return ""
        key, namespace, _, hashed, signature = _strings(blob[10:])
        kind, algorithm = next(_strings(key), b""), next(_strings(signature), b"")
        if all(_NAME.fullmatch(name) for name in (kind, namespace, hashed, algorithm)):
            name = _base64(hashlib.sha256(key).digest()).decode().rstrip("=")
            return f"{kind.decode()} SHA256:{name}"
    return ""


def _strings(data: bytes) -> Iterator[bytes]:
    """The strings in ``data``. Before each string are four bytes with its length."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        at += 4 + size
        if at > len(data):
            raise ValueError
        yield data[at - size : at]


def check(
    blob: bytes, message: bytes, *, namespace: str, signers: Signers, time_ns: int
) -> Checked:
    """Checks whether ``blob`` is a signature of ``message`` by a signer allowed at ``time_ns``.

    A signature with a revoked key is never good, even if it is older than the revocation. Raises
    NotInstalled, and CannotSign if ``ssh-keygen`` does not answer in time.
    """
    key = key_of(blob)
    if not key:
        return Checked("bad")
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mvc-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(_armored(blob))
        signature = ["-s", os.fspath(file)]
        names: tuple[str, ...] = ()
        if signers.allowed is not None:
            at = [f"-Overify-time={_moment(time_ns)}", "-f", os.fspath(signers.allowed), *signature]
            names = _names(_run(["-Y", "find-principals", *at], b""))
        for name in names:
            verify = ["verify", "-n", namespace, "-I", name, *at]
            if _is_right(verify, message):
                revoked = () if signers.revoked is None else ("-r", os.fspath(signers.revoked))
                is_revoked = bool(revoked) and not _is_right([*verify, *revoked], message)
                return Checked("revoked" if is_revoked else "good", name, key)
        if not _is_right(["check-novalidate", "-n", namespace, *signature], message):
            return Checked("bad", key=key)
    return Checked("not-allowed", names[0], key) if names else Checked("unknown", key=key)


def _is_right(arguments: Sequence[str], message: bytes) -> bool:
    return _run(["-Y", *arguments], message).returncode == 0


def _armored(blob: bytes) -> bytes:
    text = _base64(blob)
    lines = (text[at : at + _LINE] + b"\n" for at in range(0, len(text), _LINE))
    return _BEGIN + b"".join(lines) + _END


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


def _names(done: subprocess.CompletedProcess[bytes]) -> tuple[str, ...]:
    """The signers that ``ssh-keygen -Y find-principals`` has printed for a key."""
    text = done.stdout.decode(errors="replace") if done.returncode == 0 else ""
    names = (name for line in text.splitlines() for name in line.split(","))
    return tuple(dict.fromkeys(n for n in names if n and not n.startswith("!")))[:_MOST]


def _moment(time_ns: int) -> str:
    """A time in the format of ``ssh-keygen``, in the local time zone."""
    seconds = min(max(time_ns // 10**9, 0), _LAST_SECOND)
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))


# -- the program -------------------------------------------------------------------------


def _run(arguments: Iterable[str], message: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs ssh-keygen without a terminal, so that it asks nothing.

    Raises NotInstalled, and CannotSign if it does not finish in time.
    """
    import subprocess
    from shutil import which

    program = which(_PROGRAM)
    if program is None:
        raise NotInstalled(
            f"signatures need {_PROGRAM}, which is not installed", hint=f"install {_NEWEST}"
        )
    try:
        done = subprocess.run(  # noqa: S603 - no shell; the message is on stdin
            [program, *arguments],
            input=message,
            capture_output=True,
            env=os.environ | {"LC_ALL": "C"},
            timeout=_PATIENCE_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotSign(
            f"{_PROGRAM} did not answer within {_PATIENCE_SECONDS:g} s",
            hint="check whether the agent waits for a confirmation, or the key for a touch",
        ) from None
    except OSError as error:
        raise NotInstalled(f"{program} cannot be started: {error.strerror}") from error
    if done.returncode != 0 and any(word in _output(done).lower() for word in _TOO_OLD):
        raise NotInstalled(f"this {_PROGRAM} is too old for signatures", hint=f"install {_NEWEST}")
    return done


def _output(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split())[:_LONGEST]
