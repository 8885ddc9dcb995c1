"""All of scikit-learn's checks on the estimators as they come, and what they say."""

from sklearn.utils.estimator_checks import check_estimator

import partita as pt
from partita.runtime import cache_compilation


def main() -> None:
    cache_compilation()
    estimators = (
        pt.PartitionedRegressor(),
        pt.PartitionedClassifier(),
        pt.StreamingGPRegressor(),
        pt.StreamingGPClassifier(),
    )
    for estimator in estimators:
        found = check_estimator(estimator, on_fail=None, on_skip=None)
        passed = sum(check["status"] == "passed" for check in found)
        print(f"{estimator}: {passed} of {len(found)} checks passed")
        for check in found:
            if check["status"] != "passed":
                print(f"  {check['check_name']}: {check['status']} ({check['exception']})")


if __name__ == "__main__":
    main()
