"""What a field test found wrong stays right."""

import pytest

from tests.estimators.field_cases_inputs import CASES, LONG


@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused(name):
    assert CASES[name]()


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_what_takes_longer_is_right_or_refused(name):
    assert LONG[name]()
