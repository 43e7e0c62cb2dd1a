"""Histories drawn at random: branches come and go, states are forgotten, garbage is collected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mvc.errors import UnknownTarget
from mvc.ids import CommitId
from mvc.repo import refs
from mvc.testing import FixedClock
from tests.histories import CheckedHistory
from tests.maintenance.traces import drift, traces


@settings(max_examples=45, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_history(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is left is whole, what nothing leads to goes, and of named states nothing stays."""
    history = CheckedHistory(tmp_path_factory.mktemp("any") / "r", clock=FixedClock(step_ns=10**9))
    repo = history.repo
    pool = [drift(np.zeros((20, 30)), n, 1) for n in range(2)]
    deployed: set[CommitId] = set()
    named: dict[CommitId, set[bytes]] = {}
    letters = st.sampled_from("cccccrbbxfFg")
    acts = [*data.draw(st.lists(letters, min_size=4, max_size=14), "acts"), "g"]
    for step, act in enumerate(acts):
        if act in "cr" or not history.there:
            near, size = (
                data.draw(st.sampled_from(pool)),
                data.draw(st.sampled_from([1e-6, 1e-3, 1])),
            )
            pool.append(drift(near, step, size))
            live = data.draw(st.sampled_from([None, None, "prod"]), "deployed")
            made = history.commit(
                {"w": pool[-1], "x": data.draw(st.sampled_from(pool))},
                reset_point=act == "r",
                pipeline=data.draw(st.sampled_from(["lossless", "vsol"])),
                deploy=live,
            )
            deployed |= {made} if live else set()
        elif act == "b":
            start = data.draw(st.sampled_from(history.there), "start")
            repo.switch(f"b{step}", create=True, start=str(start), force=True)
        elif act == "x":
            head = refs.head(repo.handle.store.fresh()).branch
            others = [branch.name for branch in repo.refs() if branch.name != head]
            if others:
                refs.delete_branch(
                    repo.handle.store, data.draw(st.sampled_from(others)), force=True
                )
        elif act == "f":
            id_ = data.draw(st.sampled_from(list(history.objects)), "forgotten")
            if id_ != refs.head(repo.handle.store.fresh()).commit:
                history.forget(id_)
                named[id_] = history.objects[id_]
        elif act == "F":
            rules = [{"keep_last": 2}, {"keep_hourly": 1}, {"unused": "prod"}]
            rule = data.draw(st.sampled_from(rules))
            try:
                history.forget(**rule)
            except UnknownTarget:
                assert "unused" in rule
        else:
            collect(history, deployed, data.draw(st.sampled_from(["0", "14d"]), "grace"))
            there = {each for id_ in history.there for each in history.objects[id_]}
            assert traces(history, set().union(*named.values()) - there) == []
            history.check()
    history.close()


def collect(history: CheckedHistory, deployed: set[CommitId], grace: str) -> None:
    """Collects, and compares what is gone with what should be, found by walking the history."""
    stay = set(history.objects)
    if grace == "0":
        roots = deployed | {branch.commit for branch in history.repo.refs()}
        stay = {entry.id for root in roots for entry in history.repo.log(root)}
    gone = set(history.objects) - stay
    assert set(history.repo.storage.gc(grace=grace).commits) == gone
    for id_ in gone:
        del history.objects[id_], history.states[id_]
