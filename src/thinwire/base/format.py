"""Numbers as people read them, and names as they meant to write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_LONGEST_TEXT = 1500  # characters of a peer's that are shown
_SCORES = {
    "auc": "AUC",
    "f1": "F1",
    "macro_f1": "macro F1",
    "gini": "Gini",
    "ks": "KS",
    "brier": "Brier score",
    "rmse": "RMSE",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R²",
}


_ROWS = {"train": "training", "validation": "validation", "test": "test"}


def name_score(name: str) -> str:
    """As people write it: AUC, log loss."""
    return _SCORES.get(name, name.replace("_", " "))


def name_place(place: str) -> str:
    """A score and the rows it is of: `train.loss` as training loss."""
    rows, _, name = place.partition(".")
    return f"{_ROWS[rows]} {name_score(name)}"


def short(value: float) -> str:
    """1500000 as 1.5M, for marks; 0.001 as 10^-3 would take more room, so small ones are plain or with an e."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{sign}"
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.4g}"


def format_number(value: float) -> str:
    return f"{value:.4g}"


def format_score(value: float) -> str:
    """Four decimals, so that scores stand below each other."""
    return f"{value:.4f}" if abs(value) < 100 else format_number(value)


def format_count(value: float) -> str:
    """1234567 as 1,234,567."""
    return f"{value:,.0f}"


def format_bytes(count: float) -> str:
    """1234567 as 1.23 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 1000 or unit == "TB":
            break
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"


def format_seconds(seconds: float | None) -> str:
    """5000 as 1 h 23 min."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def printable(text: Any) -> str:
    """What comes from a peer must not write lines of its own, or steer a terminal; the rest of a long one is cut."""
    short = str(text)[:_LONGEST_TEXT]
    return short if short.isprintable() else ascii(short)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to end a message with; empty where nothing is near."""
    known = list(known)
    near = get_close_matches(word, known, n=1) or get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def quote_names(names: Sequence[str]) -> str:
    """The first few, for a message."""
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
