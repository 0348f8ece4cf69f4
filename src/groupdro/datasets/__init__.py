"""Public tables and images with groups, and synthetic data of the literature."""

from groupdro.datasets.images import fetch_cifar100, fetch_fashion_mnist
from groupdro.datasets.synthetic import make_gdro, make_mero
from groupdro.datasets.tables import (
    fetch_adult,
    fetch_bank_marketing,
    fetch_bike_sharing,
    fetch_communities_crime,
    fetch_diabetes130,
    fetch_german_credit,
    fetch_heart_disease,
    fetch_wine_quality,
)

__all__ = [
    "fetch_adult",
    "fetch_bank_marketing",
    "fetch_bike_sharing",
    "fetch_cifar100",
    "fetch_communities_crime",
    "fetch_diabetes130",
    "fetch_fashion_mnist",
    "fetch_german_credit",
    "fetch_heart_disease",
    "fetch_wine_quality",
    "make_gdro",
    "make_mero",
]
