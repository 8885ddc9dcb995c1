"""The scikit-learn face."""

from partita.estimators.partitioned import PartitionedClassifier, PartitionedRegressor
from partita.estimators.streaming import StreamingGPClassifier, StreamingGPRegressor

__all__ = ["PartitionedClassifier", "PartitionedRegressor", "StreamingGPClassifier", "StreamingGPRegressor"]
