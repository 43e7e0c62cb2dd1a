"""``mvc cat``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mvc.cli.options import json_option, revision
from mvc.cli.program import Verb
from mvc.cli.session import Session
from mvc.cli.text import number, shape, size
from mvc.errors import UnknownPath, WouldOverwrite
from mvc.model.names import printable
from mvc.repo.checkout.outputs import refuse_store
from mvc.repo.lookup import manifests, revisions

if TYPE_CHECKING:
    from mvc.model.manifest import FileEntry, LogicalTensor, Manifest

_MOST_IN_JSON = 10_000


@click.command("cat", cls=Verb, example="mvc cat HEAD conv1.weight -o conv1.npy")
@revision("REV")
@click.argument("tensor", metavar="TENSOR")
@click.option("--path", metavar="PATH", help="The file, where several have a TENSOR.")
@click.option("-o", "--output", metavar="FILE.npy", help="Save the values for numpy.load.")
@click.option("-f", "--force", is_flag=True, help="Replace FILE.npy if it exists.")
@json_option
@click.pass_obj
def command(
    session: Session,
    rev: str,
    tensor: str,
    path: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Print one tensor, or save it as .npy.

    Numbers that numpy has no type for (bfloat16, float8) are shown and saved as float32,
    which holds each of them exactly. With -v all values are printed.
    """
    from mvc.cli.values import load, save, summary

    context, out = session.context, session.out
    commit_id = revisions.resolve(context, rev)
    names = session.names([path] if path is not None else [])
    entry = _holder(manifests.of_commit(context, commit_id), tensor, names)
    found = next(t for t in entry.tensors if t.key == tensor)
    values = load(context, entry, found)
    if output is not None:
        refuse_store(context.store.fs, Path(output))
        if context.store.fs.stat(Path(output)) is not None and not force:
            raise WouldOverwrite(f"{printable(output)} exists already", hint="add -f to replace it")
        save(context.store.fs, Path(output), values)
        as_ = f" as {values.dtype}" if values.dtype.name != found.spec.dtype else ""
        out.note(f"saved {printable(found.key)}{as_} in {printable(output)}")
    if as_json:
        out.json("mvc.cat/1", _json(str(commit_id), entry, found, values, summary(values)))
    elif output is None:
        _print(session, found, values)


def _holder(manifest: Manifest, key: str, names: list[str]) -> FileEntry:
    """The one file that has the tensor."""
    entries = [e for e in manifest.entries if not names or e.path in names]
    if names and not entries:
        raise UnknownPath(
            f"the version has no path {printable(names[0])}", hint="'mvc ls' lists its paths"
        )
    having = [e for e in entries if any(t.key == key for t in e.tensors)]
    if len(having) == 1:
        return having[0]
    if having:
        paths = ", ".join(printable(e.path) for e in having[:10])
        raise UnknownPath(
            f"several files have a tensor {printable(key)}: {paths}", hint="name one with --path"
        )
    close = get_close_matches(key, {t.key for e in entries for t in e.tensors}, n=3)
    raise UnknownPath(
        f"the version has no tensor {printable(key)}",
        hint=f"did you mean {' or '.join(map(printable, close))}?"
        if close
        else "'mvc ls' lists its tensors",
    )


def _what(found: LogicalTensor) -> str:
    spec = found.spec
    return f"{printable(found.key)}  {spec.dtype} {shape(spec.shape)}, {size(spec.nbytes)}"


def _print(session: Session, found: LogicalTensor, values: Any) -> None:
    from mvc.cli.values import summary, text

    out = session.out
    id_ = out.paint(str(found.id) if session.verbose else found.id.short, "id")
    out.line(f"{_what(found)}, {id_}")
    numbers = summary(values)
    if numbers:
        out.line("  ".join(f"{name} {number(value)}" for name, value in numbers.items()))
    out.line(text(values, width=out.width or 100, full=session.verbose))


def _json(
    commit_id: str, entry: FileEntry, found: LogicalTensor, values: Any, numbers: dict[str, float]
) -> dict[str, Any]:
    whole = values.size <= _MOST_IN_JSON and values.dtype.kind != "c"
    return {
        "commit": commit_id,
        "path": entry.path,
        "key": found.key,
        "dtype": found.spec.dtype,
        "shape": list(found.spec.shape),
        "bytes": found.spec.nbytes,
        "id": str(found.id),
        "summary": numbers,
        "values": values.tolist() if whole else None,
    }
