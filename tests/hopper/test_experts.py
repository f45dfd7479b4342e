"""What the host reckons for experts: a Mojo program, run on the CPU."""

import pytest

from tests import artefacts


@pytest.mark.deep
def test_lists_tiles_and_parts_of_experts_are_whole():
    artefacts.run_mojo_tests("hopper/test_experts")
