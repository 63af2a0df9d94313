"""The command `serve`: starts a server of predictions."""

from __future__ import annotations

import argparse
import logging
import os
import re
from pathlib import Path
from typing import Any

from .. import serving
from ..errors import InputError
from ..runtime.threads import check_n_jobs
from . import LIMITS
from .opening import open_predictor

TOKEN = "TVM_FOREST_TOKEN"
"""The environment variable that may hold the token."""

_NAMED = re.compile(r"(?P<name>[\w.-]+)(:(?P<version>[\w.-]+))?=(?P<path>.+)", re.ASCII)


def run(options: argparse.Namespace) -> None:
    """Load all models, then answer requests until a signal ends the process.

    Raises:
        InputError: an option or the file of the token is wrong, or a port cannot be listened on.
        ForestError: see `open_predictor`.
    """
    logging.basicConfig(format="%(name)s: %(message)s")  # a server logs what goes wrong
    if options.access_log:
        logging.getLogger("tvm_forest.access").setLevel(logging.INFO)
    serving.check_packages(options.grpc_port is not None)
    check_n_jobs("serve", options.n_jobs)
    serving.check_port(options.port)
    serving.check_port(options.grpc_port or 0, "grpc_port")
    token = _read_token(options.token_file)
    settings = serving.Settings(
        token=token,
        allow_load=options.allow_load,
        access_log=options.access_log,
        **{name: getattr(options, name) for name, *_ in LIMITS},
    )
    from ..serving.repository import Named, Source

    def open_(path: str, wait: bool = True) -> Any:
        predictor = open_predictor(options, path, wait)
        predictor.n_jobs = options.n_jobs
        return predictor

    named = []
    for text in options.models:
        name, version, path = _read_place(text)
        source = Source(path, open_)
        named.append(Named(name, version, source.open(wait=not options.no_wait), source))
    application = serving.make_application(named, settings)
    listening = serving.open_port(options.host, options.port)
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    scheme = "http" if options.tls is None else "https"
    known = ", ".join(f"{name} ({version})" for name, version, *_ in named)

    def announce(grpc_port: int | None) -> None:
        beside = "" if grpc_port is None else f" gRPC at {host}:{grpc_port};"
        text = f"serving {known} at {scheme}://{host}:{port};{beside} Ctrl-C ends it"
        print(text, flush=True)

    serving.run(application, listening, options.tls, announce, options.grpc_port)


def _read_place(text: str) -> tuple[str, str, str]:
    """Return name, version and path from a word such as "name:version=path" or "path"."""
    found = None if Path(text).exists() else _NAMED.fullmatch(text)
    if found is None:
        return re.sub(r"[^\w.-]", "_", Path(text).stem, flags=re.ASCII), "1", text
    return found["name"], found["version"] or "1", found["path"]


def _read_token(path: Path | None) -> str | None:
    """Return the token from a file or else from the environment; None without one.

    Raises:
        InputError: the file cannot be read.
    """
    if path is None:
        return os.environ.get(TOKEN)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"serve: argument '--token-file': cannot be read: {error}") from None
