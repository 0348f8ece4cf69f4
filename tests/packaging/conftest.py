import pytest

from tests.packaging.first_time import build


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return the wheel and the source distribution."""
    return build(tmp_path_factory.mktemp("built"))
