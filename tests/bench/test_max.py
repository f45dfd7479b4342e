"""The bench of models by MAX's engine, without MAX: its Q4_K, and what it compares logits with."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from bench.rows import Origin
from bench.targets import max as target
from mx_kernels.integrations.transformers import from_pretrained


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


@pytest.mark.parametrize("system", target.SYSTEMS, ids=lambda system: system.name)
def test_logits_are_compared_with_those_of_the_weights_that_a_system_has(tmp_path, system):
    sizes = target.TINY | {"num_hidden_layers": 1}
    folder = target.write_llama(tmp_path / "llama", sizes)
    prompt = list(range(9))
    exact, size = target._exact(folder, system, prompt)
    floats, most = target._exact(folder, target.FLOATS, prompt)
    assert exact.shape == (sizes["vocab_size"],) and exact.dtype == np.float64
    moved = np.sqrt(((exact - floats) ** 2).mean() / (floats**2).mean())
    is_packed = system not in (target.FLOATS, target.HALVES)
    assert (size < 0.6 * most and 0.01 < moved < 1) == is_packed


def test_logits_of_experts_are_near_to_those_of_our_kernels(tmp_path):
    sizes = {"layers": 2, "experts": 4, "active": 2, "hidden": 64, "inner": 32, "heads": 2}
    sizes |= {"kv_heads": 1, "head": 64, "vocabulary": 128}
    folder = target.write_gpt_oss(tmp_path / "gpt-oss", sizes)
    prompt = list(range(9))
    for system in target.OF_EXPERTS[:2]:
        exact, _ = target._exact(folder, system, prompt)
        model = from_pretrained(folder, activations="bf16", rest=system.rest, dtype=torch.float32)
        with torch.inference_mode():
            got = model(torch.tensor([prompt])).logits[0, -1].numpy()
        # bfloat16 has 8 bits, and a layer rounds some four times.
        assert np.abs(got - exact).max() < 8 * 2**-8 * exact.std()


def test_a_system_that_fails_says_so_and_what_is_compiled_is_kept(tmp_path, monkeypatch):
    started = []

    def said(command, timeout):
        job = json.loads(command[-1])
        if "quantization_encoding" in job["flags"]:
            raise AssertionError("max: it has no such encoding")
        started.append(set(job["flags"]) & {"export_mefs", "precompiled_mefs"})
        found = {"start_seconds": 9, "prompt_seconds": 1, "new_seconds": 1, "resident_bytes": 1e6}
        (Path(job["out"]) / "found.json").write_text(json.dumps(found))
        np.save(Path(job["out"]) / "logits.npy", np.ones((1, target.NEW, 512)))

    monkeypatch.setattr(target, "cache", lambda: tmp_path)
    monkeypatch.setattr(target, "python_with_max", lambda: Path("python"))
    monkeypatch.setattr(target, "said", said)
    origin, lines = Origin("a CPU", "a commit", "a day"), []
    for of_run in (["export_mefs"] * 3 + ["precompiled_mefs"] * 3, ["precompiled_mefs"] * 3):
        started.clear()
        rows = list(target.measure_rows(origin, lines.append, quick=True))
        assert [name for names in started for name in names] == of_run
        failed = [row.system for row in rows if row.failure]
        assert failed == [target.HALVES.name, target.Q4_K.name]
        assert all(row.tokens_per_s == target.NEW - 1 for row in rows if not row.failure)
    assert "it has no such encoding" in target.text(rows)
