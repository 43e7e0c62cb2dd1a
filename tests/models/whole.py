"""A live model committed with what builds it."""

from __future__ import annotations

from typing import Any

import mvc
from mvc.api import CommitResult
from mvc.names import DEFAULT_STATE


def commit_model(
    repo: mvc.Repository, model: Any, state: Any = None, path: str = DEFAULT_STATE, **given: Any
) -> CommitResult:
    live = model.model if isinstance(model, mvc.Architecture) else model
    state = live.state_dict() if state is None else state
    attachments = mvc.describe_model(model, state, path=path)
    return repo.commit(state, path=path, attachments=attachments, **given)
