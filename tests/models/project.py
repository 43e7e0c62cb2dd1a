"""Projects of a user: folders of source files that a test imports and forgets again."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

__all__ = ["NETS", "Project"]

NETS = {
    "nets/__init__.py": "",
    "nets/blocks.py": """
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.line = nn.Linear(width, width)

            def forward(self, x):
                return torch.relu(self.line(x))
    """,
    "nets/net.py": """
        from torch import nn

        from .blocks import Block


        class Plain(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Block(3)

            def forward(self, x):
                from nets import scale

                return self.block(x) * scale.FACTOR


        class Net(nn.Module):
            def __init__(self, width, depth=1, *, dropout=0.0):
                super().__init__()
                self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
                self.drop = nn.Dropout(dropout)

            @classmethod
            def small(cls, width):
                return cls(width, 2)

            def forward(self, x):
                return self.drop(self.blocks(x))


        def make(sizes):
            return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))
    """,
    "nets/scale.py": "FACTOR = 2\n",
    "nets/unused.py": "raise RuntimeError('nobody imports this')\n",
}
"""A package whose network imports one module at once and one when it is called."""


class Project:
    """Files in a folder that is on ``sys.path`` until the end of the test."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        self._before = set(sys.modules)
        folder.mkdir()
        patch.syspath_prepend(str(folder))

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text).lstrip("\n"))
        importlib.invalidate_caches()

    def load(self, module: str) -> ModuleType:
        return importlib.import_module(module)

    def forget(self) -> None:
        """Takes the project away, as on a machine that never had it."""
        self._patch.setattr(sys, "path", [p for p in sys.path if p != str(self.folder)])
        for name in set(sys.modules) - self._before:
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if origin.startswith(str(self.folder)) or name.split(".")[0] == "nets":
                del sys.modules[name]
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
