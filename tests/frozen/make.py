"""Makes the frozen repositories: ``python -m tests.frozen.make [NAME ...]``, by default all.

After the first release they stay as they are: a later stage or format adds a repository of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.frozen import made as first
from tests.frozen import (
    make_annotated,
    make_maintained,
    make_params,
    make_predicted,
    make_recipes,
    make_remotes,
    make_signed,
)
from tests.frozen.keep import keep

MAKERS = (
    first.history, first.codings, first.files, first.indexed, first.torn_first_copy,
    first.torn_second_copy, first.one_copy, first.both_copies, first.payload_second_path,
    first.payload_lost, first.record_header, first.missing_pack, first.damaged_format,
    first.newer_format, first.cut_journal, make_maintained.maintained, make_maintained.relinked,
    make_maintained.lossy, make_maintained.trained, make_params.params, make_predicted.predicted,
    make_recipes.recipes, make_remotes.remotes, make_signed.signed, make_annotated.annotated,
)  # fmt: skip

if __name__ == "__main__":
    for maker in MAKERS:
        if maker.__name__ in (sys.argv[1:] or maker.__name__):
            torch.manual_seed(0)
            keep(Path(__file__).parent, maker, index=maker is first.indexed)
