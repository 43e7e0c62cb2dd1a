"""Writes anew what is recorded of screens, JSON answers, tables and the public API.

``python -m tests.renew`` names the files that differ from the last commit, to be read before they
are committed, and the changelog if users notice the change and it does not say so yet.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRITERS = (
    "tests.cli.screens",
    "tests.cli.json_outputs",
    "tests.test_public_api",
    "tests.documents.tables",
    "tests.documents.commands",
)
RECORDS = ("tests/cli", "tests/public_api.txt", "docs")


def changed(*paths: str) -> list[str]:
    """Files of these paths that differ from the last commit."""
    command = ("git", "diff", "--name-only", "HEAD", "--", *paths)
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> int:
    for writer in WRITERS:
        subprocess.run(
            (sys.executable, "-m", writer), cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
    records = [file for file in changed(*RECORDS) if not file.endswith(".py")]
    if records and not changed("CHANGELOG.md"):
        records.append("CHANGELOG.md: says nothing of this yet")
    sys.stdout.writelines(f"{each}\n" for each in records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
