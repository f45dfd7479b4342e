"""The bench of models by MAX's engine, without MAX: its Q4_K, and what it compares logits with."""

import gguf
import numpy as np
import pytest

from bench.targets import max as target


def test_q4_k_is_what_llama_cpp_reads_and_near_to_the_floats(rng):
    x = rng.standard_normal((6, 512)).astype(np.float32) * np.float32(
        [[1], [8], [0.1], [3], [1], [2]]
    )
    packed = target.q4_k(x)
    assert packed.shape == (6, 2 * 144) and packed.dtype == np.uint8
    got = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_K).reshape(-1, 8, 32)
    groups = x.reshape(-1, 8, 32).astype(np.float64)
    least = np.minimum(groups.min(-1, keepdims=True), 0)
    step = (groups.max(-1, keepdims=True) - least) / 15
    # A code is half a step away, a scale of 6 bits half of a 63rd of the largest one.
    bound = step / 2 + (15 * step.max(1, keepdims=True) - least.min(1, keepdims=True)) / 126
    assert (np.abs(got - groups) <= 1.01 * bound).all()
    assert np.abs(got - groups).max() > 0


@pytest.mark.parametrize("system", target.SYSTEMS)
def test_logits_are_compared_with_those_of_the_weights_that_a_system_has(tmp_path, system):
    sizes = target.TINY | {"num_hidden_layers": 1}
    folder = target.write_llama(tmp_path / "llama", sizes)
    prompt = list(range(9))
    exact, size = target._exact(folder, system, prompt)
    floats, most = target._exact(folder, target.FLOATS, prompt)
    assert exact.shape == (sizes["vocab_size"],) and exact.dtype == np.float64
    moved = np.sqrt(((exact - floats) ** 2).mean() / (floats**2).mean())
    assert (size < 0.6 * most and 0.01 < moved < 1) == (system != target.FLOATS)
