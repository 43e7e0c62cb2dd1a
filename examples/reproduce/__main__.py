"""``python examples/reproduce``: the folder above is where the package is imported from."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from reproduce.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
