"""A request for scores: read, and refused by field where it is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.job.schema import ServeSection
from thinwire.predict.own_models import OwnRows
from thinwire.serve.errors import BadRequest

__all__ = ["LONGEST_DEADLINE_MS", "ScoreRequest", "parsed_body", "read_request"]

LONGEST_DEADLINE_MS = 600_000.0
_FIELDS = ("ids", "rows", "features", "deadline_ms", "model")


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """Rows of the table, in the order of the request."""

    rows: npt.NDArray[np.int64]
    features: Tensor | None  # the label party's own, where the request brings them
    deadline_seconds: float
    model: str | None  # the version that the client insists on


def parsed_body(body: bytes) -> Any:
    """JSON without NaN."""
    try:
        return json.loads(body, parse_constant=_no_constant)
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        why = "a number has too many digits" if "set_int_max_str_digits" in str(error) else error
        raise BadRequest("malformed_json", f"the body is not JSON that can be read: {why}") from None


def read_request(value: Any, table: OwnRows, settings: ServeSection, deadline_header: str | None) -> ScoreRequest:
    """Refuses what cannot be answered, by field."""
    if not isinstance(value, dict):
        raise BadRequest("wrong_type", f"the body must be a JSON object, got {_kind(value)}")
    for field in value:
        if field not in _FIELDS:
            raise BadRequest("unknown_field", f"{str(field)[:40]!r} is unknown; there are {', '.join(_FIELDS)}")
    given = [field for field in ("ids", "rows") if value.get(field) is not None]
    if len(given) != 1:
        raise BadRequest("wrong_type", "give either ids or rows: which rows to score")
    (field,) = given
    asked = value[field]
    if not isinstance(asked, list):
        raise BadRequest("wrong_type", f"{field} must be a list, got {_kind(asked)}")
    if not asked:
        raise BadRequest("empty", f"{field} is empty; name one row at least")
    if len(asked) > settings.max_rows:
        raise BadRequest(
            "too_many_rows",
            f"{field} names {len(asked)} rows, one request may name {settings.max_rows}; ask in several requests, or "
            "score many rows with `thinwire predict`",
            413,
        )
    rows = _rows(asked, table.count) if field == "rows" else _ids(asked, table)
    return ScoreRequest(
        rows,
        _features(value.get("features"), table, len(rows)),
        _deadline(value, settings, deadline_header),
        _model(value.get("model")),
    )


def _rows(asked: list[Any], count: int) -> npt.NDArray[np.int64]:
    for place, row in enumerate(asked):
        if isinstance(row, bool) or not isinstance(row, int):
            raise BadRequest("wrong_type", f"rows[{place}] must be a whole number, got {_kind(row)}")
        if not 0 <= row < count:
            raise BadRequest("unknown_row", f"rows[{place}] is {str(row)[:20]}; there are rows 0 to {count - 1}", 404)
    return np.array(asked, np.int64)


def _ids(asked: list[Any], table: OwnRows) -> npt.NDArray[np.int64]:
    if table.ids is None:
        raise BadRequest("no_ids", "these rows have no ids; ask by rows, or name ids in the job file")
    for place, text in enumerate(asked):
        if isinstance(text, bool) or not isinstance(text, (str, int)):
            raise BadRequest("wrong_type", f"ids[{place}] must be text or a whole number, got {_kind(text)}")
    return table.ids.rows(asked)


def _features(given: Any, table: OwnRows, count: int) -> Tensor | None:
    if given is None:
        return None
    if table.features is None:
        raise BadRequest("wrong_type", "features: the label party has no bottom model of its own to take them")
    try:
        found = torch.tensor(given, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise BadRequest("wrong_type", "features must be numbers, a list of equal shape for each row") from None
    shape = [count, *table.features.shape[1:]]
    if list(found.shape) != shape:
        raise BadRequest("wrong_type", f"features have shape {list(found.shape)}, expected {shape}")
    if not bool(torch.isfinite(found).all()):
        place = torch.nonzero(~torch.isfinite(found))[0].tolist()
        raise BadRequest("not_finite", f"features{place} is not finite, or too large for float32")
    return found


def _deadline(value: dict[str, Any], settings: ServeSection, header: str | None) -> float:
    given = value.get("deadline_ms")
    if given is None:
        given = settings.deadline_ms if header is None else header
    try:
        milliseconds = float(given) if isinstance(given, (int, float, str)) and not isinstance(given, bool) else -1.0
    except (ValueError, OverflowError):
        milliseconds = -1.0
    if not 1 <= milliseconds <= LONGEST_DEADLINE_MS:
        raise BadRequest(
            "wrong_type", f"deadline_ms must be from 1 to {LONGEST_DEADLINE_MS:.0f}, got {str(given)[:20]}"
        )
    return milliseconds / 1000


def _model(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise BadRequest("wrong_type", f"model must be a version's text, got {_kind(given)}")
    return given


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _no_constant(name: str) -> Any:
    raise BadRequest("not_finite", f"the body holds {name}; every number must be finite")
