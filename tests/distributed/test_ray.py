"""The example under Ray Train.

pip install -c constraints.txt -e ".[test,ray]" && pytest -m long tests/distributed/test_ray.py
"""

from importlib.util import find_spec

import pytest

from tests.distributed.test_workers import check_two_workers

LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # where it is off, as it is there, Ray stays on the loopback
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_two_workers_of_ray_train_get_the_model_of_one_process(tmp_path):
    check_two_workers("ray", tmp_path, HOME=str(tmp_path), **LOOPBACK)  # Ray leaves a token in the home directory
