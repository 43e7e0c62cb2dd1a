"""The topics of ``mvc help TOPIC``. ``docs/commands.md`` has the same texts.

Backquotes mark code. Terminals show the texts without backquotes.
"""

from __future__ import annotations

from msgspec import Struct

from mvc.times import FORMS


class Topic(Struct, frozen=True):
    """The text of one topic. ``forms``: maps what a user may write to its meaning.

    ``notes``: paragraphs below the table of forms.
    """

    title: str
    forms: dict[str, str]
    notes: tuple[str, ...] = ()


TOPICS = {
    "revisions": Topic(
        "REV: naming a version",
        {
            "1a2b3c4d5e": "the id of a version, or its first digits (at least four)",
            "main, v1.2": "a branch or a tag",
            "origin/main": "a tracking ref: the branch or tag of the remote `origin` at the last "
            "fetch or push",
            "prod": "the version that is live on the target `prod`. If a branch, tag or id has "
            "this name, mvc warns, and uses the branch, tag or id",
            "target:prod": "always the target; `heads/prod` is always a branch, `tags/prod` a tag",
            "HEAD": "the current version",
            "HEAD~3": "the third ancestor, along first parents; `HEAD~` is `HEAD~1`",
            "HEAD^2": "the second parent; `HEAD^` is the first",
            "main@{TIME}": "the version of the branch at TIME",
            "prod@{TIME}": "the version that was live on the target at TIME",
            "main@{1 hour ago}~2": "any combination",
            "main..exp": "in `log` and `forget`: the versions of `exp` that are not versions of "
            "`main`. `main..` is `main..HEAD`, and `..exp` is `HEAD..exp`",
        },
    ),
    "times": Topic(
        "TIME: naming a time",
        FORMS,
        (
            "mvc refuses a local time that a clock change skips or repeats, and shows both "
            "readings. It refuses a date with a wrong weekday.",
            "`--at TIME` selects the newest deployment at or before TIME.",
        ),
    ),
    "targets": Topic(
        "TARGET: where versions are live",
        {
            "prod, edge/berlin": "any name: a service, a site, a group of devices",
            "mvc deploy REV TARGET": "deploys REV, now or at the TIME of `--at`",
            "mvc deploy --list TARGET": "lists the deployments",
            "mvc rollback TARGET": "deploys the previous version again",
            "mvc checkout --at TIME --target TARGET": "restores the version that was live at TIME",
            "mvc diff TARGET HEAD": "a target can be used as a REV: it names its live version",
        },
        (
            "A deployment is dated if its time was given by `--at` or by an import. The live "
            "version is that of the newest undated deployment, in the order of recording, even if "
            "the clock was set back. A deployment with a later date replaces that version once the "
            "date has passed; the latest date counts. So a deployment that is dated last week does "
            "not replace the live version, and one that is dated next week goes live next week. "
            "mvc looks for an undated deployment only among the 256 newest deployments. If it "
            "finds none, only the dates decide. Retracted deployments never count. No command "
            "deletes the record of a deployment.",
        ),
    ),
    "pipelines": Topic(
        "SPEC: how versions are encoded",
        {
            "lossless": "a preset; `mvc pipeline` lists the presets",
            "sub | zigzag | planes | zstd:3": "stages, each with its options after a colon",
        },
        (
            "A pipeline encodes a version as its difference from an earlier version. Commits use "
            "the pipeline of the setting `commit.pipeline`. `mvc pipeline SPEC` explains SPEC.",
            "Every pipeline stores committed files exactly, except lossy deltas (`lc`). With `-o` "
            "or `--in-place`, a lossy pipeline computes production weights.",
        ),
    ),
    "strategies": Topic(
        "HOW: resolving the conflicts of a merge",
        {
            "mean": "the mean of both sides",
            "sum": "the common ancestor plus X (`--scale`, by default 1) times the change of each "
            "side",
            "ours, theirs": "the side of the current branch, or of REV; for files and for "
            "tensors without floats, too",
            "lm_head.*=ours": "tensors with matching names",
            "adapter/*:*.bias=mean": "tensors with matching paths and names",
            "*.json=theirs": "matching files, with all their tensors",
        },
        (
            "`mvc merge --strategy` is repeatable: the last strategy that matches a tensor or file "
            "counts. In a pattern, `*` matches any characters, even dots and slashes. If conflicts "
            "remain, mvc lists them and merges nothing.",
        ),
    ),
    "exit-codes": Topic(
        "Exit codes",
        {
            "0": "done",
            "1": "the answer is no: nothing to commit, no such version (`identify`), differences "
            "(`diff --exit-code`, `probe`), conflicts (`merge`), no trusted signature (`verify`)",
            "2": "wrong usage",
            "3": "mvc refused or failed. One line names the problem, and a hint the next step",
            "4": "stored data is damaged",
            "5": "the repository is busy: another process has a lock",
            "130": "interrupted",
            "141": "the reader of the output has exited (as in `mvc log | head`)",
        },
    ),
}
