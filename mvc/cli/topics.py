"""What ``mvc help TOPIC`` says of things that many commands take; the documentation has the same.

Backquotes mark code; on the screen they are left out.
"""

from __future__ import annotations

from msgspec import Struct

from mvc.times import FORMS


class Topic(Struct, frozen=True):
    """``forms``: what may be typed, and what each means. ``notes``: paragraphs after them."""

    title: str
    forms: dict[str, str]
    notes: tuple[str, ...] = ()


TOPICS = {
    "revisions": Topic(
        "REV: naming a version",
        {
            "1a2b3c4d5e": "the id of a commit, or its first digits (four or more)",
            "main, v1.2": "a branch or a tag",
            "origin/main": "where that branch, or tag, of the remote `origin` was at the last "
            "fetch or push",
            "prod": "the version that is live on the target `prod`. Branches, tags and ids go "
            "first; a warning says so",
            "target:prod": "the same, of the target alone; `heads/prod` and `tags/prod` are a "
            "branch and a tag",
            "HEAD": "the version from which the working files come",
            "HEAD~3": "the third ancestor, along first parents; `HEAD~` is `HEAD~1`",
            "HEAD^2": "the second parent; `HEAD^` is the first",
            "main@{TIME}": "what the branch pointed to at TIME",
            "prod@{TIME}": "what was live on the target at TIME",
            "main@{1 hour ago}~2": "any combination",
            "main..exp": "for `log` only: the versions of `exp` without those of `main`. An end "
            "left out is `HEAD`",
        },
    ),
    "times": Topic(
        "TIME: naming a moment",
        FORMS,
        (
            "If a clock change makes a local time ambiguous or skips it, mvc refuses it and shows "
            "both readings. It refuses a date whose weekday is wrong.",
            "`--at TIME` selects the last deployment at or before TIME. Without `--at`, the rule "
            "for what is live now also covers clocks that were set back and records made late "
            "(`mvc help targets`).",
        ),
    ),
    "targets": Topic(
        "TARGET: where versions are live",
        {
            "prod, edge/berlin": "any name: a service, a site, a group of devices",
            "mvc deploy REV TARGET": "REV is live there from now on, or with `--at` from a TIME on",
            "mvc deploy --list TARGET": "what was live there, and when",
            "mvc rollback TARGET": "the version before the live one is deployed again",
            "mvc checkout --at TIME --target TARGET": "the version that was live there at TIME",
            "mvc diff TARGET HEAD": "a target is a REV, too: the version that is live there",
        },
        (
            "Live now is the deployment without `--at` that was recorded last, even if the clock "
            "was set back since; but if deployments with `--at` (or imported ones) have a later "
            "time that has come, the last of these. So a record made today of last week does not "
            "replace what is live, and one of next week counts from then on.",
            "If the 256 newest records of a target all have a given time, as after the import of a "
            "long history, the last one by time is live. Retracted deployments (`mvc deploy "
            "--retract`) never count, but stay on record: deployments are evidence, and no command "
            "erases them.",
        ),
    ),
    "pipelines": Topic(
        "SPEC: how versions are encoded",
        {
            "lossless": "a preset; `mvc pipeline` lists them",
            "sub | zigzag | planes | zstd:3": "stages, each with its options after a colon",
        },
        (
            "A pipeline says how a version is written as its difference from an earlier one. The "
            "setting `commit.pipeline` holds the one that commits use; `mvc pipeline SPEC` "
            "explains one.",
            "Versions are stored exactly as they are given, with every pipeline. Those that are "
            "lossy make production weights, where these are asked for.",
        ),
    ),
    "strategies": Topic(
        "HOW: settling the conflicts of a merge",
        {
            "mean": "the mean of both sides",
            "sum": "the common ancestor plus X (`--scale`, by default 1) times the change of each "
            "side",
            "ours, theirs": "what the current branch has, or what REV has; also for files and for "
            "tensors that are no floats",
            "lm_head.*=ours": "for tensors of such names",
            "adapter/*:*.bias=mean": "for tensors of such paths and names",
            "*.json=theirs": "for files, and all tensors in them",
        },
        (
            "`mvc merge --strategy` takes one of these, and may be repeated: the last one that "
            "matches a tensor or file counts. In a pattern `*` stands for anything, also dots and "
            "slashes. What no strategy settles is listed, and then nothing is merged.",
        ),
    ),
    "exit-codes": Topic(
        "Exit codes",
        {
            "0": "done",
            "1": "the answer is no: there is nothing to commit, no version is found, files or "
            "environments differ (with `--exit-code`), a merge has conflicts, two runs of a model "
            "differ (`probe`), or nobody vouches for something (`verify`)",
            "2": "wrong usage",
            "3": "mvc refused or failed; one line says why, and a hint what to do",
            "4": "stored data is damaged",
            "5": "the repository is busy: another process holds a lock for too long",
            "130": "interrupted",
            "141": "the reader of the output is gone (as in `mvc log | head`)",
        },
    ),
}
