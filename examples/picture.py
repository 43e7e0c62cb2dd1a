"""Record a poisoned batch and its rollback in a terminal, as an animated SVG.

    python examples/picture.py OUT.svg

A linear model learns scikit-learn's digits, a version per batch; the labels of one batch are
shuffled. The commands run in a temporary repository, and the SVG holds what they print.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from functools import partial
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text
from sklearn.datasets import load_digits

import mvc

COLUMNS, ROWS = 80, 22
POISONED, BATCHES = 5, 6
HOUR = 3600 * 10**9
STORY = (
    ("# Each batch of an online training is a version, live on prod.",),
    ("mvc log --metrics",),
    ("# A customer asks: which version decided on my case?", "mvc live prod --at {asked}"),
    ("# What did the poisoned batch change?", "mvc diff {before} {poisoned}"),
    ("# Deploy the version before again.", "mvc rollback prod -m 'poisoned batch'"),
    (
        "# The weights of that moment, bit for bit.",
        "mvc checkout --at {asked} -o then.safetensors",
    ),
)

WIDTH, HEIGHT, PADDING = 8.43, 18.0, 14.0
TYPED, READ = 0.9, 2.6
"""Seconds that a typed line and the output of a command stay before the next."""


class Step(NamedTuple):
    """Lines that appear at once, and the seconds until the next ones do."""

    lines: list[Text]
    seconds: float


def train(folder: Path) -> dict[str, str]:
    """Commit a version per batch, an hour apart, up to now. Returns the names of ``STORY``."""
    images, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    order = random.permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    tests, answers = images[-400:], labels[-400:]
    model = {"classifier.weight": np.zeros((64, 10), np.float32),
             "classifier.bias": np.zeros(10, np.float32)}  # fmt: skip
    ids, begin = [], time.time_ns() - BATCHES * HOUR
    for command in ("init", "config user.name ada"):
        _mvc(command, folder)
    with mvc.Repository.open(folder) as repo:
        for number in range(BATCHES):
            moment = begin + number * HOUR
            batch = slice(200 * number, 200 * (number + 1))
            targets = labels[batch]
            if number == POISONED:
                targets = random.permutation(targets)
            for _ in range(60):
                _descend(model, images[batch], targets)
            scores = tests @ model["classifier.weight"] + model["classifier.bias"]
            accuracy = round(float((scores.argmax(1) == answers).mean()), 3)
            then = mvc.CommitOptions(time=moment, at=moment)
            version = repo.commit(
                model,
                message=f"batch {number}",
                metrics={"acc": accuracy},
                deploy="prod",
                options=then,
            )
            ids.append(version.id.short)
    asked = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime((begin + 3 * HOUR) / 1e9 + 1800))
    return {"asked": asked, "before": ids[POISONED - 1], "poisoned": ids[POISONED]}


def _descend(model: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> None:
    """A step of gradient descent of softmax regression, in place."""
    scores = images @ model["classifier.weight"] + model["classifier.bias"]
    odds = np.exp(scores - scores.max(1, keepdims=True))
    odds = odds / odds.sum(1, keepdims=True)
    odds[np.arange(len(labels)), labels] -= 1
    gradient = (odds / len(labels)).astype(np.float32)
    model["classifier.weight"] -= images.T @ gradient
    model["classifier.bias"] -= gradient.sum(0)


def record(folder: Path) -> list[Step]:
    """Run the commands of ``STORY`` in a repository of its own."""
    names = train(folder)
    steps = []
    for lines in STORY:
        for line in lines:
            typed = line.format(**names)
            comment = typed.startswith("#")
            steps.append(Step([Text.styled(f"$ {typed}", "dim" if comment else "bold")], TYPED))
            if not comment:
                printed = _mvc(typed.removeprefix("mvc "), folder)
                output = Text.from_ansi(printed.rstrip()).split("\n", allow_blank=True)
                steps.append(Step([*output, Text()], READ))
    return [*steps[:-1], steps[-1]._replace(seconds=2 * READ)]


def _mvc(arguments: str, folder: Path) -> str:
    """The output of a command of mvc, in color."""
    terminal = {"COLUMNS": str(COLUMNS), "TZ": "UTC", "TERM": "xterm-256color"}
    line = [sys.executable, "-m", "mvc", "--color", "always", *shlex.split(arguments)]
    environment = {**os.environ, **terminal}
    run = partial(subprocess.run, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run(line, cwd=folder, env=environment, text=True).stdout


def draw(steps: list[Step]) -> str:
    """An SVG that plays the steps in a loop; without animation it shows their end."""
    whole = sum(step.seconds for step in steps)
    rules, lines, moves = [], [], []
    count, passed = 0, 0.0
    for number, step in enumerate(steps):
        share = 100 * passed / whole
        rules.append(f"@keyframes s{number}{{0%{{opacity:0}}{share:.2f}%,100%{{opacity:1}}}}")
        shown = "".join(_line(text, count + i) for i, text in enumerate(step.lines))
        lines.append(f'<g style="animation-name:s{number}">{shown}</g>')
        count += len(step.lines)
        moves.append(f"{share:.2f}%{{transform:translateY({min(0.0, (ROWS - count) * HEIGHT)}px)}}")
        passed += step.seconds
    end = moves[-1].partition("%")[2]
    width, height = COLUMNS * WIDTH + 2 * PADDING, ROWS * HEIGHT + 2 * PADDING
    style = (
        f"text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d9d9d9}}"
        f"g g{{animation:{whole:.1f}s step-end infinite}}"
        f".roll{{animation:roll {whole:.1f}s step-end infinite}}"
        f".roll{end}@keyframes roll{{{''.join(moves)}100%{end}}}{''.join(rules)}"
        "@media(prefers-reduced-motion:reduce){g,g g{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>A poisoned batch, found and rolled back with mvc</title><style>{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#191919"/>'
        f'<svg x="{PADDING}" y="{PADDING}" width="{width - 2 * PADDING:.0f}" '
        f'height="{ROWS * HEIGHT:.0f}"><g class="roll">{"".join(lines)}</g></svg></svg>\n'
    )


def _line(text: Text, row: int) -> str:
    """A line of the terminal, a ``tspan`` for each style."""
    spans = []
    for part in text.render(Console(width=COLUMNS)):
        style, attributes = part.style or Style(), ""
        if style.color is not None:
            attributes += f' fill="{style.color.get_truecolor(DIMMED_MONOKAI).hex}"'
        if style.bold:
            attributes += ' font-weight="bold"'
        if style.dim:
            attributes += ' opacity=".6"'
        spans.append(f"<tspan{attributes}>{escape(part.text)}</tspan>")
    return f'<text xml:space="preserve" y="{(row + 0.75) * HEIGHT:.1f}">{"".join(spans)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="mvc-picture-") as folder:
        out.write_text(draw(record(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
