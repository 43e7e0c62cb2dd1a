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

    Imports create most objects of a short process, and these objects live until the process ends.
    The garbage collector spent a sixth of the process's time on searching these objects for cycles.
    So the collector first runs after 100,000 new objects instead of 700. The collector does not run
    at exit.
    """
    gc.set_threshold(_YOUNG)
    # By default the BLAS threads of numpy, one per core, spin for 2**26 cycles before sleeping.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    for name in ("inspect", "msgspec.inspect"):
        sys.modules.setdefault(name, _Late(name))
    # typing_extensions is slow to import. If the module is missing, msgspec uses typing.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    from mvc.cli.main import main as program  # this import creates most of the objects

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
