"""The description of all routes in OpenAPI's words, and as a page for people."""

from __future__ import annotations

import html
import json
from typing import Any

from farandole import __version__
from farandole.serving.datatypes import BYTES, DATATYPES

_ERRORS = {
    "400": "The request is malformed, or doesn't fit the model.",
    "401": "A token is needed.",
    "403": "The token is wrong, or this isn't allowed here.",
    "404": "There is no such model, version or path.",
    "405": "Another method is possible here.",
    "408": "The body came too slowly.",
    "413": "The body or the answer is too large.",
    "415": "The body's encoding isn't known.",
    "503": "Not ready, or too many requests wait: try again after Retry-After seconds.",
}
_NAME = {"type": "string", "minLength": 1}
_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}
_BINARY = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "JSON, of as many bytes as Inference-Header-Content-Length says, and after "
        "it the tensors that have a binary_data_size.",
    }
}
_SHAPE = {"type": "array", "items": {"type": "integer"}}
_DATATYPE = {"type": "string", "enum": [*DATATYPES, BYTES]}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": least}


_SCHEMAS: dict[str, Any] = {
    "Error": _schema(["error"], error=_TEXT),
    "TensorMetadata": _schema(
        ["name", "datatype", "shape"], name=_TEXT, datatype=_DATATYPE, shape=_SHAPE
    ),
    "ModelMetadata": _schema(
        ["name", "versions", "platform", "inputs", "outputs"],
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_ref("TensorMetadata")),
        outputs=_list(_ref("TensorMetadata")),
    ),
    "ServerMetadata": _schema(
        ["name", "version", "extensions"], name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "RequestTensor": _schema(
        ["name", "shape", "datatype"],
        name=_TEXT,
        shape={**_SHAPE, "minItems": 1},
        datatype=_DATATYPE,
        data=_list({}),
        parameters=_schema([], binary_data_size={"type": "integer", "minimum": 0}),
    ),
    "RequestedOutput": _schema(
        ["name"], name=_TEXT, parameters=_schema([], binary_data={"type": "boolean"})
    ),
    "InferenceRequest": _schema(
        ["inputs"],
        id=_TEXT,
        inputs=_list(_ref("RequestTensor"), 1),
        outputs=_list(_ref("RequestedOutput")),
        parameters=_schema(
            [],
            binary_data_output={"type": "boolean"},
            timeout={"type": "integer", "minimum": 0, "description": "Microseconds."},
        ),
    ),
    "ResponseTensor": _schema(
        ["name", "shape", "datatype"],
        name=_TEXT,
        shape=_SHAPE,
        datatype=_DATATYPE,
        data=_list({}),
        parameters=_OBJECT,
    ),
    "InferenceResponse": _schema(
        ["model_name", "model_version", "outputs"],
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        outputs=_list(_ref("ResponseTensor")),
    ),
    "Rows": _schema(["rows"], rows=_list(_OBJECT, 1), model=_TEXT, version=_TEXT),
    "Predictions": _schema(
        ["model", "version", "predictions"],
        model=_TEXT,
        version=_TEXT,
        predictions=_list(_OBJECT),
    ),
    "IndexEntry": _schema(
        ["name", "version", "state", "reason"], name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT
    ),
}


def _operation(
    summary: str,
    answer: dict[str, Any],
    errors: str = "401 403",
    parameters: tuple[str, ...] = (),
    body: str = "",
    kind: str = "application/json",
    *,
    binary: bool = False,
) -> dict[str, Any]:
    error = {"application/json": {"schema": _ref("Error")}}
    said: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "Done.", "content": {kind: {"schema": answer}}},
            **{code: {"description": _ERRORS[code], "content": error} for code in errors.split()},
        },
    }
    if parameters:
        said["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _NAME} for name in parameters
        ]
    if body:
        content: dict[str, Any] = {"application/json": {"schema": _ref(body)}}
        if binary:
            content["application/octet-stream"] = _BINARY
            said["responses"]["200"]["content"]["application/octet-stream"] = _BINARY
        said["requestBody"] = {"required": True, "content": content}
    return said


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {
        "/v2/health/live": {"get": _operation("Whether the process answers.", _OBJECT, "")},
        "/v2/health/ready": {"get": _operation("Whether models are loaded.", _OBJECT, "503")},
        "/v2": {"get": _operation("What the server is.", _ref("ServerMetadata"))},
        "/predict": {
            "post": _operation(
                "Predict for rows with named fields.",
                _ref("Predictions"),
                "400 401 403 404 408 413 415 503",
                body="Rows",
            )
        },
        "/metrics": {"get": _operation("What was counted.", _TEXT, kind="text/plain")},
        "/v2/repository/index": {
            "post": _operation(
                "All models, loaded or not.",
                _list(_ref("IndexEntry")),
                "400 401 403 408 413 415",
            )
        },
    }
    for action in ("load", "unload"):
        paths[f"/v2/repository/models/{{model}}/{action}"] = {
            "post": _operation(
                f"{action.title()} a model, with --allow-load.",
                _OBJECT,
                "400 401 403 404 408 413 415",
                ("model",),
            )
        }
    for path, names in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        known = "401 403 404 503"
        paths[path] = {
            "get": _operation("What it takes and gives.", _ref("ModelMetadata"), known, names)
        }
        paths[f"{path}/ready"] = {
            "get": _operation("Whether it can be asked.", _OBJECT, known, names)
        }
        paths[f"{path}/infer"] = {
            "post": _operation(
                "Predict for tensors.",
                _ref("InferenceResponse"),
                "400 401 403 404 408 413 415 503",
                names,
                "InferenceRequest",
                binary=True,
            )
        }
    return paths


def openapi() -> dict[str, Any]:
    """The whole description.

    >>> sorted(openapi()["paths"]["/v2/models/{model}/infer"])
    ['post']
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "farandole serve",
            "version": __version__,
            "description": "The Open Inference Protocol (v2), and rows with named fields.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>farandole serve: routes</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem }}
summary {{ cursor: pointer; padding: .3rem }} code {{ font-size: 1rem }}
pre {{ background: #8882; overflow: auto; padding: 1rem }}
b {{ display: inline-block; width: 4rem }}
</style></head><body><h1>Routes</h1><p>{about}
As JSON: <a href="/v2/openapi.json">/v2/openapi.json</a>.
Errors are <code>{{"error": "…"}}</code>.</p>{routes}</body></html>"""


def documentation() -> str:
    """The same as a page that needs nothing else."""
    said = openapi()
    routes = []
    for path, methods in said["paths"].items():
        for method, about in methods.items():
            schemas = {
                name: _SCHEMAS[name]
                for name in _SCHEMAS
                if f'"#/components/schemas/{name}"' in json.dumps(about)
            }
            detail = json.dumps({**about, "schemas": schemas}, indent=1)
            routes.append(
                f"<details><summary><b>{method.upper()}</b> <code>{html.escape(path)}</code> "
                f"{html.escape(about['summary'])}</summary><pre>{html.escape(detail)}</pre>"
                "</details>"
            )
    return _PAGE.format(about=html.escape(said["info"]["description"]), routes="".join(routes))
