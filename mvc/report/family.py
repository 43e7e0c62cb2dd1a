"""family: which models came from which, as lines of characters and as SVG.

A model stands below the one it was made from, in the same column, as long as there is one; where
several were made from a model, each begins a branch. Plain versions in a row are drawn as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from mvc.errors import DamagedData
from mvc.model.names import printable
from mvc.repo.context import Context
from mvc.repo.history.family import FamilyMember
from mvc.repo.history.family import family as members_of
from mvc.repo.lookup.revisions import Rev
from mvc.report.figure import STYLE, clipped
from mvc.types import Progress

Paint: TypeAlias = Callable[[str, str], str]
"""Colours a text in a style of the command line: (text, style)."""

_PLAIN = {"fully updated", "fine-tuned version"}
_LEAST = 3  # plain versions in a row that are drawn as one
_WIDTH, _LINE, _STEP, _LETTER = 960, 22, 18, 6.6  # a drawing, in units of about a pixel
_DOTS = {"base": "k2", "extended": "k1", "derived architecture": "k1"}


class FamilyRow(Struct, frozen=True):
    """One line of the tree: a model, or ``members`` in a row that are drawn as one.

    ``prefix``: the characters before it. ``depth``: its column; ``above``: the number of the row
    that it was made from, None for none.
    """

    members: Sequence[FamilyMember]
    prefix: str
    depth: int
    above: int | None

    def text(self, paint: Paint = lambda text, _: text) -> str:
        """``1a2b3c4d5e  fine-tuned version (main) [prod]  nightly 4``."""
        if len(self.members) > 1:
            return paint(_run(self.members), "dim")
        (member,) = self.members
        names = ", ".join(paint(printable(n), _style(n)) for n in member.names)
        targets = ", ".join(paint(printable(t), "target") for t in member.targets)
        return paint(member.commit.id.short, "id") + "".join(
            [
                f"  {_kind(member)}",
                f" ({names})" if names else "",
                f" [{targets}]" if targets else "",
                f"  {_title(member)}" if _title(member) else "",
            ]
        )


class Family(Struct, frozen=True):
    """``members``: models, bases before those made from them.

    A notebook shows the tree as a picture, a console as characters.
    """

    members: Sequence[FamilyMember]

    def rows(self, *, every: bool = False) -> list[FamilyRow]:
        """The lines of the tree. ``every``: plain versions in a row are a line each."""
        return list(_rows(self.members, every))

    def svg(self, *, every: bool = False) -> str:
        """A document of its own, which follows the reader's light or dark setting."""
        rows = self.rows(every=every)
        drawn = [draw(rows, number) for draw in (_joined, _drawn) for number in range(len(rows))]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} '
            f'{_LINE * len(rows) + 12}" role="img" aria-label="Family tree of models">'
            f"<style>{STYLE}.j{{fill:var(--bg);stroke:var(--dim)}}path.j{{fill:none}}text{{white-space:pre}}</style>"
            f'<rect width="100%" height="100%" fill="var(--bg)"/>{"".join(drawn)}</svg>'
        )

    def __repr__(self) -> str:
        return "\n".join(row.prefix + row.text() for row in self.rows()) or "<Family: no models>"

    def _repr_svg_(self) -> str:
        return self.svg()


def family(
    context: Context,
    rev: Rev | None,
    *,
    incomplete: list[DamagedData] | None = None,
    progress: Progress | None = None,
) -> Family:
    """``Repository.family``."""
    return Family(members_of(context, rev, incomplete=incomplete, progress=progress))


def _rows(members: Sequence[FamilyMember], every: bool) -> Iterator[FamilyRow]:
    made: list[list[int]] = [[] for _ in members]
    waiting: list[tuple[int, str, str, int, int | None]] = []
    for number, member in enumerate(members):
        if member.base is None:
            waiting.append((number, "", "", 0, None))
        else:
            made[member.base].append(number)
    waiting.reverse()
    count = 0
    while waiting:
        number, first, rest, depth, above = waiting.pop()
        prefix = first
        while True:
            run = [number] if every else _plain_run(members, made, number)
            yield FamilyRow([members[n] for n in run], prefix, depth, above)
            above, count, prefix = count, count + 1, rest
            following = made[run[-1]]
            if len(following) != 1:
                break
            number = following[0]
        for child in reversed(following):
            last = child == following[-1]
            begin, go_on = ("└─ ", "   ") if last else ("├─ ", "│  ")
            waiting.append((child, rest + begin, rest + go_on, depth + 1, above))


def _plain_run(
    members: Sequence[FamilyMember], made: Sequence[Sequence[int]], number: int
) -> list[int]:
    """The plain versions in a row from this one on, if there are enough; else this one alone."""
    run: list[int] = []
    while _is_plain(members[number]) and len(made[number]) == 1:
        run.append(number)
        number = made[number][0]
    return run if len(run) >= _LEAST else run[:1] or [number]


def _is_plain(member: FamilyMember) -> bool:
    moved = member.relation.base_path != member.path
    return member.relation.kind in _PLAIN and not (member.names or member.targets or moved)


def _run(members: Sequence[FamilyMember]) -> str:
    tuned = sum(m.relation.kind != "fully updated" for m in members)
    if tuned == len(members):
        return f"… {tuned:,} fine-tuned versions"
    return f"… {len(members):,} versions" + (f", {tuned:,} of them fine-tuned" if tuned else "")


def _kind(member: FamilyMember) -> str:
    """What the model is, and its path where that is not its base's."""
    path = printable(member.path)
    if member.base is None and member.relation.kind == "base":
        return f"base model {path}"
    moved = member.base is None or member.relation.base_path != member.path
    return f"{member.relation.kind}, {path}" if moved else member.relation.kind


def _title(member: FamilyMember) -> str:
    return printable(member.commit.message.strip().partition("\n")[0])


def _style(name: str) -> str:
    return "head" if name == "HEAD" else "tag" if name.startswith("tag: ") else "branch"


def _joined(rows: Sequence[FamilyRow], number: int) -> str:
    above = rows[number].above
    if above is None:
        return ""
    (from_x, from_y), (x, y) = _place(rows, above), _place(rows, number)
    return f'<path class="j" d="M{from_x} {from_y}V{y}H{x}"/>'


def _drawn(rows: Sequence[FamilyRow], number: int) -> str:
    row, (x, y) = rows[number], _place(rows, number)
    first, text = row.members[0], row.text()
    kind, style, title = _DOTS.get(first.relation.kind, "k0"), "", f"{text}: {first.relation}"
    if first.names or first.targets:
        style = "b"
    if len(row.members) > 1:
        kind, style, title = "j", "d", text
    room = int((_WIDTH - x - 12) / _LETTER)
    return (
        f'<g><title>{clipped(title, 300)}</title><circle class="{kind}" cx="{x}" cy="{y}" r="4"/>'
        f'<text class="{style}" x="{x + 12}" y="{y + 4}">{clipped(text, room)}</text></g>'
    )


def _place(rows: Sequence[FamilyRow], number: int) -> tuple[int, int]:
    return 10 + _STEP * rows[number].depth, 14 + _LINE * number
