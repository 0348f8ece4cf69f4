"""PyTorch networks: retraining the last layer for the worst group, and a loss for whole networks.

Requires torch (``pip install "groupdro[torch]"``).
"""

from groupdro.torch.features import Features, extract_features
from groupdro.torch.few_labels import rows_to_label
from groupdro.torch.layers import write_last_layer
from groupdro.torch.loss import GroupDROLoss
from groupdro.torch.result import LastLayerResult
from groupdro.torch.retrain import retrain_last_layer

__all__ = [
    "Features",
    "GroupDROLoss",
    "LastLayerResult",
    "extract_features",
    "retrain_last_layer",
    "rows_to_label",
    "write_last_layer",
]
