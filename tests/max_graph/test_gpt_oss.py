"""The example of a whole decoder layer of gpt-oss against transformers' own, in float64.

What differs: experts see bfloat16 twice, which is half a unit of 2**-8 each, and all else float32.
"""

import pytest
import torch

from examples.max_gpt_oss_layer import CONFIG, expected, random_layer
from mx_kernels import max_graph
from tests import artefacts

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_both_kinds_of_layers_are_those_of_transformers(tokens):
    torch.manual_seed(tokens)
    x = torch.randn(tokens, CONFIG.hidden_size)
    outputs = max_graph.load(artefacts.path("max_graph/gpt_oss")).execute(x)
    for index, got in enumerate(outputs):
        wanted = expected(random_layer(index)[0], x, index)
        error = (torch.from_dlpack(got) - wanted).abs().max()
        assert error <= 2.0**-7 * (wanted - x).abs().max()


def test_a_window_shows_in_the_result():
    """The sliding layer is not within the bound of the same layer that sees everything."""
    x = torch.randn(40, CONFIG.hidden_size)
    layer, _ = random_layer(0)
    slides, sees_all = (expected(layer, x, index) for index in (0, 1))
    assert (slides - sees_all).abs().max() > 2.0**-5 * (slides - x).abs().max()
