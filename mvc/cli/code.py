"""The code that a version carries, and what of it ``load_model`` and ``retrain`` would run."""

from __future__ import annotations

from io import StringIO

from mvc.cli.payload import fields
from mvc.cli.session import Session
from mvc.ids import CommitId
from mvc.model.names import printable

_CALL = 2000  # characters


def show_code(session: Session, rev: CommitId) -> None:
    """Prints what ``load_model`` and ``retrain`` would run; nothing is run here."""
    repository, out = session.repository, session.out
    files = {
        name: data.decode("utf-8", "replace") for name, data in repository.recipes.code(rev).items()
    }
    carries_model = "model.json" in repository.version(rev).attached
    call = repository.recipes.model(rev).call if carries_model else None
    calls = repository.recipes.calls(rev)
    if session.as_json:
        shown = [fields(each, "text stored") for each in calls]
        out.json("mvc.show.code/1", {"call": call, "calls": shown, "code": files})
        return
    if call is not None:
        out.line(out.paint(f"# builds the model: {call}", "heading"))
    if calls:
        out.line(out.paint("# trains it again (*: of installed code)", "heading"))
    for each in calls:
        more = len(each.text) - _CALL
        cut = f"... ({more:,} more characters: --json)" if more > 0 else ""
        out.line(f"{' ' if each.stored else '*'} {each.text[:_CALL]}{cut}")
    for name, text in files.items():
        out.line()
        out.line(out.paint(f"# {printable(name)}", "heading"))
        for line in StringIO(text, newline=None):  # its lines end where Python's do
            out.line("\t".join(map(printable, line.removesuffix("\n").split("\t"))))
    if not files:
        out.note("the version carries no source files")
