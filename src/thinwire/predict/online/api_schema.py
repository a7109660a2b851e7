"""A request for scores as a schema: requests are checked by it, the OpenAPI document shows it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from torch import Tensor

from thinwire import __version__
from thinwire.base.errors import BadInput
from thinwire.job.schema import ServeSection
from thinwire.predict.errors import BadRequest
from thinwire.predict.party_models import PartyRows

LONGEST_DEADLINE_MS = 600_000.0
_RowNumber = Annotated[int, Field(json_schema_extra={"minimum": 0})]  # refused by the table's count
_OWN = "the label party's own columns, one list or one object per row, instead of those in its table"
_OWN_ROW: dict[str, Any] = {
    "anyOf": [
        {
            "type": "array",
            "description": "numbers as the model takes them, after its preparation; null only where it takes gaps",
        },
        {
            "type": "object",
            "description": "raw columns by name, as /v1/model lists them; null where a value is missing",
            "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
        },
    ]
}
_WANTED = {"ids": "text or an integer", "rows": "an integer", "model": "a version's text"}


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """Rows of the table, in the order of the request."""

    rows: npt.NDArray[np.int64]
    features: Tensor | None  # the label party's own, where the request brings them, as the table's model takes them
    deadline_seconds: float
    model: str | None  # the version that the client insists on
    by_name: bool = False  # its features were raw columns, which the table's model prepared


def parse_body(body: bytes) -> Any:
    """JSON without NaN."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        why = "a number has too many digits" if "set_int_max_str_digits" in str(error) else error
        raise BadRequest("malformed_json", f"the body is not JSON that can be read: {why}") from None


class ScoreSchema:
    """With the limits of one server's settings."""

    def __init__(self, settings: ServeSection) -> None:
        self._settings = settings
        most = Field(default_factory=_nothing, min_length=1, max_length=settings.max_rows)
        own = Field(default_factory=_nothing, description=_OWN, json_schema_extra={"items": _OWN_ROW})
        version = Field(default_factory=_nothing, description="refuse to answer with any other version")
        deadline = Field(settings.deadline_ms, ge=1, le=LONGEST_DEADLINE_MS, description="milliseconds")
        self._body: type[BaseModel] = create_model(
            "Request",
            __config__=ConfigDict(extra="forbid", strict=True),
            __doc__="Either ids or rows.",
            ids=(list[str | int], most),
            rows=(list[_RowNumber], most),
            features=(list[Any], own),
            deadline_ms=(float, deadline),
            model=(str, version),
        )

    def read(self, value: Any, table: PartyRows, deadline_header: str | None) -> ScoreRequest:
        """Refuses what cannot be answered, by field."""
        body = self._check(value, deadline_header)
        if (body.ids is None) == (body.rows is None):
            raise BadRequest("wrong_type", "give either ids or rows: which rows to score")
        rows = _find_ids(body.ids, table) if body.rows is None else _check_rows(body.rows, table.count)
        features = _check_features(body.features, table, len(rows))
        return ScoreRequest(rows, features, body.deadline_ms / 1000, body.model, _is_by_name(body.features))

    def _check(self, value: Any, deadline_header: str | None) -> Any:
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if one is not None}  # null was not given
            if deadline_header is not None:
                value.setdefault("deadline_ms", _parse_number(deadline_header))
        try:
            return self._body.model_validate(value)
        except ValidationError as error:
            raise self._explain(error.errors(include_url=False)[0], value) from None

    def _explain(self, error: Any, value: Any) -> BadRequest:
        """The first thing that is wrong with a request, by field."""
        kind, (field, *place) = error["type"], error["loc"] or ("",)
        got = _name_kind(error["input"])
        match kind, field:
            case _, "":
                return BadRequest("wrong_type", f"the body must be a JSON object, got {got}")
            case "extra_forbidden", _:
                known = ", ".join(self._body.model_fields)
                return BadRequest("unknown_field", f"{str(field)[:40]!r} is unknown; there are {known}")
            case _, "deadline_ms":
                given = str(error["input"])[:20]
                return BadRequest(
                    "wrong_type", f"deadline_ms must be from 1 to {LONGEST_DEADLINE_MS:.0f}, got {given}"
                )
            case "too_short", _:
                return BadRequest("empty", f"{field} is empty; name at least one row")
            case "too_long", _:
                return BadRequest(
                    "too_many_rows",
                    f"{field} names {len(value[field])} rows, one request may name {self._settings.max_rows}; ask in "
                    "several requests, or score many rows with `thinwire predict`",
                    413,
                )
            case "list_type", _:
                return BadRequest("wrong_type", f"{field} must be a list, got {got}")
        where = f"{field}[{place[0]}]" if place and isinstance(place[0], int) else field
        return BadRequest("wrong_type", f"{where} must be {_WANTED.get(field, 'of another type')}, got {got}")

    def openapi(self) -> dict[str, Any]:
        """Version 3.1: what depends on the settings is added to what the file beside this one says."""
        document = tomllib.loads(Path(__file__).with_name("openapi.toml").read_text(encoding="utf-8"))
        document["info"]["version"] = __version__
        request = document["components"]["schemas"]["Request"] = self._body.model_json_schema()
        predict = document["paths"]["/v1/predict"]["post"]
        predict["parameters"][0]["schema"] = request["properties"]["deadline_ms"]
        for status, answer in predict["responses"].items():
            schema = "Scores" if status == "200" else "ErrorBody"
            answer["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        return document


# Fields that the table decides on -----------------------------------------------------------------------------------


def _check_rows(asked: list[int], count: int) -> npt.NDArray[np.int64]:
    for place, row in enumerate(asked):
        if not 0 <= row < count:
            raise BadRequest("unknown_row", f"rows[{place}] is {str(row)[:20]}; the rows are 0 to {count - 1}", 404)
    return np.array(asked, np.int64)


def _find_ids(asked: list[str | int], table: PartyRows) -> npt.NDArray[np.int64]:
    if table.ids is None:
        raise BadRequest("no_ids", "these rows have no ids; ask by rows, or name ids in the job file")
    return table.ids.rows(asked)


def _check_features(given: Any, table: PartyRows, count: int) -> Tensor | None:
    if given is None:
        return None
    if table.features is None:
        raise BadRequest("wrong_type", "features: the label party has no bottom model of its own to take them")
    found = _convert_objects(given, table, count) if _is_by_name(given) else _convert(given, table)
    shape = [count, *table.features.shape[1:]]
    if list(found.shape) != shape:
        raise BadRequest("wrong_type", f"features have shape {list(found.shape)}, expected {shape}")
    usable = torch.isfinite(found) | found.isnan() if table.takes_gaps else torch.isfinite(found)
    if not bool(usable.all()):
        place = torch.nonzero(~usable)[0].tolist()
        raise BadRequest("not_finite", f"features{place} is not finite, or too large for float32")
    return found


def _is_by_name(given: list[Any] | None) -> bool:
    return any(isinstance(one, dict) for one in given or ())


def _convert(given: list[Any], table: PartyRows) -> Tensor:
    """Numbers as the model takes them; null is a gap where it takes gaps."""
    if table.takes_gaps:
        given = [[nan if one is None else one for one in row] if isinstance(row, list) else row for row in given]
    try:
        return torch.tensor(given, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise BadRequest("wrong_type", "features must be numbers, a list of equal shape for each row") from None


def _convert_objects(given: list[Any], table: PartyRows, count: int) -> Tensor:
    """Raw columns by name, prepared as the model's training rows were."""
    if table.columns is None:
        raise BadRequest(
            "wrong_type", "features: the model's own columns have no names; give a list of numbers per row"
        )
    if len(given) != count:
        raise BadRequest("wrong_type", f"features hold {len(given)} rows, expected {count}")
    try:
        return table.columns.convert(given)
    except (BadInput, OverflowError, UnicodeError) as error:
        raise BadRequest("wrong_type", str(error)) from None


def _nothing() -> None:
    """What a request leaves out; as a plain default it would stand in the document."""


def _parse_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused by its field


def _name_kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _refuse_constant(name: str) -> Any:
    raise BadRequest("not_finite", f"the body holds {name}; every number must be finite")
