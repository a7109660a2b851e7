"""The service as an OpenAPI document."""

from __future__ import annotations

from typing import Any

from thinwire import __version__
from thinwire.job.schema import ServeSection

__all__ = ["openapi"]

_ERRORS = {
    400: "malformed_json, wrong_type, unknown_field, empty, not_finite, no_ids, bad_input: the request is wrong",
    403: "budget_spent: a party's privacy budget allows no further use of a row",
    404: "unknown_id, outside_alignment, unknown_row",
    408: "slow: the body did not come in time",
    413: "too_many_rows, too_large",
    429: "busy: too many rows wait; try again",
    500: "not_finite: the model overflows on a row of the tables; internal: the server's log says what",
    502: "party_failed: a party could not answer, or its answer was none",
    503: "party_missing, model_mismatch: `parties` names whom; busy: too many connections; try again",
    504: "deadline; `parties` names who had not answered",
}


def openapi(settings: ServeSection) -> dict[str, Any]:
    """Version 3.1."""
    errors = {str(status): _answer(text, "Error") for status, text in _ERRORS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "thinwire serve", "version": __version__},
        "paths": {
            "/v1/predict": {
                "post": {
                    "operationId": "predict",
                    "summary": "Scores of rows, by id or by row number",
                    "parameters": [
                        {
                            "name": "X-Deadline-Ms",
                            "in": "header",
                            "schema": {"type": "number", "default": settings.deadline_ms},
                            "description": "milliseconds; deadline_ms in the body counts first",
                        }
                    ],
                    "requestBody": {"required": True, "content": _content("Request")},
                    "responses": {"200": _answer("Scores in the order of the request", "Scores"), **errors},
                }
            },
            "/v1/model": {"get": _get("model", "What is served")},
            "/healthz": {"get": _get("health", "200 where requests are answered, 503 with who is missing")},
            "/metrics": {"get": _get("metrics", "Prometheus' text format")},
        },
        "components": {"schemas": _schemas(settings)},
    }


def _schemas(settings: ServeSection) -> dict[str, Any]:
    most = {"minItems": 1, "maxItems": settings.max_rows}
    return {
        "Request": {
            "type": "object",
            "additionalProperties": False,
            "description": "either ids or rows",
            "properties": {
                "ids": {"type": "array", "items": {"type": ["string", "integer"]}, **most},
                "rows": {"type": "array", "items": {"type": "integer", "minimum": 0}, **most},
                "features": {"type": "array", "description": "the label party's own columns, one list a row"},
                "deadline_ms": {"type": "number", "minimum": 1, "default": settings.deadline_ms},
                "model": {"type": "string", "description": "refuse to answer with any other version"},
            },
        },
        "Scores": {
            "type": "object",
            "properties": {
                "model": {"type": "string", "description": "a hash over all parties' models"},
                "columns": {"type": "array", "items": {"type": "string"}},
                "scores": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                "missing": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "parties that were not there: their default embedding was taken",
                },
            },
        },
        "Error": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "message": {"type": "string"},
                        "parties": {"type": "array", "items": {"type": "string"}},
                    },
                }
            },
        },
    }


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _answer(text: str, schema: str) -> dict[str, Any]:
    return {"description": text, "content": _content(schema)}


def _get(name: str, summary: str) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "responses": {"200": {"description": summary}}}
