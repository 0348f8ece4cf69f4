"""What benchopt's own tests skip: data sets that are not on this machine."""

import os

import pytest


def check_test_dataset_get_data(benchmark, dataset):  # noqa: ARG001  (benchopt passes both by name)
    variable = {"tabular": "GROUPDRO_DATA", "cifar-100": "GROUPDRO_CIFAR"}.get(dataset.name)
    if variable is not None and not os.environ.get(variable):
        pytest.skip(f"{variable} is not set")
