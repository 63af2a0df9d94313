"""A program that knows nothing of tvm_forest: a random forest scores rows, batch by batch.

    python examples/score_by_forest.py
    python -m tvm_forest run examples/score_by_forest.py

The last line is a hash of all scores, equal for both.
"""

import hashlib
import sys
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

N_ROWS, BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, 10_000

rows, labels = make_classification(20_000, 20, n_informative=10, random_state=0)
model = RandomForestClassifier(200, max_depth=10, random_state=0, n_jobs=1)
model.fit(rows[:10_000], labels[:10_000])

draw, scores, begin = np.random.default_rng(0), hashlib.sha256(), time.perf_counter()
seconds = []
for _ in range(0, N_ROWS, BATCH):
    batch = rows[draw.integers(0, len(rows), BATCH)] + draw.normal(size=(BATCH, 1))
    start = time.perf_counter()
    scores.update(model.predict_proba(batch).tobytes())
    seconds.append(time.perf_counter() - start)
total = time.perf_counter() - begin
print(
    f"{N_ROWS:,} rows in {total:.2f} s; a batch at first {seconds[0]:.3f} s, at last "
    f"{sorted(seconds[-20:])[10 if len(seconds) >= 20 else 0]:.3f} s"
)
print("scores", scores.hexdigest()[:16])
