"""Forests in modules of PyTorch, and these imported into Relax."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_forest
import tvm_forest.relax
from forests import drawn_forest
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
TorchForest = tvm_forest.relax.torch.TorchForest
import_program = tvm_forest.relax.torch.from_exported_program

BATCHES = (0, 1, 7, 64, 600)
OUTPUTS = ("margin", "value", "probability", "label", "leaf", "per_tree")
ANY_BATCH = {"rows": {0: torch.export.Dim("n", min=0)}}


class Net(torch.nn.Module):
    """A forest between what PyTorch has itself."""

    def __init__(self, forest: Any, outputs: Any = OUTPUTS) -> None:
        super().__init__()
        self.trees = TorchForest(forest, outputs)
        self.after = TorchForest(forest)
        self.dense = torch.nn.Linear(2, 3)

    def forward(self, rows: Any) -> Any:
        several = self.trees(rows)
        return (*several, self.dense(several[2]), self.after(rows * 2), self.after(rows))


def classifier(**fields: Any) -> Any:
    about = {"link": "sigmoid", "labels": np.array(["no", "yes"]), "label_rule": "half"}
    return drawn_forest(12, 5, **(about | fields))


def export(net: Any, rows: Any, **options: Any) -> Any:
    return torch.export.export(net.eval(), (torch.from_numpy(rows),), **options)


def start(mod: tvm.IRModule) -> Any:
    return relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]


def assert_same_bits(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.tobytes() == wanted.tobytes()


def test_a_module_gives_what_a_predictor_gives() -> None:
    forest = classifier()
    rows, predictor = hard_rows(forest, 600), tvm_forest.build(forest)
    got = dict(zip(OUTPUTS, TorchForest(forest, OUTPUTS)(torch.from_numpy(rows)), strict=True))
    probability = predictor.predict_proba(rows)
    wanted = {
        "margin": predictor.predict_margin(rows)[:, None],
        "value": probability[:, 1:],
        "probability": probability,
        "label": (predictor.predict(rows) == "yes").astype(np.int64),
        "leaf": predictor.apply(rows),
        "per_tree": predictor.predict_per_tree(rows),
    }
    for name in OUTPUTS:
        assert_same_bits(got[name].numpy(), np.ascontiguousarray(wanted[name]))


def test_the_operator_keeps_the_rules_of_pytorch() -> None:
    layer, rows = TorchForest(classifier(), OUTPUTS), torch.rand(7, 4)
    given = (rows, layer.model, layer.outputs, layer.types)
    torch.library.opcheck(tvm_forest.relax.torch.predict_forest, given)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_net_is_imported_whole(strict: bool) -> None:
    forest = classifier()
    net = Net(forest)
    program = export(net, hard_rows(forest, 7), dynamic_shapes=ANY_BATCH, strict=strict)
    mod = import_program(program)
    assert mod.script(show_meta=False).count("R.tvm_forest.predict(") == 3
    run = start(mod)
    for n in BATCHES:
        rows = hard_rows(forest, max(n, 1))[:n]
        with torch.no_grad():
            wanted = [x.numpy() for x in net(torch.from_numpy(rows))]
        got = [x.numpy() for x in run(tvm.runtime.tensor(rows))]
        for place in (*range(len(OUTPUTS)), -2, -1):
            assert_same_bits(got[place], wanted[place])
        np.testing.assert_allclose(got[-3], wanted[-3], rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "options", [{}, {"keep_params_as_input": True}, {"run_ep_decomposition": False}], ids=str
)
def test_a_model_is_a_constant_whatever_becomes_of_parameters(options: dict[str, bool]) -> None:
    forest = classifier()
    mod = import_program(export(Net(forest), hard_rows(forest, 7)), **options)
    kept = 2 if "keep_params_as_input" in options else 0  # of the dense layer
    assert len(mod["main"].params) == 1 + kept


def test_a_linked_net_gives_the_same() -> None:
    forest = classifier()
    net, rows = Net(forest), hard_rows(forest, 7)
    mod = tvm_forest.relax.LinkForests()(import_program(export(net, rows)))
    got = start(mod)(tvm.runtime.tensor(rows))[0].numpy()
    assert_same_bits(got, net(torch.from_numpy(rows))[0].numpy())


def test_saved_programs_and_states_hold_the_model(tmp_path: Any) -> None:
    forest, other = classifier(), classifier(base=[0.75])
    rows, path = hard_rows(forest, 7), tmp_path / "net.pt2"
    torch.export.save(export(TorchForest(forest), rows), path)
    got = start(import_program(torch.export.load(path)))(tvm.runtime.tensor(rows))
    here = TorchForest(forest)
    assert_same_bits(got[0].numpy(), here(torch.from_numpy(rows)).numpy())
    here.load_state_dict(TorchForest(other).state_dict())
    wanted = TorchForest(other)(torch.from_numpy(rows)).numpy()
    assert_same_bits(here(torch.from_numpy(rows)).numpy(), wanted)


def test_casting_a_net_leaves_the_model_alone() -> None:
    layer = TorchForest(classifier())
    before = layer.model.clone()
    assert torch.equal(layer.double().half().model, before)


def test_converters_of_a_user_are_heard() -> None:
    forest, rows, seen = classifier(), hard_rows(classifier(), 7), []

    def convert(node: Any, importer: Any) -> Any:
        seen.append(node.name)
        return importer.block_builder.emit(relax.op.sin(importer.env[node.args[0]]))

    class Sine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trees = TorchForest(forest)

        def forward(self, rows: Any) -> Any:
            return torch.sin(self.trees(rows))

    import_program(export(Sine(), rows), custom_convert_map={"sin.default": convert})
    assert seen == ["sin"]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows", [torch.rand(3, 5), torch.rand(3, 4, dtype=torch.float64), torch.rand(4)], ids=str
)
def test_other_rows_are_refused(rows: Any) -> None:
    with pytest.raises(InputError, match=r"TorchForest: argument 'rows': expected \(n, 4\)"):
        TorchForest(classifier())(rows)


def test_outputs_that_there_are_not_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="gives no label"):
        TorchForest(drawn_forest(3, 3), "label")


def test_a_damaged_model_is_refused_here_and_by_the_importer() -> None:
    layer, rows = TorchForest(classifier()), hard_rows(classifier(), 7)
    layer.model[len(layer.model) // 2] ^= 1
    with pytest.raises(ModelFormatError):
        layer(torch.from_numpy(rows))
    with pytest.raises(ModelFormatError):
        import_program(export(layer, rows))


def test_a_model_that_was_changed_in_its_place_is_read_anew() -> None:
    layer, rows = TorchForest(classifier()), torch.from_numpy(hard_rows(classifier(), 7))
    first = layer(rows)
    other = TorchForest(classifier(base=[0.75]))
    layer.model.numpy()[:] = other.model.numpy()  # PyTorch does not notice
    assert torch.equal(layer(rows), other(rows))
    assert not torch.equal(layer(rows), first)


def test_a_model_with_other_outputs_is_refused() -> None:
    layer, rows = TorchForest(classifier(), "leaf"), hard_rows(classifier(), 7)
    layer.model = TorchForest(drawn_forest(5, 3)).model
    with pytest.raises(ModelFormatError, match="made for"):
        layer(torch.from_numpy(rows))
    with pytest.raises(ModelFormatError, match="made for"):
        import_program(export(layer, rows))


def test_a_model_that_is_computed_is_refused() -> None:
    class Flipped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trees = TorchForest(classifier())

        def forward(self, rows: Any) -> Any:
            model = self.trees.model ^ 0
            given = (rows, model, self.trees.outputs, self.trees.types)
            return torch.ops.tvm_forest.predict_forest(*given)[0]

    program = export(Flipped(), hard_rows(classifier(), 7))
    with pytest.raises(ModelFormatError, match="is no buffer of the program"):
        import_program(program)


def test_there_is_no_gradient() -> None:
    rows = torch.rand(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        TorchForest(classifier())(rows).sum().backward()
