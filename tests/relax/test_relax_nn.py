"""Forests as modules of TVM's `relax.frontend.nn`, with their arrays as parameters."""

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec

import tvm_forest
import tvm_forest.relax
from forests import drawn_forest
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.target import Target

BASELINE = {"kind": "llvm", "mcpu": "x86-64"}
BATCHES = (0, 1, 7, 64, 600)
OUTPUTS = ("margin", "probability", "label", "leaf", "per_tree")


class Net(nn.Module):
    """A forest beside a layer of TVM."""

    def __init__(self, trees: nn.Module, n_features: int = 4) -> None:
        super().__init__()
        self.trees = trees
        self.dense = nn.Linear(n_features, 3)

    def forward(self, x: nn.Tensor) -> Any:
        predicted = self.trees(x)
        several = isinstance(predicted, tuple)
        return (*(predicted if several else (predicted,)), self.dense(x))


def classifier(**fields: Any) -> Any:
    about = {"link": "sigmoid", "labels": np.array([3, 7]), "label_rule": "half"}
    return drawn_forest(12, 5, **(about | fields))


def schedules(forest: Any) -> dict[int, Any]:
    """Return two that take little time to compile."""
    sch = tvm_forest.new_schedule(forest)
    return {1: sch, 64: sch.represent_as("sparse").tile("batch", "b0", "b1", 8)}


def simple(forest: Any, **options: Any) -> nn.Module:
    return tvm_forest.relax.nn.ParameterForest(forest, schedule=schedules(forest), **options)


def constant(forest: Any, **options: Any) -> nn.Module:
    return tvm_forest.relax.nn.ConstantForest(forest, schedule=schedules(forest), **options)


def export(net: nn.Module, n: int | str = "n", width: int = 4) -> Any:
    return net.export_tvm(spec={"forward": {"x": spec.Tensor([n, width], "float32")}})


def start(mod: tvm.IRModule, target: Any = BASELINE, **options: Any) -> relax.VirtualMachine:
    built = tvm.compile(mod, tvm.target.Target(target), **options)
    return relax.VirtualMachine(built, tvm.cpu())


def weights(params: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    drawn = lambda p: tvm.runtime.tensor(rng.normal(size=p.shape).astype(p.dtype))  # noqa: E731
    return [drawn(p) if p.data is None else p.data for _, p in params]


@functools.cache
def build(forest: Any) -> Any:
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


def predicted(forest: Any, rows: Any) -> dict[str, Any]:
    predictor = build(forest)
    return {
        "margin": predictor.predict_margin(rows)[:, None],
        "probability": predictor.predict_proba(rows),
        "label": predictor.predict(rows),
        "leaf": predictor.apply(rows),
        "per_tree": predictor.predict_per_tree(rows),
    }


def assert_same_bits(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "make",
    [simple, constant, pytest.param(tvm_forest.relax.nn.ParameterForest, marks=pytest.mark.long)],
    ids=["parameters", "constant", "by_default"],
)
@pytest.mark.cases(1, others="long")
def test_outputs_are_those_of_a_predictor(make: Any) -> None:
    forest = classifier()
    mod, params = export(Net(make(forest, outputs=OUTPUTS)))
    vm, given = start(mod), weights(params)
    for n in BATCHES:
        rows = hard_rows(forest, max(n, 1))[:n]
        *got, dense = vm["forward"](tvm.runtime.tensor(rows), *given)
        assert tuple(dense.shape) == (n, 3)
        wanted = predicted(forest, np.concatenate([rows, np.zeros((1, 4), rows.dtype)]))
        for name, values in zip(OUTPUTS, got, strict=True):
            assert_same_bits(values.numpy(), wanted[name][:n])


@pytest.mark.cases(1)
@pytest.mark.parametrize("n", BATCHES)
def test_a_batch_may_be_of_one_size(n: int) -> None:
    forest = classifier()
    mod, params = export(Net(simple(forest, outputs="margin")), n)
    rows = hard_rows(forest, max(n, 1))[:n]
    got = start(mod)["forward"](tvm.runtime.tensor(rows), *weights(params))[0].numpy()
    wanted = build(forest).predict_margin(hard_rows(forest, max(n, 1)))[:n]
    assert_same_bits(got, wanted[:, None])


def test_arrays_are_parameters_by_their_names() -> None:
    forest = classifier()
    schedule = tvm_forest.new_schedule(forest).represent_as("sparse")
    _, params = export(Net(tvm_forest.relax.nn.ParameterForest(forest, schedule=schedule)))
    names = dict(params)
    assert {"trees.nodes", "trees.base", "dense.weight", "dense.bias"} <= set(names)
    assert all((p.data is None) == name.startswith("dense.") for name, p in params)


def test_parameters_decide_what_is_computed() -> None:
    forest, other = classifier(), classifier(seed=0, base=[0.75])
    layer = simple(forest, outputs="margin")
    mod, params = export(Net(layer))
    vm, rows = start(mod), hard_rows(forest, 7)
    swapped = [(n, p) for n, p in params if n.startswith("trees.base")]
    given = [
        tvm.runtime.tensor(np.array([0.75], "float32")) if (name, p) in swapped else x
        for (name, p), x in zip(params, weights(params), strict=True)
    ]
    got = vm["forward"](tvm.runtime.tensor(rows), *given)[0].numpy()
    assert_same_bits(got, build(other).predict_margin(rows)[:, None])


def test_casting_a_net_leaves_the_model_alone() -> None:
    net = Net(simple(classifier()))
    net.to("float16")
    dtypes = {name: p.dtype for name, p in net.named_parameters()}
    assert dtypes["dense.weight"] == "float16"
    assert "float16" not in {dtypes[name] for name in dtypes if name.startswith("trees.")}


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64"])
def test_a_parameter_holds_every_dtype(dtype: str) -> None:
    array = np.array([[0, 1], [1, 1]], dtype)
    layer = simple(classifier())
    parameter = getattr(layer, layer._add_parameter("more", array))
    assert parameter.dtype == dtype
    assert_same_bits(parameter.data.numpy(), array)


@pytest.mark.parametrize(
    ("target", "lacks"),
    [
        (BASELINE, "avx512"),
        ("llvm", "avx512"),
        ({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["-avx512f"]}, "avx512f"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "64bit"),
        ({"kind": "cuda", "arch": "sm_80"}, "a CPU"),
    ],
)
def test_code_for_another_machine_is_refused(target: Any, lacks: str) -> None:
    layer = simple(classifier())
    layer._made_for = '{"kind": "llvm", "mcpu": "x86-64-v4"}'  # as on a machine that has it
    mod, _ = export(Net(layer))
    with pytest.raises(InputError, match=f"check_target: .*x86-64-v4.* lacks .*{lacks}"):
        tvm.compile(mod, tvm.target.Target(target))


def test_code_for_the_baseline_is_compiled_for_newer_cpus() -> None:
    mod, _ = export(Net(simple(classifier())))
    with tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"}):
        legal = relax.transform.LegalizeOps()(mod)
    assert "check_target" in mod.script(show_meta=False)
    assert "check_target" not in legal.script(show_meta=False)


def test_the_check_is_printed_and_parsed() -> None:
    rows = relax.Var("rows", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [rows]):
        call = tvm_forest.relax.check_target.check_target(rows, "{}")
        builder.emit_func_output(builder.emit(call))
    mod = builder.get()
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"outputs": "margins"}, InputError, "'margins' is unknown"),
        ({"target": "no such target"}, InputError, "argument 'target': TVM refuses"),
        ({"target": Target("cuda")}, UnsupportedModel, "ConstantForest"),
    ],
)
def test_a_wrong_argument_is_refused(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        tvm_forest.relax.nn.ParameterForest(classifier(), **options)


@pytest.mark.parametrize(("width", "dtype"), [(5, "float32"), (4, "float64")])
def test_other_rows_are_refused(width: int, dtype: str) -> None:
    layer = simple(classifier())
    with pytest.raises(InputError, match=r"expected .*\(n, 4\) float32"):
        layer.export_tvm(spec={"forward": {"rows": spec.Tensor(["n", width], dtype)}})
