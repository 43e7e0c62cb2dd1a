"""The command ``mvc``. ``python -m mvc`` does the same."""

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

    Python's garbage collector took a sixth of the time of a short command. So the collector first
    runs after 100,000 new objects instead of 700, and does not run at exit.
    """
    gc.set_threshold(_YOUNG)
    # By default, an idle BLAS thread of numpy spins for 2**26 cycles before it sleeps. Now: 2**20.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    for name in ("inspect", "msgspec.inspect"):
        sys.modules.setdefault(name, _Late(name))
    # Hides typing_extensions, which is slow to import. msgspec then uses typing.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    from mvc.cli.main import main as program

    if sys.modules["typing_extensions"] is None:
        del sys.modules["typing_extensions"]
    try:
        program()
    finally:
        gc.freeze()


class _Late(ModuleType):
    """A module that is imported when one of its attributes is read."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


if __name__ == "__main__":
    main()
