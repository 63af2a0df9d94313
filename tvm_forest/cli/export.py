"""The command `export`: writes a model as a C library, or as a package for another language."""

import argparse

from ..errors import InputError
from ..predictor import exporting
from ..predictor.exporting.languages import LANGUAGES, WEB_TARGET
from ..schedule_prims import Schedule
from ..target import parse_target
from .opening import open_predictor


def run(options: argparse.Namespace) -> None:
    """Write a library and its C header, a package of sources, or a folder for a language.

    Raises:
        InputError: no path was given.
        ForestError: see `open_predictor` and `Predictor.export_library`.
    """
    if options.library is None:
        raise InputError("export: argument 'library': missing; name it, or a folder by --output")
    to = options.to
    if options.target is None and to in LANGUAGES and LANGUAGES[to].is_web:
        options.target = WEB_TARGET
    target = parse_target(options.target or "llvm")
    explains = options.contributions
    exporting.check_wishes(  # before it is compiled
        target, options.library, options.prefix, to=to, contributions=explains
    )
    is_plain = target.kind == "llvm" and to in LANGUAGES and LANGUAGES[to].is_plain
    schedule = _leave if is_plain else None  # plain C is lowered by a schedule of its own
    predictor = open_predictor(options, schedule=schedule)
    predictor.export_library(options.library, options.prefix, to=to, contributions=explains)
    print(*exporting.list_files(options.library, to), sep=", ")


def _leave(schedule: Schedule) -> Schedule:
    """Return a schedule unchanged: without directives, it takes the least time to compile."""
    return schedule
