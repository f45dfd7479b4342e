"""The plugin's methods for layers of vLLM, without an engine: see the claims in `dispatch`."""

import json

import pytest

from bench.serving.environment import said
from tests.serving.dispatch import CLAIMS
from tests.serving.dispatch import __file__ as DISPATCH

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def found(python):
    return json.loads(said([python, DISPATCH]).splitlines()[-1])


@pytest.mark.parametrize("name", CLAIMS)
def test_the_plugin_claims(found, name):
    assert found.keys() == CLAIMS.keys()
    assert found[name] is None, found[name]
