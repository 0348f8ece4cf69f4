"""The example under Spark's TorchDistributor.

pip install -c constraints.txt -e ".[test,spark]" && pytest -m long tests/distributed/test_spark.py
"""

import shutil
from importlib.util import find_spec

import pytest

from tests.distributed.test_workers import check_two_workers

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("pyspark") is None or shutil.which("java") is None, reason="pyspark or java is not installed"
)
def test_two_workers_of_spark_get_the_model_of_one_process(tmp_path):
    check_two_workers("spark", tmp_path, OMP_NUM_THREADS="1", **LOOPBACK)
