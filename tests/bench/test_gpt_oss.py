"""The benchmark of gpt-oss writes the published layout, and measures what it says."""

import importlib.util
import json
import subprocess
import sys

import pytest

import tensorfiles
from bench import device
from bench.gpt_oss import write_checkpoint
from bench.gpt_oss.__main__ import GptOssRow, row_of
from bench.gpt_oss.checkpoint import SCALES, Sizes, sizes_of
from bench.gpt_oss.worker import Job, Measured
from bench.rows import read_csv
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


@deep
def test_the_command_measures_all_variants(tmp_path):
    folder = write_checkpoint(tmp_path / "model", 2, **SMALL)
    options = {"layers": 2, "threads": 1, "prompt": 8, "tokens": 2, "repeats": 1, "peer-layers": 1}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpt_oss", *arguments, "--folder", folder,
         "--results", tmp_path],
        check=False, cwd=device.REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(scaled)" in done.stdout and "of 1 layers" in done.stdout
    rows = read_csv(tmp_path / "gpt_oss.csv", GptOssRow)
    peers = (["llama.cpp"] if importlib.util.find_spec("ggml") else []) + ["transformers"]
    assert [row.variant for row in rows] == ["mxint8", "mxint8", "bf16", *peers]
    assert [row.rest for row in rows] == ["mxint8", *[None] * (len(rows) - 1)]
    assert [row.measured_layers for row in rows] == [2, 2, 2, *[1] * len(peers)]
    assert all(row.products_per_s > 0 for row in rows)
    models = [row for row in rows if row.variant != "llama.cpp"]
    assert all(row.load_s > 0 and row.tokens_per_s > 0 for row in models)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
