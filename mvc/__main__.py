"""The script ``mvc``, and ``python -m mvc``: the command line in a process of its own."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import NoReturn

_YOUNG = 100_000


def main() -> NoReturn:
    """Runs the command line and exits.

    Nearly all objects of a short process come from imports and stay to its end, so that looking
    among them for unused cycles took a sixth of its time. The collector begins after 100,000
    new objects in place of 700, and at exit it passes over all that there are.
    """
    gc.set_threshold(_YOUNG)
    # The threads of numpy's BLAS, one a processor, spin for 2**26 cycles before they sleep.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    for each in ("inspect", "msgspec.inspect"):
        sys.modules.setdefault(each, _Late(each))
    # Without typing_extensions, which takes long to import, msgspec takes the same from typing.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    from mvc.cli.main import main as program  # imports most of these objects

    if sys.modules["typing_extensions"] is None:
        del sys.modules["typing_extensions"]
    try:
        program()
    finally:
        gc.freeze()


class _Late(ModuleType):
    """A module that is imported when an attribute of it is read."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


if __name__ == "__main__":
    main()
