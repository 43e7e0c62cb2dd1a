"""``python -m mvc``: the command line."""

from __future__ import annotations

from mvc.cli.main import main

if __name__ == "__main__":
    main()
