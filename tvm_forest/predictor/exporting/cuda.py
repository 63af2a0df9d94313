"""Writes a predictor's kernels for NVIDIA GPUs, and C code that launches them, for `cuda.c`.

takes: DevicePredictor; gives: code of the kernels, and their launch plans as C, for example:

    allocate part: (n + 7) // 8 * 416 bytes        static room r0;
                                                   if (enlarge(&r0, ...)) return -1;
    predict_kernel<<<...>>>(base, part, n)         { pointer a0 = at[1]; ... launch(0, ...) }
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...layouts.protocol import takes_memberships
from ...runtime.gpu import cuda_compiler
from ...runtime.gpu.plan import Allocate, HostLoop, HostStep, Launch, Plan, SizeExpr
from ...schedule_prims.batches import name_functions
from .data import Data

if TYPE_CHECKING:
    from ..predictor import Predictor

C_OPERATORS = {"and": "&&", "or": "||"}
C_FUNCTIONS = {"//": "floor_div", "%": "floor_mod", "min": "least", "max": "most", "not": "!"}


class CNames(NamedTuple):
    """C expressions for the names in a launch plan.

    Attributes:
        pointers: by name of an array, its address on the GPU.
        arrays: by name of a model's array, its copy on the host.
        numbers: for "n", the number of rows, and for each loop variable, its C variable.
        kernels: by name of a kernel, its number.
    """

    pointers: Mapping[str, str]
    arrays: Mapping[str, str]
    numbers: Mapping[str, str]
    kernels: Mapping[str, int]


def write(predictor: Predictor, data: Data, prefix: str, folder: Path) -> dict[str, Any]:
    """Write the launch plans, and return macros by name.

    Args:
        predictor: a predictor for the target "cuda"; its kernels are compiled for all GPUs unless
            it has an architecture.
        data: gets the arrays of the model and the code of the kernels.
        prefix: beginning of the C functions' names.
        folder: folder for "plans.h".

    Raises:
        DeviceError: there is no compiler for CUDA, and the kernels are not compiled yet.
    """
    library = predictor.library
    image = data.place(library.image(library.architecture or cuda_compiler.ANY))
    starts = name_functions(predictor.schedules)
    plans = {name: library.plans[name] for name in starts.values()}
    launched = [step.kernel for plan in plans.values() for step in plan.launches]
    kernels = {name: number for number, name in enumerate(dict.fromkeys(launched))}
    numbers = {name: [data.number(x.numpy()) for x in predictor.arguments[name]] for name in plans}
    texts = []
    for number, (name, plan) in enumerate(plans.items()):
        names = _names(plan, numbers[name], data, kernels)
        texts.append(f"static int run_{number}(const pointer *at, int64_t n) {{\n")
        texts += [*_steps_in_c(plan.steps, names, itertools.count()), "return 0;\n}\n\n"]
    places = {name: number for number, name in enumerate(plans)}
    schedules, forest = predictor.schedules, predictor.forest
    table = ", ".join(
        f"{{{smallest}, {int(takes_memberships(schedules[smallest].layout, forest))}, "
        f"run_{places[name]}}}"
        for smallest, name in starts.items()
    )
    kind = "struct { int64_t smallest; int is_wide; int (*run)(const pointer *, int64_t); }"
    texts.append(f"static const {kind} plans[] = {{{table}}};\n")
    (folder / "plans.h").write_text("".join(texts), encoding="utf-8")
    sizes = zip(data.places, data.arrays, strict=True)
    return {
        "CALLS": '"cuda.c"',
        "DEVICE": dict(predictor.target.options).get("device", 0),
        "EXPLAINS": 0,
        "IMAGE": image,
        "KERNELS(K)": " ".join(f"K({name})" for name in kernels),
        "ARRAYS(A)": " ".join(f"A({place}, {array.nbytes})" for place, array in sizes),
        "ABILITIES(A)": "",
    }


def _names(plan: Plan, numbers: list[int], data: Data, kernels: Mapping[str, int]) -> CNames:
    rows, *others = plan.parameters
    model, results = others[: len(numbers)], others[len(numbers) :]
    pointers = {rows: "at[0]"}
    pointers |= {name: f"at[{1 + k}]" for name, k in zip(model, numbers, strict=True)}
    pointers |= {name: f"at[1 + ARRAY_COUNT + {k}]" for k, name in enumerate(results)}
    arrays = {
        name: f"((const {data.arrays[k].dtype}_t *)(tvm_forest_data + {data.places[k]}))"
        for name, k in zip(model, numbers, strict=True)
    }
    return CNames(pointers, arrays, {"n": "n"}, kernels)


def _steps_in_c(steps: tuple[HostStep, ...], names: CNames, count: Iterator[int]) -> Iterator[str]:
    """Yield the steps of a plan as C; `count` numbers the variables that they declare."""
    for step in steps:
        if isinstance(step, Allocate):
            room = f"r{next(count)}"
            yield f"static room {room};\n"
            yield f"if (enlarge(&{room}, {expression_in_c(step.size, names)})) return -1;\n"
            names = names._replace(pointers={**names.pointers, step.name: f"{room}.at"})
        elif isinstance(step, HostLoop):
            k = next(count)
            inside = names._replace(numbers={**names.numbers, step.variable: f"v{k}"})
            end = expression_in_c(step.count, names)
            yield f"for (int64_t v{k} = 0, e{k} = {end}; v{k} < e{k}; ++v{k}) {{\n"
            yield from _steps_in_c(step.steps, inside, count)
            yield "}\n"
        else:
            yield _launch_in_c(step, names)


def _launch_in_c(step: Launch, names: CNames) -> str:
    arguments = ""
    for k, (kind, expr) in enumerate(step.arguments):
        if kind == "pointer":
            arguments += f"pointer a{k} = {names.pointers[expr]};\n"
        else:
            arguments += f"{kind}_t a{k} = {expression_in_c(expr, names)};\n"
    grid, block = (
        f"(int64_t[]){{{', '.join(expression_in_c(x, names) for x in sizes)}}}"
        for sizes in (step.grid, step.block)
    )
    places = ", ".join([*(f"&a{k}" for k in range(len(step.arguments))), "NULL"])
    kernel, shared = names.kernels[step.kernel], expression_in_c(step.shared, names)
    launch = f"launch({kernel}, {grid}, {block}, {shared}, (void *[]){{{places}}})"
    return f"{{\n{arguments}if ({launch}) return -1;\n}}\n"


def expression_in_c(expr: SizeExpr, names: CNames) -> str:
    """Return a size, such as `("//", ("+", "n", 7), 8)`, as a C expression."""
    if isinstance(expr, str):
        return names.numbers[expr]
    if isinstance(expr, int):
        return f"INT64_C({int(expr)})"
    name, *operands = expr
    if name == "[]":
        array, index = operands
        return f"{names.arrays[array]}[{expression_in_c(index, names)}]"
    texts: list[Any] = [expression_in_c(x, names) for x in operands]
    if name == "if":
        return "({} ? {} : {})".format(*texts)
    if name in C_FUNCTIONS:
        return f"{C_FUNCTIONS[name]}({', '.join(texts)})"
    return f"({f' {C_OPERATORS.get(name, name)} '.join(texts)})"
