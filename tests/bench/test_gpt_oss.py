"""The benchmark of gpt-oss writes the published layout, and measures what it says."""

import json
import subprocess
import sys

import gguf
import numpy as np
import pytest

import oracle
import tensorfiles
from bench import device
from bench.gpt_oss import write_checkpoint
from bench.gpt_oss.__main__ import GptOssRow, error_of, row_of
from bench.gpt_oss.checkpoint import SCALES, Sizes, sizes_of
from bench.gpt_oss.gguf_file import NAMES, OUTER, write_gguf
from bench.gpt_oss.worker import Job, Measured
from bench.rows import read_csv
from bench.serving.environment import DONE, LLAMA_CPP
from mx_kernels._core import builds
from tests.tiers import deep

SMALL = {"experts": 4, "active": 2, "hidden": 64, "inner": 96, "vocabulary": 128}


def test_a_checkpoint_has_the_published_names_and_shapes(tmp_path):
    folder = write_checkpoint(tmp_path / "model", 2, **SMALL)
    tensors, config = tensorfiles.read_folder(folder)
    experts = {
        name.removeprefix("model.layers.1.mlp.experts."): (t.dtype.name, t.shape)
        for name, t in tensors.items()
        if name.startswith("model.layers.1.mlp.experts.")
    }
    assert experts == {
        "gate_up_proj_blocks": ("uint8", (4, 192, 2, 16)),
        "gate_up_proj_scales": ("uint8", (4, 192, 2)),
        "gate_up_proj_bias": ("bfloat16", (4, 192)),
        "down_proj_blocks": ("uint8", (4, 64, 3, 16)),
        "down_proj_scales": ("uint8", (4, 64, 3)),
        "down_proj_bias": ("bfloat16", (4, 64)),
    }
    assert len(tensors) == 3 + 2 * 19
    assert config["quantization_config"]["quant_method"] == "mxfp4"
    scales = tensors["model.layers.0.mlp.experts.down_proj_scales"]
    assert (scales.min(), scales.max()) == SCALES
    codes = tensors["model.layers.0.mlp.experts.down_proj_blocks"]
    assert len(set(codes.ravel().tolist())) == 256


def test_the_sizes_of_a_checkpoint_are_those_it_was_written_with(tmp_path):
    folder = write_checkpoint(tmp_path / "model", 2, **SMALL)
    assert sizes_of(folder, 1) == Sizes(1, **SMALL)


def test_a_checkpoint_is_the_same_in_each_call_and_replaces_none(tmp_path):
    first, second = (write_checkpoint(tmp_path / name, 1, **SMALL) for name in "ab")
    name = "model.safetensors"
    assert (first / name).read_bytes() == (second / name).read_bytes()
    with pytest.raises(FileExistsError, match="a checkpoint"):
        write_checkpoint(first, 1, **SMALL)


def test_fewer_layers_are_scaled_but_for_the_head():
    job = Job("transformers", None, "", layers=4, threads=2, prompt=256, tokens=32, repeats=1)
    found = Measured(1, 2, 3, prompt_s=5.0, tokens_s=32 * 0.5, products_s=0.3, head_s=0.1)
    row = row_of(job, 24, found)
    assert row.prompt_tokens_per_s == pytest.approx(256 / (0.1 + 4.9 * 6))
    assert row.tokens_per_s == pytest.approx(1 / (0.1 + 0.4 * 6))
    assert row.products_per_s == pytest.approx(1 / (0.1 + 0.2 * 6))
    whole = row_of(job, 4, found)
    assert whole.tokens_per_s == pytest.approx(1 / 0.5)


def test_a_file_for_llama_cpp_has_the_numbers_of_the_checkpoint(tmp_path):
    """By GGUF's own library; gates and ups are apart, and Q8_0 is off by half a step at most."""
    folder = write_checkpoint(tmp_path / "model", 2, **SMALL)
    tensors, _ = tensorfiles.read_folder(folder)
    reader = gguf.GGUFReader(write_gguf(folder, tmp_path / "1.gguf", 1))
    found = {
        it.name: (it.tensor_type.name, gguf.quants.dequantize(it.data, it.tensor_type))
        for it in reader.tensors
    }

    def taken(name, kind, expected, step=0):
        got_kind, got = found.pop(name)
        assert got_kind == kind and got.shape == expected.shape and expected.any()
        assert (np.abs(got - expected) <= step).all()

    for part, target, rows in (
        ("gate_up_proj", "ffn_gate_exps", slice(0, None, 2)),
        ("gate_up_proj", "ffn_up_exps", slice(1, None, 2)),
        ("down_proj", "ffn_down_exps", slice(None)),
    ):
        name = f"model.layers.0.mlp.experts.{part}"
        codes, scales = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
        values = oracle.dequantize(codes.reshape(*codes.shape[:2], -1), scales, "mxfp4")
        taken(f"blk.0.{target}.weight", "MXFP4", values[:, rows])
        bias = tensors[f"{name}_bias"].astype(np.float64)
        taken(f"blk.0.{target}.bias", "F32", bias[:, rows])
    taken("blk.0.attn_sinks.weight", "F32", tensors["model.layers.0.self_attn.sinks"].astype(float))
    layer = {f"model.layers.0.{source}": f"blk.0.{target}" for source, target in NAMES.items()}
    outer = {name.removesuffix(".weight"): to.removesuffix(".weight") for name, to in OUTER.items()}
    for source, target in (layer | outer).items():
        weight = tensors[f"{source}.weight"].astype(np.float64)
        is_float = weight.ndim == 1 or "router" in source
        if is_float:
            taken(f"{target}.weight", "F32", weight)
        else:
            largest = np.abs(weight).reshape(-1, 32).max(1).repeat(32).reshape(weight.shape)
            # Half a step, and what rounding its scale to float16 adds over 127 of them.
            taken(f"{target}.weight", "Q8_0", weight, largest * (0.5 / 127 + 2.0**-11))
        if f"{source}.bias" in tensors:
            taken(f"{target}.bias", "F32", tensors[f"{source}.bias"].astype(np.float64))
    assert not found
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "gpt-oss" and fields["gpt-oss.block_count"] == 1
    assert fields["gpt-oss.vocab_size"] == SMALL["vocabulary"]


def test_the_error_of_logits_is_relative_and_none_without_a_reference():
    whole = np.array([3.0, 4.0])
    assert error_of(np.array([3.0, 4.5]), whole) == 0.1 and error_of(whole, None) is None


@deep
def test_the_command_measures_all_variants(tmp_path):
    folder = write_checkpoint(tmp_path / "model", 2, **SMALL)
    options = {"layers": 2, "threads": 1, "prompt": 8, "tokens": 2, "repeats": 1, "peer-layers": 1}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    # To compile it takes minutes: the test takes it where it is.
    name = f"llama-cpp-{LLAMA_CPP}-{sys.implementation.cache_tag}"
    has_peer = (builds.cache_folder() / name / DONE).exists()
    arguments += [] if has_peer else ["--no-llama-cpp"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpt_oss", *arguments, "--folder", folder,
         "--results", tmp_path],
        check=False, cwd=device.REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(scaled)" in done.stdout and "of 1 layers" in done.stdout
    rows = read_csv(tmp_path / "gpt_oss.csv", GptOssRow)
    assert [(row.variant, row.rest, row.measured_layers) for row in rows] == [
        ("bf16", None, 2),
        ("mxint8", "mxint8", 2),
        ("mxint8", None, 2),
        *[("llama.cpp", "q8_0", 2)] * has_peer,
        ("transformers", None, 1),
    ]
    assert all(row.load_s > 0 and row.tokens_per_s > 0 for row in rows)
    errors = [row.logits_error for row in rows]
    assert errors[0] == 0 and errors[-1] is None and all(0 < e < 0.2 for e in errors[1:-1])
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
