"""Compiled forests for scikit-learn 1.6 and newer.

takes: a trained model in any form, a fitted estimator; gives: ForestClassifier, ForestRegressor,
and copies of estimators in which these replace the forests.

scikit-learn is imported here and nowhere else, when one of these names is first used.
"""

from .composed import accelerate as accelerate
from .forests import ForestClassifier as ForestClassifier
from .forests import ForestRegressor as ForestRegressor
