"""Draws the pictures of docs/explanation/error_feedback.md with thinwire's own streams.

python docs/making/pictures.py        writes them into docs/images
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from thinwire.engine.compress import TopK
from thinwire.engine.streams import Direct, ErrorFeedback, Flow, RoundSeeds, StreamSpec
from thinwire.report.svg.drawing import box, heading, picture, rule, text
from thinwire.report.svg.line_chart import Chart, Line, Point

IMAGES = Path(__file__).resolve().parents[1] / "images"

_BAR, _GAP, _TALL, _WIDE, _LEFT, _TOP = 16, 3, 70, 190, 70, 64
_COLUMNS = ("embedding h", "difference h - G", "sent: its two largest", "surrogate G, afterwards")
_ROW = (0.9, -0.4, 0.2, 0.7, -0.6, 0.3, -0.15, 0.5)


def one_row() -> str:
    """Four rounds of one row that stands still: h, what is missing, what is sent, what both ends then hold."""
    h = torch.tensor([_ROW])
    rows, guess = torch.tensor([0]), torch.zeros(1, len(_ROW))
    stream = ErrorFeedback(TopK(2 / len(_ROW))).open(Flow("row", 1, len(_ROW), RoundSeeds(0, "row")))
    parts = [heading(_LEFT, "One row, four rounds, two values a message")]
    parts += [text(_LEFT + _WIDE * place, 50, said) for place, said in enumerate(_COLUMNS)]
    for round in range(4):
        missing = h - guess
        sent = stream.outgoing(rows, h, round).to_tensor()
        guess = guess + sent
        middle = _TOP + _TALL * round + _TALL / 2
        parts.append(text(12, middle + 4, f"round {round + 1}", strong=True))
        for place, values in enumerate((h, missing, sent, guess)):
            parts += _bars(_LEFT + _WIDE * place, middle, values[0], (6, 1, 2, 0)[place])
    width = _LEFT + _WIDE * len(_COLUMNS)
    return picture("Error feedback, one row", width, _TOP + 4 * _TALL + 8, parts, "The surrogate fills up to h.")


def _bars(left: float, middle: float, values: Tensor, style: int) -> list[str]:
    """Upwards where positive, downwards where negative."""
    whole = (_BAR + _GAP) * len(values)
    parts = [rule(left, middle, left + whole, middle)]
    for place, value in enumerate(values.tolist()):
        tall = abs(value) * (_TALL / 2 - 4)
        if tall:
            parts.append(
                box(left + place * (_BAR + _GAP), middle - max(value, 0) * (_TALL / 2 - 4), _BAR, tall, style)
            )
    return parts


def many_rounds() -> str:
    """How far the receiver's picture of drifting embeddings is from the truth, by round."""
    kinds: dict[str, StreamSpec] = {
        "top-k alone": Direct(TopK(0.1)),
        "top-k with error feedback": ErrorFeedback(TopK(0.1)),
    }
    lines = [Line(name, _errors(kind), style) for style, (name, kind) in enumerate(kinds.items())]
    return Chart("What the receiver gets wrong", "round", "|error|^2 / |h|^2", lines).svg()


def _errors(kind: StreamSpec, rounds: int = 40) -> list[Point]:
    draw = torch.Generator().manual_seed(0)
    h, rows = torch.randn(64, 32, generator=draw), torch.arange(64)
    flow = Flow("drift", 64, 32, RoundSeeds(0, "drift"))
    sender, receiver = kind.open(flow), kind.open(flow)
    points = []
    for round in range(rounds):
        received = receiver.incoming(rows, sender.outgoing(rows, h, round), round)
        wrong = float((h - received).square().sum() / h.square().sum())
        points.append(Point(round + 1, _rounded(wrong)))
        h = h + 0.05 * torch.randn(64, 32, generator=draw)
    return points


def _rounded(value: float) -> float:
    """Three digits: the pictures are compared as text."""
    return float(f"{value:.3g}")


PICTURES = {"error_feedback_row.svg": one_row, "error_feedback_rounds.svg": many_rounds}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(f"{draw()}\n")
