"""A worker and the coordinator prove to each other that they know the secret of a training.

The secret itself is never sent. What travels has a fixed length:

    worker       a mark of this protocol, its number, a nonce
    coordinator  a nonce, its proof
    worker       its proof

A proof is a BLAKE3 keyed by the secret, of the role of its sender, the worker's number and both
nonces. So it holds for one role on one connection, and neither a reflected nor a replayed proof is
accepted. The keys of the frames that follow come from the same nonces: a process that passes the
proofs on does not learn them.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from hmac import compare_digest

from blake3 import blake3

from mvc.distributed.runner.connection import ConnectionGone, Keys, read
from mvc.distributed.runner.settings import TOKEN
from mvc.errors import CannotDistribute

_MARK = b"mvc run\n"
_NONCE = 32
_HELLO = struct.Struct(f"<{len(_MARK)}sH{_NONCE}s")


class Unproven(Exception):
    """The process at the other end does not know the secret of this training."""


def keyed(secret: str, purpose: str, worker: int, nonces: bytes) -> bytes:
    """32 bytes for one purpose on one connection; the worker's nonce is the first."""
    key = blake3(os.fsencode(secret), derive_key_context="mvc 2026 secret of a training").digest()
    return blake3(f"{purpose} {worker} ".encode() + nonces, key=key).digest()


def greet(link: socket.socket, worker: int, until: float) -> Keys:
    """The worker's part, until a moment of the monotonic clock.

    Raises Unproven if the other end is not the coordinator, and ConnectionGone.
    """
    secret, nonce = own_secret(), secrets.token_bytes(_NONCE)
    _send(link, _HELLO.pack(_MARK, worker, nonce))
    nonces = nonce + read(link, _NONCE, until)
    _check(link, keyed(secret, "coordinator", worker, nonces), until)
    _send(link, keyed(secret, "worker", worker, nonces))
    return Keys(*(keyed(secret, f"from {role}", worker, nonces) for role in _ROLES))


def admit(link: socket.socket, until: float) -> tuple[int, Keys]:
    """The coordinator's part: the worker's number. Raises Unproven and ConnectionGone."""
    secret, nonce = own_secret(), secrets.token_bytes(_NONCE)
    mark, worker, theirs = _HELLO.unpack(read(link, _HELLO.size, until))
    if mark != _MARK:
        raise Unproven
    nonces = theirs + nonce
    _send(link, nonce + keyed(secret, "coordinator", worker, nonces))
    _check(link, keyed(secret, "worker", worker, nonces), until)
    return worker, Keys(*(keyed(secret, f"from {role}", worker, nonces) for role in _ROLES[::-1]))


_ROLES = ("worker", "coordinator")


def own_secret() -> str:
    """Of this training. Raises CannotDistribute where there is none: anybody knows an empty one."""
    secret = os.environ.get(TOKEN)
    if not secret:
        raise CannotDistribute(
            "this process has no secret of a training",
            hint="'mvc train-distributed' and torchrun start processes that have one",
        )
    return secret


def _send(link: socket.socket, data: bytes) -> None:
    try:
        link.sendall(data)
    except OSError as error:
        raise ConnectionGone(str(error)) from error


def _check(link: socket.socket, wanted: bytes, until: float) -> None:
    if not compare_digest(read(link, len(wanted), until), wanted):
        raise Unproven
