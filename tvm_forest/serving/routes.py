"""What is asked of a server beside predictions: health, metadata, metrics.

takes: Models, Metrics; gives: an application of FastAPI.
"""

from __future__ import annotations

import sys
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .metrics import CONTENT_TYPE, Metrics
from .models import Models
from .refusals import Refused

EXTENSIONS = ("binary_tensor_data",)
"""Extensions of the protocol."""

_PACKAGE = sys.modules[__name__.partition(".")[0]]


def make_routes(models: Models, metrics: Metrics) -> FastAPI:
    """Return the application; all models are ready, or there would be no server."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    @app.get("/v2/")
    @app.get("/v2")
    async def describe_server() -> dict[str, Any]:
        version = _PACKAGE.__version__
        return {"name": "tvm-forest", "version": version, "extensions": EXTENSIONS}

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
