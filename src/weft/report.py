"""The page that `weft demo` writes: one self-contained HTML file, every picture an inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from weft.treebank import LABELS, VOCABULARY, Tree

_CLASS_COLOURS = ("#b2182b", "#ef8a62", "#d0d0d0", "#67a9cf", "#2166ac")
_INK, _MUTED, _ACCENT = "#1d2733", "#647184", "#0b7285"


@dataclass(frozen=True)
class Accuracy:
    """Share of root labels that one way of predicting gets right."""

    name: str
    unseen: float
    longer: float


@dataclass(frozen=True)
class Speed:
    """Seconds of one training step over the same trees, and the largest difference between any two gradients."""

    trees: int
    vertices: int
    batched: float
    one_by_one: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.one_by_one / self.batched


@dataclass(frozen=True)
class Sample:
    """One tree with what the network says at every vertex and what the bag of words says of the sentence."""

    tree: Tree
    predicted: Sequence[int]
    bag_of_words: int


@dataclass(frozen=True)
class Report:
    """Everything the page shows; all of it measured by the run that writes it."""

    sizes: str
    losses: Sequence[float]
    train_seconds: float
    accuracies: Sequence[Accuracy]
    speed: Speed
    sample: Sample
    plan: str
    machine: str


def write_page(report: Report, path: Path) -> None:
    """Write the report as one HTML file that needs nothing else."""
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    network, speed, sample = report.accuracies[-1], report.speed, report.sample
    tiles = (
        (f"{network.unseen:.1%}", "of unseen sentences right"),
        (f"{speed.ratio:.0f}×", "faster than one by one"),
        (f"{speed.difference:.0e}", "largest difference of a gradient"),
        (f"{report.train_seconds:.1f} s", "to train"),
    )
    step = f"One training step over {speed.trees} trees ({speed.vertices:,} vertices): forward, loss, backward; medians."
    right = sum(int(p) == int(y) for p, y in zip(sample.predicted, sample.tree.labels, strict=True))
    gold, bag = LABELS[sample.tree.labels[-1]], LABELS[sample.bag_of_words]
    verdict = (
        f"Every circle is the network's answer for that phrase; {right} of {len(sample.predicted)} are right "
        f"(a wrong one has a black ring). The sentence is {gold}; its bag of words says {bag}."
    )
    speed_rows = (("one by one", speed.one_by_one), ("weft", speed.batched))
    sections = (
        _section("Loss", "Cross-entropy at every vertex, by training step; logarithmic.", loss_curve(report.losses), "tall"),
        _section("Accuracy at the root", "Dark: unseen sentences. Light: longer than any in training.", accuracy_bars(report)),
        _section("Speed", step, bars([(name, value, f"{value * 1e3:,.1f} ms", _ACCENT) for name, value in speed_rows])),
        _section("One unseen sentence", verdict, f"<div class=scroll>{tree_picture(sample)}</div>{_legend()}", "wide"),
        _section("The plan of one mini-batch", "What weft runs, and why.", f"<pre>{escape(report.plan)}</pre>", "wide"),
    )
    numbers = "".join(f"<div class=tile><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>weft demo</title><style>{_STYLE}</style><body><main><header><h1>A Tree-LSTM, written for one vertex, "
        f"trained in batches</h1><p>{escape(report.sizes)}</p></header><div class=tiles>{numbers}</div>"
        f"<div class=grid>{''.join(sections)}</div><footer>{escape(report.machine)}</footer></main></body></html>\n"
    )


def _section(title: str, note: str, body: str, size: str = "plain") -> str:
    return f"<section class={size}><h2>{escape(title)}</h2><p>{escape(note)}</p>{body}</section>"


def _svg(width: float, height: float, body: str, label: str) -> str:
    return f"<svg viewBox='0 0 {width:.0f} {height:.0f}' role='img' aria-label='{escape(label, quote=True)}'>{body}</svg>"


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = _INK, size: int = 13) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}' font-size='{size}'>{escape(text)}</text>"


def loss_curve(losses: Sequence[float], width: int = 440, height: int = 330) -> str:
    """Loss by step on a logarithmic axis with a line at every power of ten in sight, or at both ends if there is none."""
    left, right, top, bottom = 52, 12, 10, 28
    logs = [math.log10(max(loss, 1e-8)) for loss in losses]
    low, high = min(logs), max(logs)
    span = max(high - low, 1e-6)

    def at(step: int, log: float) -> tuple[float, float]:
        x = left + step / max(len(logs) - 1, 1) * (width - left - right)
        return x, top + (high - log) / span * (height - top - bottom)

    parts = []
    for tick in range(math.ceil(low), math.floor(high) + 1) or (low, high):
        _, y = at(0, tick)
        parts.append(f"<line x1='{left}' x2='{width - right}' y1='{y:.1f}' y2='{y:.1f}' stroke='#e3e8ee'/>")
        parts.append(_text(left - 8, y + 4, f"{10.0**tick:.3g}", "end", _MUTED))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(step, log) for step, log in enumerate(logs)))
    parts.append(f"<polyline points='{points}' fill='none' stroke='{_ACCENT}' stroke-width='1.6' stroke-linejoin='round' />")
    parts.append(_text(left, height - 8, "step 1", "start", _MUTED))
    parts.append(_text(width - right, height - 8, f"step {len(losses)}: loss {losses[-1]:.4f}", "end", _MUTED))
    return _svg(width, height, "".join(parts), "loss by step")


def bars(rows: Sequence[tuple[str, float, str, str]], full: float | None = None, width: int = 440) -> str:
    """Horizontal bars: (name, value, text, colour); the longest, or `full`, takes the whole width."""
    left, height = 104, 26
    right = 14 + 8 * max(len(text) for _, _, text, _ in rows)  # room for the text behind the longest bar
    full = full or max(value for _, value, _, _ in rows)
    parts = []
    for row, (name, value, text, colour) in enumerate(rows):
        y = row * height + 4
        length = max(value / full * (width - left - right), 1.5)
        parts.append(_text(left - 10, y + 14, name, "end"))
        parts.append(f"<rect x='{left}' y='{y}' width='{length:.1f}' height='18' rx='3' fill='{colour}'/>")
        parts.append(_text(left + length + 7, y + 14, text, "start", _MUTED))
    return _svg(width, len(rows) * height + 4, "".join(parts), "; ".join(f"{name} {text}" for name, _, text, _ in rows if name))


def accuracy_bars(report: Report) -> str:
    rows = []
    for accuracy in report.accuracies:
        rows.append((accuracy.name, accuracy.unseen, f"{accuracy.unseen:.1%}", _ACCENT))
        rows.append(("", accuracy.longer, f"{accuracy.longer:.1%}", "#a5d8dd"))
    return bars(rows, full=1.0)


def tree_picture(sample: Sample) -> str:
    """Leaves in sentence order; a parent stands between its children, one row above the higher one."""
    tree, row_height, radius = sample.tree, 38, 9
    place: list[tuple[float, int]] = []
    right_edge = 10.0
    for (left, right), word in zip(tree.children, tree.words, strict=True):
        if word:
            room = 7.6 * len(VOCABULARY[word]) + 14
            place.append((right_edge + room / 2, 0))
            right_edge += room
        else:
            place.append(((place[left][0] + place[right][0]) / 2, 1 + max(place[left][1], place[right][1])))
    top = place[-1][1]
    spots = [(x, 16 + (top - level) * row_height) for x, level in place]
    lines, marks = [], []
    for (x, y), children, word, label, guess in zip(
        spots, tree.children, tree.words, tree.labels, sample.predicted, strict=True
    ):
        for child in children[children >= 0]:
            lines.append(f"<line x1='{x:.1f}' y1='{y}' x2='{spots[child][0]:.1f}' y2='{spots[child][1]}' stroke='#b9c3cf'/>")
        ring = "stroke='#fff'" if guess == label else "stroke='#000' stroke-width=2.5"
        phrase = f"<title>{LABELS[guess]}</title>"
        marks.append(f"<circle cx='{x:.1f}' cy='{y}' r='{radius}' fill='{_CLASS_COLOURS[guess]}' {ring}>{phrase}</circle>")
        if word:
            marks.append(_text(x, y + 27, VOCABULARY[word], "middle"))
    return _svg(right_edge + 10, 16 + top * row_height + 38, "".join(lines + marks), tree.text)


def _legend() -> str:
    keys = zip(_CLASS_COLOURS, LABELS, strict=True)
    return "<p class=legend>" + "".join(f"<i style='background:{c}'></i>{name}" for c, name in keys) + "</p>"


_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ margin: 0; background: #f4f6f8; color: {_INK}; font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1020px; margin: 0 auto; padding: 28px 18px; }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 0 0 6px; }}
h2 {{ font-size: 16px; margin: 0; }}
p {{ margin: 2px 0 12px; color: {_MUTED}; }}
.tiles, .grid {{ display: grid; gap: 14px; grid-template-columns: repeat(4, 1fr); margin-bottom: 14px; }}
.tile, section {{ background: #fff; border-radius: 10px; padding: 14px 18px; box-shadow: 0 1px 2px #0002; }}
.tile b {{ display: block; font-size: 26px; color: {_ACCENT}; }}
.tile span, footer {{ color: {_MUTED}; font-size: 13px; }}
section {{ grid-column: span 2; }}
.tall {{ grid-row: span 2; }}
.wide {{ grid-column: 1 / -1; }}
svg {{ width: 100%; height: auto; max-height: 460px; font-family: inherit; }}
pre {{ margin: 0; padding: 14px; overflow-x: auto; background: #f4f6f8; border-radius: 6px; font-size: 13px; }}
.scroll {{ overflow-x: auto; }}
.scroll svg {{ min-width: 640px; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; border-radius: 50%; margin: 0 5px 0 14px; }}
@media (max-width: 720px) {{ section {{ grid-column: 1 / -1; }} .tiles {{ grid-template-columns: 1fr 1fr; }} }}
"""
