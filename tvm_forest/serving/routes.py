"""Routes for requests other than predictions: health, metadata, metrics, loading of models.

takes: Models, Metrics, Repository; gives: a FastAPI application.
"""

from __future__ import annotations

import sys
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .metrics import CONTENT_TYPE, Metrics
from .models import Models
from .refusals import Refused
from .repository import Repository

MAX_BODY = 1 << 16
"""Most bytes of the body of a request that is not for predictions (413)."""

EXTENSIONS = ("binary_tensor_data",)
"""Extensions of the protocol that every server has."""

_PACKAGE = sys.modules[__name__.partition(".")[0]]


def describe_server(may_load: bool) -> dict[str, Any]:
    """Return the metadata of the server."""
    extensions = [*EXTENSIONS, *(["model_repository"] if may_load else [])]
    return {"name": "tvm-forest", "version": _PACKAGE.__version__, "extensions": extensions}


def make_routes(
    models: Models, metrics: Metrics, repository: Repository, may_load: bool
) -> FastAPI:
    """Return the FastAPI application for requests other than predictions.

    `may_load` is whether the server's metadata lists the extension "model_repository".
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    @app.get("/v2/")
    @app.get("/v2")
    async def answer_server() -> dict[str, Any]:
        return describe_server(may_load)

    @app.get("/v2/health/live")
    async def tell_live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready")
    async def tell_ready() -> dict[str, bool]:
        return {"live": True, "ready": True}

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def describe_model(name: str, version: str | None = None) -> dict[str, Any]:
        return models.find(name, version).describe(models.versions(name))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def tell_model_ready(name: str, version: str | None = None) -> dict[str, Any]:
        return {"name": models.find(name, version).name, "ready": True}

    _add_repository(app, repository)

    @app.get("/metrics")
    async def write_metrics() -> Response:
        return Response(metrics.write(), media_type=CONTENT_TYPE)

    @app.exception_handler(Refused)
    async def answer_refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status)

    @app.exception_handler(HTTPException)
    async def answer_unknown_path(request: Request, error: HTTPException) -> JSONResponse:
        text = f"{request.method:.20} {request.url.path:.200}: {error.detail}; see docs/serving.md"
        return JSONResponse({"error": text}, error.status_code, error.headers)

    return app


def _add_repository(app: FastAPI, repository: Repository) -> None:
    """Add the routes of the protocol's extension "model repository"."""

    @app.post("/v2/repository/index")
    async def list_models(request: Request) -> list[dict[str, str]]:
        return repository.describe((await _read_body(request)).get("ready") is True)

    @app.post("/v2/repository/models/{name}/load")
    async def load_model(name: str, request: Request) -> Response:
        repository.check_asked(await _read_parameters(request))
        await repository.load(name)
        return Response()

    @app.post("/v2/repository/models/{name}/unload")
    async def unload_model(name: str, request: Request) -> Response:
        repository.check_asked(await _read_parameters(request), "unload_dependents")
        repository.unload(name)
        return Response()


async def _read_parameters(request: Request) -> dict[str, Any]:
    return (await _read_body(request)).get("parameters") or {}


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request; {} for an empty body.

    Raises:
        Refused: the body is too long (413), or is not such an object.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise Refused(f"the body has more than {MAX_BODY} bytes", 413)
    try:
        asked = orjson.loads(body or b"{}")
    except ValueError:
        asked = None
    if isinstance(asked, dict) and isinstance(asked.get("parameters", {}), dict):
        return asked
    raise Refused("the body is no JSON of the protocol; send none, or {}")
