"""Make the examples importable by their own names, as they are when run as commands."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
