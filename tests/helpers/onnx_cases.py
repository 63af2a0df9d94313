"""ONNX models of each kind that is read, by name, each drawn when it is asked for."""

from onnx_models import MODES, Tree, classifier, drawn_trees, ensemble, regressor

PLAIN = MODES[:6]


def drawn(make, modes=PLAIN[:4], n_trees=9, targets=1, votes="one", low=-1.0, seed=3, **more):
    trees = drawn_trees(seed, n_trees, modes, targets, votes=votes, low=low)
    return lambda: make(trees, **({"targets": targets} if make is not classifier else {}), **more)


REGRESSORS = {
    **{f"mode {mode}": drawn(regressor, [mode]) for mode in PLAIN},
    **{f"mode {mode} double": drawn(regressor, [mode], dtype="float64") for mode in PLAIN},
    "LEQ and LT": drawn(regressor, ["LEQ", "LT"], n_trees=30, base=[0.3]),
    "LEQ and LT double": drawn(regressor, ["LEQ", "LT"], n_trees=30, base=[0.3], dtype="float64"),
    "GT and LT": drawn(regressor, ["GT", "LT"], base=[1e6]),
    "GTE and LT": drawn(regressor, ["GTE", "LT"], n_trees=30),
    "all modes": drawn(regressor, PLAIN, n_trees=60),
    "all modes double": drawn(regressor, PLAIN, n_trees=60, dtype="float64"),
    "node numbers from 7": drawn(regressor, first_id=7, n_trees=3),
    "opset 1": drawn(regressor, version=1),
    "a tree for each target": drawn(regressor, targets=3, base=[1.0, -2.0, 0.1]),
    "every leaf has all targets": drawn(regressor, targets=3, votes="all", base=[1.0, -2.0, 0.1]),
    "leaves have some targets": drawn(regressor, targets=3, votes="some", n_trees=20),
    "softmax": drawn(regressor, targets=3, votes="all", post_transform="SOFTMAX"),
    "logistic": drawn(regressor, targets=3, post_transform="LOGISTIC", dtype="float64"),
    "200 trees": drawn(regressor, n_trees=200),
    **{
        f"{name} of {targets}": drawn(
            regressor, PLAIN, targets=targets, votes="all", aggregate_function=name, base=base
        )
        for name in ("AVERAGE", "MIN", "MAX")
        for targets, base in ((1, [0.7]), (2, [0.7, -3.1]))
    },
    "AVERAGE of a tree for each target": drawn(
        regressor, targets=3, n_trees=10, aggregate_function="AVERAGE"
    ),
    "MIN of a tree for each target": drawn(regressor, targets=2, aggregate_function="MIN"),
    **{
        f"{name} of some targets": lambda name=name: regressor(
            drawn_trees(1, 2, PLAIN, 3, votes="all") + drawn_trees(2, 9, PLAIN, 3, votes="some"),
            targets=3,
            aggregate_function=name,
        )
        for name in ("MIN", "MAX")
    },
    "opset 5": drawn(ensemble, PLAIN, n_trees=20),
    "opset 5 double": drawn(ensemble, PLAIN, n_trees=20, dtype="float64"),
    "opset 5 targets": drawn(ensemble, votes="some", targets=3),
    "opset 5 mixed targets": drawn(ensemble, PLAIN, votes="one", targets=2, n_trees=7),
    "opset 5 average": drawn(ensemble, aggregate_function=0),
    "opset 5 min": drawn(ensemble, aggregate_function=2, dtype="float64"),
    "opset 5 max": drawn(ensemble, aggregate_function=3, targets=2),
    "opset 5 sets": drawn(ensemble, MODES, n_trees=20),
    "opset 5 sets alone": drawn(ensemble, ["MEMBER"], n_trees=20, dtype="float64"),
    "single leaves": lambda: regressor([Tree(votes={0: 0.25}), Tree(votes={0: 3.0})], base=[0.1]),
    "opset 5 single leaves": lambda: ensemble(
        [*drawn_trees(1, 3, PLAIN), Tree(votes={0: 0.25}), *drawn_trees(2, 2, PLAIN)]
    ),
}


CLASSIFIERS = {
    "three classes": drawn(classifier, targets=3, votes="all", labels=[4, -1, 9]),
    "three classes, softmax": drawn(
        classifier,
        targets=3,
        base=[0.1, 0.2, 0.3],
        labels=["b", "a", "äh"],
        post_transform="SOFTMAX",
    ),
    "three classes, logistic": drawn(
        classifier, targets=3, labels=[1, 2, 3], post_transform="LOGISTIC", dtype="float64"
    ),
    "probabilities": drawn(
        classifier, targets=3, votes="some", low=0.001, labels=[0, 1, 2], dtype="float64"
    ),
    "two classes": drawn(classifier, low=0.0, n_trees=1, seed=5, labels=[5, 7]),
    "two classes double": drawn(
        classifier, low=0.0, n_trees=1, seed=5, labels=[5, 7], dtype="float64"
    ),
    "two classes with a base": drawn(classifier, low=0.0, labels=["no", "yes"], base=[-4.0]),
    "two classes, logistic": drawn(classifier, labels=[5, 7], post_transform="LOGISTIC"),
    "two classes, logistic double": drawn(
        classifier, labels=[5, 7], post_transform="LOGISTIC", dtype="float64", base=[0.1]
    ),
    "two classes, logistic above zero": drawn(
        classifier, low=0.0, n_trees=1, seed=5, labels=[5, 7], post_transform="LOGISTIC"
    ),
    "two classes, raw": drawn(classifier, labels=[5, 7], base=[0.25]),
    "two classes, softmax": drawn(classifier, labels=[5, 7], post_transform="SOFTMAX"),
}


MODELS = REGRESSORS | CLASSIFIERS
