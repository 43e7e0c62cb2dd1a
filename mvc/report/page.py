"""``mvc report``: writes the history of a repository as one HTML page with charts and tables.

The page has no scripts and loads nothing from the network. The constants below limit the sizes of
tables and charts. The page says how much it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from mvc.api import Commit, Repository, VersionStats
from mvc.files import REPORT_BEGIN, refuse_store
from mvc.ids import CommitId
from mvc.names import printable
from mvc.report.axis import Axis, By, ByteAxis, check_by
from mvc.report.charts import KINDS, Charts, metrics_of, whole_number
from mvc.report.figure import STYLE, Curve, Line, Panel, cut, svg
from mvc.report.overview import Excerpt, Overview, VersionChange, changes, overview
from mvc.system import FileSystem
from mvc.text import number, size
from mvc.text import seconds as duration
from mvc.times import Time, check_seconds, format_time, whole_second
from mvc.types import PathName, Progress

_ROWS, _DEPLOYMENTS = 1000, 500  # rows of the two tables
_LANES, _METRICS, _COLUMNS = 20, 12, 4  # targets, charts of metrics, columns of metrics
_LAYERS, _CHANGES = 48, 120  # rows and columns of the heat map
_SHADES, _LEAST = 9, math.log(10) / 2  # the shades of the heat map span at least a factor of ten
_CURVE = 1000  # limit of versions for the storage curve, whose computation would take seconds
_DEPLOYED = ("version", "target", "kind", "from", "until", "by", "why")

_HEAD = (
    f'{REPORT_BEGIN.decode()}<head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\">"
    '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
)
_PAGE_STYLE = """
*{box-sizing:border-box}body{margin:0 auto;max-width:70rem;padding:1rem;background:var(--bg);
color:var(--ink);font:16px/1.5 system-ui,sans-serif}a{color:var(--c0)}
nav{display:flex;flex-wrap:wrap;gap:0 1rem}
:focus-visible{outline:3px solid var(--c1);outline-offset:1px}:target{outline:2px solid var(--c1)}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:6px;padding:.5rem}
.tall{max-height:36rem;overflow-y:auto}svg{display:block;min-width:44rem;width:100%}
table{border-collapse:collapse;font-size:.875rem;white-space:nowrap}caption{text-align:left}
th,td{padding:.15rem .6rem;text-align:left;border-bottom:1px solid var(--rule)}
td.n{text-align:right;font-variant-numeric:tabular-nums}.dim{color:var(--dim)}
.heat td,.heat thead th{padding:.1rem .25rem;font-size:.7rem;text-align:center;border:0}
.heat tbody th{position:sticky;left:0;background:var(--bg);font-weight:400;border:0}
""" + "".join(
    f".h{i}{{background:hsl(25 90% {98 - 6 * i}%);color:#1b1f24}}" for i in range(1, _SHADES + 1)
)


def write_report(
    repo: Repository,
    path: PathName | None = None,
    *,
    since: Time | None = None,
    until: Time | None = None,
    by: By | None = None,
    layer_seconds: float = 2.0,
    progress: Progress | None = None,
) -> str:
    """The history as one HTML page, written atomically to ``path`` if a path is given.

    Charts go from ``since`` to ``until``, inclusive. ``by``: whether the x axis has times or
    version numbers; None: times, or version numbers if too many versions would share a position in
    time. ``layer_seconds``: time limit for computing distances between versions, layer by layer.
    ``progress`` counts the versions.
    """
    fs = FileSystem()
    if path is not None:
        refuse_store(fs, Path(path))
    start, end = (None if moment is None else repo.time(moment) for moment in (since, until))
    text = page(repo, Excerpt(start, end, check_by(by)), seconds=layer_seconds, progress=progress)
    if path is not None:
        fs.write_atomic(Path(path), text.encode())
    return text


def page(
    repo: Repository, view: Excerpt, *, seconds: float, progress: Progress | None = None
) -> str:
    """The HTML document. ``seconds``: as ``layer_seconds`` of ``write_report``."""
    check_seconds("layer_seconds", seconds)
    shown, (total, stats) = overview(repo, view), repo.storage.by_version()
    history = shown.history
    listed = _listed(shown)
    charts = Charts(shown, {commit.id for commit in listed})
    axis = charts.axis
    lanes = dict(sorted(history.spans.items(), key=lambda p: p[1][-1].since_ns)[-_LANES:])
    timeline: list[Panel] = [charts.count("versions so far"), charts.live(lanes)]
    metrics = metrics_of(shown)
    drawn: list[Panel] = [*charts.legend, *(charts.metric(name) for name in metrics[:_METRICS])]
    storage: list[Panel] = [
        charts.stored(stats),
        *charts.legend,
        charts.line(
            "deltas to apply",
            lambda commit: stats[commit.id].deltas if commit.id in stats else None,
            whole_number,
        ),
    ]
    name = _e(repo.root.name or "repository")
    sizes = ", ".join(f"{_e(KINDS.get(k, k))} {size(n)}" for k, n in total.bytes.items())
    measured, total_changes = changes(
        repo, shown, seconds=seconds, most=_CHANGES, progress=progress
    )
    parts = [
        f"{_HEAD}<title>{name}: models</title><style>{STYLE}{_PAGE_STYLE}</style></head><body>",
        f"<header><h1>{name}</h1><p>{_counts(shown, stats)} {size(total.stored_bytes)} stored for "
        f"{size(total.raw_bytes)}. As of {_e(format_time(history.now_ns, precise=False))}.</p>"
        f"{_live(shown)}"
        '<nav aria-label="Sections"><a href="#history">History</a><a href="#metrics">Metrics</a>'
        '<a href="#storage">Storage</a><a href="#layers">Layers</a><a href="#versions">Versions</a>'
        '<a href="#deployments">Deployments</a></nav></header><main>',
        _section("history", "History"),
        _figure(axis, timeline, "Versions and deployments"),
        _note(charts.note),
        _left_out(len(history.spans) - len(lanes), "targets without a recent deployment"),
        _section("metrics", "Metrics"),
        _figure(axis, drawn, "Metrics") if metrics else "<p>No version has a metric.</p>",
        _left_out(len(metrics) - _METRICS, "less frequent metrics"),
        _section("storage", "Storage"),
        f"<p>{sizes}. Bars: bytes that the versions of a period added. Deltas to apply: how many "
        "deltas lead from a full record to a version.</p>",
        _figure(axis, storage, "Bytes and deltas"),
        _storage_curve(repo, len(stats)),
        _section("layers", "Layers"),
        _heat(measured, total_changes, charts.links),
        _section("versions", "Versions"),
        _versions(shown, listed, stats, metrics[:_COLUMNS]),
        _section("deployments", "Deployments"),
        _deployments(shown, charts.links),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _counts(overview_: Overview, stats: Mapping[CommitId, VersionStats]) -> str:
    """``12 versions, 1 forgotten, 3 stored in full.``"""
    shown, history = overview_.versions, overview_.history
    forgotten = sum(commit.id in history.forgotten for commit in shown)
    absent = sum(commit.id in history.absent for commit in shown)
    full = sum(commit.id in stats and stats[commit.id].reset_point for commit in shown)
    outside = len(history.versions) - len(shown)
    parts = [
        f"{len(shown):,} {'version' if len(shown) == 1 else 'versions'}",
        f"{forgotten:,} forgotten" if forgotten else "",
        f"{absent:,} without their state (absent here)" if absent else "",
        f"{full:,} stored in full",
        f"{outside:,} outside the chosen period" if outside else "",
        f"{history.unreached:,} more that no ref reaches" if history.unreached else "",
    ]
    return ", ".join(filter(None, parts)) + "."


def _listed(shown: Overview) -> list[Commit]:
    """The versions of the table, newest first: the ``_ROWS`` newest versions, and all versions
    that a ref names or that are live.
    """
    newest = shown.versions[::-1]
    named = shown.history.names.keys() | shown.history.live.keys()
    return [c for i, c in enumerate(newest) if i < _ROWS or c.id in named]


def _live(shown: Overview) -> str:
    live = [f"{_e(t)}: {id_.short}" for id_, targets in shown.history.live.items() for t in targets]
    return f"<p>Live now: {', '.join(sorted(live)[:_LANES])}.</p>" if live else ""


def _versions(
    shown: Overview,
    listed: Sequence[Commit],
    stats: Mapping[CommitId, VersionStats],
    metrics: Sequence[str],
) -> str:
    heads = ["version", "date", "run", "names", "live on", "message", *metrics, "params"]
    heads += [*KINDS, "deltas"]
    anchors, rows, history = {commit.id for commit in listed}, [], shown.history
    for commit in listed:
        stored = stats.get(commit.id)
        date = format_time(commit.time_ns, precise=False)[:19]
        values = [history.metrics[commit.id].get(name) for name in metrics]
        cells = [
            f'<th scope="row" id="v{commit.id.short}">{commit.id.short}</th>',
            _cell(date.replace("T", " ")),
            _cell(commit.run),
            _cell(", ".join(history.names.get(commit.id, ()))),
            _cell(", ".join(history.live.get(commit.id, ()))),
            _cell(cut(commit.message.strip().partition("\n")[0])),
            *(_cell("" if value is None else number(value), "n") for value in values),
            _cell(cut("  ".join(f"{k}={v}" for k, v in sorted(history.params[commit.id].items())))),
        ]
        if stored is None:
            reason = "forgotten" if commit.id in history.forgotten else "unknown"
            reason = "absent" if commit.id in history.absent else reason
            cells.append(f'<td class="dim" colspan="{len(KINDS) + 1}">{reason}</td>')
        else:
            cells += [_cell(size(stored.bytes[kind]), "n") for kind in KINDS]
            cells.append(f"<td>{_chain(stored, anchors)}</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    more = _left_out(len(shown.versions) - len(listed), "older versions without a name")
    return _table("Versions, newest first", heads, rows) + more


def _chain(of: VersionStats, anchors: Collection[CommitId]) -> str:
    if not of.deltas or of.base is None:
        return "in full" if not of.deltas else f"{of.deltas} deltas"
    steps = f", {of.predicted} predicted" if of.predicted else ""
    deltas = f"{of.deltas} {'delta' if of.deltas == 1 else 'deltas'}"
    return f"{deltas} from {_link(of.base, anchors)}{steps}"


def _deployments(shown: Overview, anchors: Collection[CommitId]) -> str:
    spans = [(span, target) for target, spans in shown.history.spans.items() for span in spans]
    spans.sort(key=lambda pair: pair[0].since_ns, reverse=True)
    rows = []
    for span, target in spans[:_DEPLOYMENTS]:
        end_ns = shown.end(span)
        end = "now" if end_ns == shown.history.now_ns else format_time(whole_second(end_ns))
        start = format_time(whole_second(span.since_ns))
        kind = "" if span.deployment.returns_to is None else "rollback"
        texts = (target, kind, start, end, span.deployment.author, cut(span.deployment.reason))
        rows.append(f"<tr><td>{_link(span.commit, anchors)}</td>{''.join(map(_cell, texts))}</tr>")
    if not rows:
        return "<p>No deployments.</p>"
    more = _left_out(len(spans) - _DEPLOYMENTS, "earlier deployments")
    return _table("Deployments, newest first", _DEPLOYED, rows) + more


def _storage_curve(repo: Repository, versions: int) -> str:
    """A chart of the size and worst recovery time of each layout that ``mvc repack`` can choose."""
    if versions > _CURVE:
        return _left_out(1, f"storage curve, because of more than {_CURVE:,} versions")
    curve = repo.storage.curve()
    points = [(point.bytes, point.worst_seconds) for point in reversed(curve.points)]
    if len(points) < 2:
        return ""
    low, high = points[0][0], points[-1][0]
    drawn = Line("worst recovery", [Curve("", points)], duration)
    return (
        "<p>Each point is a layout that 'mvc repack' can choose. The present layout has "
        f"{size(curve.today.bytes)} and a worst recovery of {duration(curve.today.worst_seconds)}."
        f"</p>{_figure(ByteAxis(low, high), [drawn], 'Recovery time against bytes')}"
    )


# -- the heat map --------------------------------------------------------------------------


def _heat(measured: Sequence[VersionChange], total: int, anchors: Collection[CommitId]) -> str:
    if not measured:
        why = "the time limit was reached" if total else "no version has a parent"
        return f"<p>No distances: {why}.</p>"
    layers = [change.layers for change in measured]
    groups = _groups([key for keys in layers for key in keys])
    columns = [_by_group(layer, groups) for layer in layers]
    known = [math.log(v) for column in columns for v in column.values() if v] or [0.0]
    middle, half = (max(known) + min(known)) / 2, max((max(known) - min(known)) / 2, _LEAST)
    ids = "".join(f'<th scope="col">{_link(c.commit.id, anchors, 6)}</th>' for c in measured)
    rows = []
    for group in dict.fromkeys(groups.values()):
        cells = "".join(_shade(column.get(group), middle - half, 2 * half) for column in columns)
        rows.append(f'<tr><th scope="row">{_e(cut(group))}</th>{cells}</tr>')
    merged = " Layers of one prefix are one row." if len(set(groups.values())) < len(groups) else ""
    return (
        f"<p>Distance of each layer from the previous version, along first parents from HEAD: the "
        f"root mean square of the changes of its elements. 0: no bit changed. Empty: the layer is "
        f"missing in one version or has another shape.{merged} Shown: the newest {len(measured):,} "
        f"of {total:,} changes.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Distance of layers">'
        f'<table class="heat"><thead><tr><th scope="col">layer</th>{ids}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f"{_folded(measured)}"
    )


def _folded(measured: Sequence[VersionChange]) -> str:
    names = {key for change in measured for key in change.training}
    word = "tensor" if len(names) == 1 else "tensors"
    return _left_out(len(names), f"{word} of optimizers, schedulers and random generators")


def _groups(keys: Iterable[str]) -> dict[str, str]:
    """Maps each tensor to its row of the heat map: its name, or a prefix of its name.

    Prefixes are as long as possible for at most ``_LAYERS`` rows.
    """
    names = list(dict.fromkeys(keys))
    for depth in range(max((name.count(".") for name in names), default=0) + 1, 0, -1):
        groups = {name: ".".join(name.split(".")[:depth]) for name in names}
        if len(set(groups.values())) <= _LAYERS:
            return groups
    every = math.ceil(len(names) / _LAYERS)
    return {name: f"{names[i // every * every]} ..." for i, name in enumerate(names)}


def _by_group(
    layers: Mapping[str, tuple[float, int] | None], groups: Mapping[str, str]
) -> dict[str, float]:
    """Maps each row of the heat map to the root mean square change of its elements.

    Omits rows without a tensor that can be compared.
    """
    sums: dict[str, list[float]] = {}
    for key, pair in layers.items():
        if pair is not None:
            row = sums.setdefault(groups[key], [0.0, 0.0])
            row[0], row[1] = math.hypot(row[0], pair[0]), row[1] + pair[1]
    return {group: l2 / math.sqrt(count or 1) for group, (l2, count) in sums.items()}


def _shade(value: float | None, low: float, length: float) -> str:
    if value is None:
        return "<td></td>"
    if not value:
        return "<td>0</td>"
    part = (math.log(value) - low) / length
    exact = f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f'<td class="h{1 + round(part * (_SHADES - 1))}">{exact}</td>'


# -- pieces of HTML ------------------------------------------------------------------------


def _e(text: str) -> str:
    return escape(printable(text))


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{_e(text)}</td>' if kind else f"<td>{_e(text)}</td>"


def _link(id_: CommitId, anchors: Collection[CommitId], digits: int = 10) -> str:
    shown = id_.short[:digits]
    return f'<a href="#v{id_.short}">{shown}</a>' if id_ in anchors else shown


def _section(id_: str, title: str) -> str:
    return f'<h2 id="{id_}">{title}</h2>'


def _note(text: str | None) -> str:
    return "" if text is None else f'<p class="dim">Note: {_e(text)}.</p>'


def _left_out(count: int, noun: str) -> str:
    return f'<p class="dim">Not shown: {count:,} {noun}.</p>' if count > 0 else ""


def _figure(axis: Axis, panels: Sequence[Panel], title: str) -> str:
    drawn = svg(axis, panels, title)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{drawn}</div>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    titles = "".join(f'<th scope="col">{_e(head)}</th>' for head in heads)
    return (
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
