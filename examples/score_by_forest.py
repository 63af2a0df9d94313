"""A program that knows nothing of tvm_forest: a model of scikit-learn scores rows by batches.

    python examples/score_by_forest.py forest 500000 1000
    python -m tvm_forest run examples/score_by_forest.py forest 500000 1000

The words are the model ("forest", "boosting"), the rows and the rows of a batch. The last line is a
hash of all scores, equal for both.
"""

import hashlib
import sys
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

kind, n_rows, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows, labels = make_classification(20_000, 20, n_informative=10, random_state=0)
if kind == "forest":
    model = RandomForestClassifier(200, max_depth=10, random_state=0, n_jobs=1)
else:
    model = GradientBoostingClassifier(n_estimators=100, max_depth=5, subsample=0.3, random_state=0)
model.fit(rows[:10_000], labels[:10_000])

draw, scores, times = np.random.default_rng(0), hashlib.sha256(), []
for _ in range(0, n_rows, size):
    batch = rows[draw.integers(0, len(rows), size)] + draw.normal(size=(size, 1))
    begin = time.perf_counter()
    scores.update(model.predict_proba(batch).tobytes())
    times.append(time.perf_counter() - begin)
late = sorted(times[len(times) // 2 :])
print(
    f"{n_rows:,} rows scored in {sum(times):.2f} s, a batch at last in {late[len(late) // 2]:.4f} s"
)
print("scores", scores.hexdigest()[:16])
