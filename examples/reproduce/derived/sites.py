"""Processes that stand for machines: each calls what it is given, one call after the other."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

import torch

from mvc.errors import CannotRetrain, MvcError

__all__ = ["Site"]

T = TypeVar("T")


class Site:
    """A process of its own, with as many threads of torch as this one. Use it in a ``with``."""

    def __init__(self, name: str) -> None:
        context = get_context("spawn")
        self.name = name
        self._link, theirs = context.Pipe()
        self._process = context.Process(
            target=_answer, args=(theirs, torch.get_num_threads()), name=name, daemon=True
        )
        self._process.start()
        theirs.close()

    def __call__(self, function: Callable[..., T], *arguments: object) -> T:
        """Calls a function of a module there. Raises what it raises there."""
        try:
            self._link.send((function, arguments))
            returned, raised = self._link.recv()
        except (EOFError, OSError):
            self._process.join()
            raise CannotRetrain(
                f"the process of {self.name} has ended with exit code {self._process.exitcode}"
            ) from None
        if raised is not None:
            raise raised
        result: T = returned
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        self._process.kill()
        self._process.join()


def _answer(link: Connection[Any, Any], threads: int) -> None:
    """Runs in the process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the one that asks ends it
    torch.set_num_threads(threads)
    with suppress(EOFError, OSError):
        while True:
            function, arguments = link.recv()
            try:
                answer: tuple[object, Exception | None] = (function(*arguments), None)
            except (MvcError, OSError) as error:
                answer = (None, error)
            link.send(answer)
