"""``mvc cat``.

Numbers that numpy has no type for (bfloat16, float8) are shown and saved as float32,
which holds each of them exactly. With -v all values are printed.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mvc.cli.listing import missing_path
from mvc.cli.options import CommandOptions, argument, flag, option
from mvc.cli.payload import fields
from mvc.cli.program import verb
from mvc.cli.session import Session
from mvc.cli.text import number, shape, size
from mvc.errors import UnknownPath
from mvc.model.manifest import FileEntry, LogicalTensor, Manifest
from mvc.model.names import printable

_MOST_IN_JSON = 10_000


class _CatOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("REV")
    tensor: str = argument("TENSOR")
    path: str | None = option("PATH", "The file, where several have a TENSOR.")
    output: str | None = option("FILE.npy", "Save the values for numpy.load.", "-o")
    force: bool = flag("Replace FILE.npy if it exists.", "-f")


@verb("mvc cat HEAD conv1.weight -o conv1.npy", _CatOptions)
def command(session: Session, args: _CatOptions) -> None:
    from mvc.cli.values import array, npy, summary

    out = session.out
    commit_id = session.repository.find(args.rev)
    names = session.names([] if args.path is None else [args.path])
    entry = _holder(session.repository.manifest(commit_id), args.tensor, names)
    found = next(t for t in entry.tensors if t.key == args.tensor)
    values = array(found.spec, session.repository.tensor_bytes(entry, found, commit_id))
    if args.output is not None:
        session.check_output(Path(args.output), force=args.force)
        session.write_output(Path(args.output), *npy(values))
        as_ = f" as {values.dtype}" if values.dtype.name != found.spec.dtype else ""
        out.note(f"saved {printable(found.key)}{as_} in {printable(args.output)}")
    if session.as_json:
        whole = values.size <= _MOST_IN_JSON and values.dtype.kind != "c"
        out.json(
            "mvc.cat/1",
            {
                "commit": commit_id,
                "path": entry.path,
                **fields(found),
                "summary": summary(values),
                "values": values.tolist() if whole else None,
            },
        )
    elif args.output is None:
        _print(session, found, values)


def _holder(manifest: Manifest, key: str, names: list[str]) -> FileEntry:
    """The one file that has the tensor."""
    entries = [e for e in manifest.entries if not names or e.path in names]
    if names and not entries:
        raise missing_path(names[0])
    having = [e for e in entries if any(t.key == key for t in e.tensors)]
    if len(having) == 1:
        return having[0]
    if having:
        paths = ", ".join(printable(e.path) for e in having[:10])
        raise UnknownPath(
            f"several files have a tensor {printable(key)}: {paths}", hint="name one with --path"
        )
    names_ = sorted({t.key for e in entries for t in e.tensors})
    close = get_close_matches(key, names_, n=3)
    close = close or [name for name in names_ if key.lower() in name.lower()][:3]
    hint = f"did you mean {' or '.join(map(printable, close))}?" if close else ""
    raise UnknownPath(
        f"the version has no tensor {printable(key)}", hint=hint or "'mvc ls' lists its tensors"
    )


def _print(session: Session, found: LogicalTensor, values: Any) -> None:
    from mvc.cli.values import summary, text

    out, spec = session.out, found.spec
    id_ = out.paint(str(found.id) if session.verbose else found.id.short, "id")
    what = f"{spec.dtype} {shape(spec.shape)}, {size(spec.nbytes)}"
    out.line(f"{printable(found.key)}  {what}, {id_}")
    if figures := summary(values):
        out.line("  ".join(f"{name} {number(value)}" for name, value in figures.items()))
    out.line(text(values, width=out.width or 100, full=session.verbose))
