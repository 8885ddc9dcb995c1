"""All of scikit-learn's checks on the estimators as they come, and what they say: `partita study estimator-checks`."""

from sklearn.utils.estimator_checks import check_estimator

import partita as pt
from partita.foundation.compilation import cache_compilations
from partita.studies.options import Say


def check_estimators(say: Say) -> None:
    cache_compilations()
    estimators = (
        pt.PartitionedRegressor(),
        pt.PartitionedClassifier(),
        pt.StreamingGPRegressor(),
        pt.StreamingGPClassifier(),
    )
    for estimator in estimators:
        found = check_estimator(estimator, on_fail=None, on_skip=None)
        passed = sum(check["status"] == "passed" for check in found)
        say(f"{estimator}: {passed} of {len(found)} checks passed")
        for check in found:
            if check["status"] != "passed":
                say(f"  {check['check_name']}: {check['status']} ({check['exception']})")
