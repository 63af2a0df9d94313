"""The package as an engine of the benchmark, and forests by tensors, which read its models.

takes: Model; gives: Engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.engines.engine import EVERY, Engine
from benchmarks.models import Model
from benchmarks.timing import cores


class Ours(Engine):
    """The package.

    `ours:FILE.json` and `ours:NAME` build with a schedule, `ours:mcpu=x86-64-v3` for another CPU.
    """

    packages = ("tvm_forest", "tvm")
    takes = (*EVERY, "catboost")

    def __init__(self, model: Model, argument: str) -> None:
        import tvm_forest

        source = model.load() if model.library == "scikit-learn" else model.path
        forest = tvm_forest.load(source)
        option, _, cpu = argument.partition("=")
        target: Any = {"kind": "llvm", "mcpu": cpu} if option == "mcpu" else "llvm"
        sch = _schedule(argument, forest) if argument and option != "mcpu" else None
        self.must_equal = sch is None or sch.keeps_order
        self.predictor = tvm_forest.build(forest, target, sch, exact=self.must_equal)
        probability = model.gives == "probability"
        self.predict = self.predictor.predict_proba if probability else self.predictor.predict
        if model.library == "catboost":  # whose margins are asked for
            self.predict = self.predictor.predict_margin
        self.margin = self.predict if probability else self.predictor.predict_margin

    def use_threads(self, count: int) -> None:
        # As many as there are: the predictor decides, as it does for callers who say nothing.
        self.predictor.n_jobs = None if count >= cores() else count

    def model_bytes(self) -> int:
        return self.predictor.model_bytes


def _schedule(argument: str, forest: Any) -> Any:
    import tvm_forest

    if argument.endswith(".json"):
        return tvm_forest.Schedule.from_json(Path(argument).read_text(encoding="utf-8"))
    from benchmarks.rewrites.layouts import LAYOUTS
    from benchmarks.rewrites.schedules import SCHEDULES, blocked

    start = tvm_forest.new_schedule(forest)
    if argument in LAYOUTS:
        return blocked(LAYOUTS[argument](start)).interleave("b1", 8)
    if argument not in SCHEDULES:
        known = ", ".join((*SCHEDULES, *LAYOUTS))
        raise ValueError(f"'{argument}' is no .json file and no schedule (have: {known})")
    return SCHEDULES[argument](start)


class TorchTrees(Engine):
    """Hummingbird's tree traversal in PyTorch, which `pip install torch` adds; see there."""

    packages = ("torch", "tvm_forest")
    takes = ("xgboost",)
    dtype = "float32"
    way = "trees"

    def __init__(self, model: Model, argument: str) -> None:
        import tvm_forest
        from benchmarks.engines.tensor_forests import TensorForest

        tensors = TensorForest(tvm_forest.load(model.path), self.way)
        self.predict, self.margin = tensors.predict, tensors.margin

    def use_threads(self, count: int) -> None:
        import torch

        torch.set_num_threads(count)


class TorchGemm(TorchTrees):
    """Hummingbird's matrix products."""

    way = "gemm"


class TorchPerfect(TorchTrees):
    """Hummingbird's traversal of complete trees."""

    way = "perfect"
