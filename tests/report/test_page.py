"""The page: whole HTML that loads nothing, escapes everything, and stays small."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from time import time_ns

import numpy as np
import pytest

import mvc
from mvc.errors import MvcError
from mvc.ids import CommitId
from mvc.report.axis import Axis, By
from mvc.report.charts import Charts, less_is_better
from mvc.report.figure import Bars, Curve, Lane, Lanes, Line, svg
from mvc.report.overview import Excerpt, changes, overview
from tests.variables import variable

VOID = {"meta", "link", "br"}
DAY = 86_400 * 10**9
BROWSERS = ("chromium-headless-shell", "chromium", "chrome-headless-shell", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
EVIL = '"><script>alert(1)</script>&\x1b[2J\u202e'


class Page(HTMLParser):
    """Checks that tags are closed in order; gathers ids, links, headings and texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.texts: list[str] = []
        self.tags: Counter[str] = Counter()
        self.regions: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []
        assert max(self.ids.values()) == 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        found = dict(attrs)
        assert len(found) == len(attrs)
        assert not any(name.startswith("on") or name == "src" for name in found)
        self.ids.update(i for i in [found.get("id")] if i is not None)
        self.links.extend(h for h in [found.get("href")] if h is not None)
        if found.get("class", "").startswith("scroll"):
            self.regions.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[mvc.Repository]:
    """Twelve nightly versions, of which one was forgotten; deployed on two targets."""
    rng = np.random.default_rng(1)
    state = {f"block.{i}.weight": rng.standard_normal((8, 8)) for i in range(3)}
    with mvc.Repository.init(tmp_path / "models") as repo:
        for i in range(12):
            state = state | {"block.0.weight": state["block.0.weight"] + 1}
            if i == 6:
                state["head.weight"] = np.ones(3)
            day = f"2026-11-{i + 1:02}"
            repo.commit(
                state,
                message=f"nightly {i} {EVIL}",
                metrics={"acc": i / 12, EVIL[:9]: i},
                params={"data": EVIL[:28]},
                deploy=("prod", "edge")[i % 2],
                options=mvc.CommitOptions(time=f"{day}T10:00Z", at=f"{day}T12:00Z"),
            )
        repo.tag("v1", "HEAD~3")
        repo.storage.forget("HEAD~9")
        yield repo


def test_the_page_is_whole_and_loads_nothing(repo: mvc.Repository, tmp_path: Path) -> None:
    html = mvc.write_report(repo, tmp_path / "report.html", layer_seconds=600)
    assert (tmp_path / "report.html").read_text() == html
    page = Page(html)
    assert page.tags["script"] == page.tags["img"] == page.tags["iframe"] == 0
    assert "url(" not in html and "@import" not in html
    assert not {c for c in html if ord(c) < 32} - {"\n"} and "\u202e" not in html
    anchors = [link for link in page.links if link != "data:,"]
    assert all(link.startswith("#") and link[1:] in page.ids for link in anchors)
    assert all(r.get("tabindex") == "0" and r.get("aria-label") for r in page.regions)
    for section in ("history", "metrics", "storage", "layers", "versions", "deployments"):
        assert page.ids[section] == 1
        assert f"#{section}" in page.links


def test_the_page_says_what_the_repository_holds(repo: mvc.Repository) -> None:
    page = Page(mvc.write_report(repo, layer_seconds=600))
    for entry in repo.log():
        assert page.ids[f"v{entry.id.short}"] == 1
    for expected in ("12 versions, 1 forgotten", "tag: v1", "forgotten", "in full", "now"):
        assert expected in page.text
    live = repo.live("prod")
    assert f"prod: {live.commit.short}" in page.text
    assert "nightly 11" in page.text
    assert "block.0.weight" in page.texts and "head.weight" in page.texts
    # Two changes touch the forgotten version, and have no distance.
    assert "the newest 9 of 11 changes" in page.text
    # Every element of one layer moved by one, the others by nothing.
    heat = page.texts[page.texts.index("block.0.weight") :]
    assert heat[1:10] == ["1e0"] * 9
    heat = page.texts[page.texts.index("block.1.weight") :]
    assert heat[1:10] == ["0"] * 9


def test_bytes_and_chains_of_versions_add_up(repo: mvc.Repository) -> None:

    total, stats = repo.storage.by_version()
    assert total.bytes == repo.storage.stats().bytes
    assert repo.find("HEAD~9") not in stats
    first = stats[repo.find("HEAD~11")]
    assert (first.deltas, first.reset_point, first.base) == (0, True, repo.find("HEAD~11"))
    for kind in ("full", "delta", "metadata"):
        kept = sum(each.bytes[kind] for each in stats.values())
        assert kept <= total.bytes[kind]
    deepest = max(stats.values(), key=lambda each: each.deltas)
    assert deepest.deltas == total.deltas_worst
    assert deepest.base in stats


def test_an_empty_repository_and_one_of_one_version(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path / "a") as repo:
        page = Page(mvc.write_report(repo))
        assert "0 versions" in page.text and "No version has a metric" in page.text
        assert "no version has a parent" in page.text
        repo.commit({"w": np.zeros(2)})
        assert "1 version, 1 stored in full" in Page(mvc.write_report(repo)).text


def test_compared_versions_are_counted(repo: mvc.Repository) -> None:
    calls = list[tuple[int, int, str]]()
    mvc.write_report(repo, layer_seconds=600, progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == list(range(1, 12))
    assert {total for _, total, _ in calls} == {11}


def test_without_time_there_are_no_distances(repo: mvc.Repository) -> None:
    page = Page(mvc.write_report(repo, layer_seconds=0))
    assert "No distances: the time limit was reached." in page.text
    assert page.tags["table"] == 2


def test_a_version_that_is_committed_meanwhile_does_no_harm(repo: mvc.Repository) -> None:
    found = overview(repo, Excerpt())
    repo.commit({"w": np.zeros(2)})
    assert len(changes(repo, found, seconds=600, most=5)[0]) == 5
    assert found.history.head.commit == repo.find("HEAD~1")


def test_the_page_is_not_written_into_the_store(repo: mvc.Repository) -> None:
    with pytest.raises(MvcError):
        mvc.write_report(repo, repo.root / ".mvc" / "report.html")


def test_pictures_do_not_grow_with_the_history() -> None:
    count = 10_000
    points = [(i * DAY // 24, float(i % 7)) for i in range(count)]
    lanes = [Lane(t, t + DAY // 24, CommitId(bytes(32)), t) for t, _ in points]
    axis = Axis.of(t for t, _ in points)
    charts = [Line("a", [Curve("", points)]), Bars("b", {"x": points}), Lanes("l", {"t": lanes})]
    drawn = svg(axis, charts, "t")
    assert len(drawn) < 120_000
    Page(f"<p id='x'>{drawn}</p>")


def test_values_that_cannot_be_drawn_are_left_out() -> None:
    points = [(0, 1.0), (DAY, float("nan")), (2 * DAY, float("inf")), (3 * DAY, 1e308)]
    axis = Axis.of(t for t, _ in points)
    assert "nan" not in svg(axis, [Line("a", [Curve("", points)])], "t")
    assert "highest 1e+308" in svg(axis, [Line("a", [Curve("", [*points, (0, -1e308)])])], "t")
    nowhere = [Curve("", [(0, float("-inf"))])]
    assert "no finite value" in svg(axis, [Line("none", nowhere)], "t")
    gaps = [(i * DAY, value) for i, value in enumerate([1, 2, float("nan"), 3, float("inf")])]
    drawn = svg(axis, [Line("a", [Curve("", gaps)])], "t")
    (line,) = re.findall(r'class="l l0" d="([^"]*)"', drawn)
    assert re.sub(r"[\d. ]+", "", line.replace("h0", "")) == "MLM"
    assert svg(Axis.of([]), [Line("a", [])], "t")


# -- the axis, the lines, the best version ---------------------------------------------------


@pytest.fixture
def burst(tmp_path: Path) -> Iterator[mvc.Repository]:
    """Forty versions within two minutes, nine weeks ago: twenty on each of two branches."""
    begin = time_ns() - 63 * DAY
    with mvc.Repository.init(tmp_path / "burst") as repo:
        for i in range(40):
            if i == 20:
                repo.switch("wide", create=True, start="HEAD~10")
            at = begin + 3 * 10**9 * i
            repo.commit(
                {"w": np.full(4, i), "optimizer": {"m": np.full(4, i)}},
                message=f"step {i}",
                metrics={"acc": i % 20 / 20 + i / 100, "val_loss": abs(i - 30) / 30},
                deploy="prod" if i % 8 == 0 else None,
                options=mvc.CommitOptions(time=at, at=at if i % 8 == 0 else None),
            )
        yield repo


def charts_of(
    repo: mvc.Repository, since: int | None = None, until: int | None = None, by: By | None = None
) -> Charts:
    return Charts(overview(repo, Excerpt(since, until, by)))


def test_the_axis_ends_with_the_data(burst: mvc.Repository) -> None:
    charts = charts_of(burst)
    times = [entry.commit.time_ns for entry in burst.log("HEAD", mvc.LogOptions(every=True))]
    assert (charts.axis.low, charts.axis.high) == (min(times), max(times))
    shares = [charts.axis.share(time) for time in times]
    assert max(shares) - min(shares) > 0.9
    assert charts.note is None


def test_versions_crowded_in_time_are_spread_by_their_numbers(burst: mvc.Repository) -> None:
    burst.commit({"w": np.zeros(4)}, metrics={"acc": 0.5})  # now, nine weeks later
    by_time = charts_of(burst, by="time")
    assert by_time.axis.by == "time" and by_time.note is None
    spread = charts_of(burst)
    assert "--by time" in spread.note and charts_of(burst, by="version").note is None
    assert (spread.axis.by, spread.axis.low, spread.axis.high) == ("version", 1, 41)
    lanes = spread.live(spread.shown.history.spans)
    assert [lane.start for lane in lanes.targets["prod"]] == [1, 9, 17, 25, 33]
    assert spread.axis.share(lanes.targets["prod"][-1].end) == 1.0  # live now
    assert "shows version numbers" in Page(mvc.write_report(burst)).text
    with pytest.raises(MvcError, match="the axis must be time or version"):
        mvc.write_report(burst, by="weight")  # type: ignore[arg-type]


def test_since_and_until_bound_what_is_drawn(burst: mvc.Repository) -> None:
    times = sorted(entry.commit.time_ns for entry in burst.log("HEAD", mvc.LogOptions(every=True)))
    charts = charts_of(burst, since=times[5], until=times[14])
    assert (charts.axis.low, charts.axis.high) == (times[5], times[14])
    assert {x for curve in charts.metric("acc").curves for x, _ in curve.points} == {*times[5:15]}
    page = Page(mvc.write_report(burst, since=times[5], until=times[14]))
    assert "10 versions, " in page.text and "30 outside the chosen period" in page.text
    assert sum(id_.startswith("v") for id_ in page.ids) - 1 == 10  # and the section's own


def test_every_branch_is_a_line_that_begins_where_it_forks(burst: mvc.Repository) -> None:
    by_name = {curve.name: curve for curve in charts_of(burst).metric("acc").curves}
    assert list(by_name) == ["wide", "main"]  # the current branch comes first
    fork = burst.version("main~9").parents[0]
    first = by_name["main"].points[0]
    assert first == (burst.version(fork).time_ns, burst.version(fork).metrics["acc"])
    assert [legend.names for legend in charts_of(burst).legend] == [["wide", "main"]]
    assert ">wide</text>" in mvc.write_report(burst)


def test_two_runs_on_one_branch_are_two_lines(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for run in ("monday", "tuesday"):
            for step in range(3):
                options = mvc.CommitOptions(run=run)
                repo.commit({"w": np.full(2, step)}, metrics={"acc": step}, options=options)
        curves = charts_of(repo).metric("acc").curves
        assert {c.name: len(c.points) for c in curves} == {"tuesday": 3, "monday": 3}
        assert {"monday", "tuesday"} <= set(Page(mvc.write_report(repo)).texts)


def test_the_best_version_is_marked(burst: mvc.Repository) -> None:
    best = {name: charts_of(burst).metric(name).best for name in ("acc", "val_loss")}
    assert best["acc"].commit == burst.log("HEAD", mvc.LogOptions(every=True, sort="acc"))[0].id
    assert (
        best["val_loss"].commit
        == burst.log("HEAD", mvc.LogOptions(every=True, sort="-val_loss"))[0].id
    )
    assert (best["acc"].kind, best["val_loss"].kind) == ("highest", "lowest")
    page = mvc.write_report(burst)
    assert f"best {best['acc'].commit.short}</text>" in page
    assert f'<a href="#v{best["acc"].commit.short}"><circle class="best"' in page


def test_a_metric_without_differences_has_no_best_version(tmp_path: Path) -> None:
    with mvc.Repository.init(tmp_path) as repo:
        for step in range(3):
            repo.commit({"w": np.full(2, step)}, metrics={"same": 0.5, "log_loss": step})
        assert charts_of(repo).metric("same").best is None
        assert charts_of(repo).metric("log_loss").best.value == 0


@pytest.mark.parametrize("name", ["rmse", "val/logloss", "Perplexity", "trainLoss", "eval_mae"])
def test_lower_is_better_by_the_name(name: str) -> None:
    assert less_is_better(name) and not less_is_better("val_accuracy")


def test_rollbacks_are_marked(burst: mvc.Repository) -> None:
    marks = 'class="r"'
    assert marks not in mvc.write_report(burst)
    burst.rollback("prod")
    page = mvc.write_report(burst)
    assert page.count(marks) == 2  # the mark, and its meaning
    assert f"rolled back to {burst.live('prod').commit.short} on prod from" in page
    assert Page(page).texts.count("rollback") == 2  # the meaning, and the table of deployments


def heights(values: list[float]) -> list[float]:
    axis = Axis.of([0, len(values) * DAY])
    line = Line("a", [Curve("", [(i * DAY, value) for i, value in enumerate(values)])])
    (path,) = re.findall(r'class="l l0" d="([^"]*)"', svg(axis, [line], "t"))
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]


def test_noise_does_not_fill_a_scale() -> None:
    spread = heights([0.9, 0.95, 1.0])
    assert heights([5.0, 5.0, 5.0]) == [spread[1]] * 3
    noise = heights([0.98, 0.980_01, 0.979_99])
    assert max(noise) - min(noise) < 0.01 * (max(spread) - min(spread)) + 0.2
    assert heights([0, 1e-9, 2e-9]) == heights([0, 1, 2])  # small values are no noise


def test_shades_of_nearly_equal_distances_are_equal(tmp_path: Path) -> None:
    def shades(factors: list[float]) -> list[str]:
        state, folder = np.zeros(8), tmp_path / str(len(factors))
        with mvc.Repository.init(folder) as repo:
            for factor in factors:
                state = state + factor
                repo.commit({"w": state})
            return re.findall(r'<td class="h(\d)">', mvc.write_report(repo, layer_seconds=600))

    assert set(shades([1, 1, 1.02, 0.99])) == {"5"}
    assert shades([1, 1, 100, 1e4, 1e8])[-1] == "9"


def test_rows_of_optimizers_are_folded_away(burst: mvc.Repository) -> None:
    folded = Page(mvc.write_report(burst))
    assert "optimizer.m" not in folded.texts and "w" in folded.texts
    assert "Not shown: 1 tensor of optimizers" in folded.text


def test_counts_of_the_page_agree(burst: mvc.Repository) -> None:
    burst.undo()  # one version that no name leads to
    page = Page(mvc.write_report(burst))
    listed = sum(id_.startswith("v") and id_ != "versions" for id_ in page.ids)
    assert (listed, burst.storage.stats().versions) == (39, 40)
    assert f"{listed} versions, {listed} stored in full, 1 more that no" in page.text


# -- in a browser ----------------------------------------------------------------------------


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None, f"none of {', '.join(BROWSERS)} is on the path"
    return subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--enable-logging=stderr", *options, page.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
        env={**os.environ, "HOME": str(page.parent)},
    )  # fmt: skip


@pytest.mark.skipif(
    BROWSER is None and variable("MVC_REQUIRE_BROWSER") != "1",
    reason="no Chromium on this machine",
)
def test_a_real_browser_shows_it_without_a_word_on_the_console(
    repo: mvc.Repository, tmp_path: Path
) -> None:
    from matplotlib.image import imread

    page = tmp_path / "report.html"
    mvc.write_report(repo, page, layer_seconds=600)
    dumped = browse(page, "--dump-dom")
    assert "CONSOLE" not in dumped.stderr
    assert f"v{repo.find('HEAD').short}" in dumped.stdout
    corners = {}
    dark = "--blink-settings=preferredColorScheme=0"
    for name, options in (("light", ()), ("dark", (dark,))):
        picture = tmp_path / f"{name}.png"
        browse(page, f"--screenshot={picture}", "--window-size=400,800", *options)
        corners[name] = float(imread(picture)[2, 2, :3].mean())
    assert corners["light"] > 0.9 and corners["dark"] < 0.2
