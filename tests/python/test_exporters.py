"""Files by other tools' own exporters are what those tools themselves dequantize them to.

Each tool lives in an environment of its own in the cache, made once: minutes, and gigabytes.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import mx_kernels as mx
from bench.serving.environment import python_with
from mx_kernels import checkpoints
from mx_kernels.integrations.transformers import from_pretrained
from tests.tensorfiles import checkpoint
from tests.tiers import deep
from tests.watchdog import BUILD_SECONDS, Limit

TORCH = "torch==2.13.0"
ENVIRONMENTS = {
    "modelopt": (
        "exporters-1", (TORCH, "transformers==5.24.0", "accelerate", "nvidia-modelopt==0.47.0",
                        "compressed-tensors==0.20.1", "amd-quark==0.13"),
    ),
    "auto_round": ("auto-round-1", (TORCH, "transformers==5.24.0", "auto-round==0.16.1",
                                    "compressed-tensors==0.20.1")),
}  # fmt: skip
ENVIRONMENTS["llmcompressor"] = "llmcompressor-0.14-1", (TORCH, "llmcompressor==0.14.0")
ENVIRONMENTS |= dict.fromkeys(
    ("compressed_tensors", "quark", "compressed_tensors_rotated", "quark_rotated"),
    ENVIRONMENTS["modelopt"],
)
SCHEMES = {
    "modelopt FP8_DEFAULT": "fp8",
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "modelopt FP8_2D_BLOCKWISE_WEIGHT_ONLY": "fp8_block_2d",
    "modelopt MXFP8_DEFAULT": "mxfp8",
    "modelopt MXFP4_DEFAULT": "mxfp4",
    "modelopt W4A8_MXFP4_FP8": "mxfp4",
    "modelopt NVFP4_DEFAULT": "nvfp4",
    "compressed_tensors MXFP4": "mxfp4",
    "compressed_tensors MXFP6A16": "mxfp6",
    "compressed_tensors MXFP6A8": "mxfp6",
    "compressed_tensors NVFP4A16": "nvfp4",
    "compressed_tensors NVFP4": "nvfp4",
    "compressed_tensors MXFP8": "mxfp8",
    "compressed_tensors FP8": "fp8",
    "compressed_tensors FP8_DYNAMIC": "fp8",
    "compressed_tensors FP8_BLOCK": "fp8_block_2d",
    "quark mxfp4": "mxfp4",
    "quark mxfp6_e2m3": "mxfp6",
    "quark mxfp6_e3m2": "mxfp6_e3m2",
    "quark fp8": "fp8",
    "quark ptpc_fp8": "fp8",
    "auto_round MXFP4:auto_round": "mxfp4",
    "auto_round MXFP8:auto_round": "mxfp8",
    "auto_round MXFP4:llm_compressor": "mxfp4",
}
"""What is written, and the format that we read it as."""
ONE_EACH = ("modelopt", "auto_round")
"""Tools that write a tensor for each expert, of which others leave experts alone."""
WRITE = Path(__file__).with_name("exporters.py")


def run(tool, scheme, folder):
    """Runs a tool in its environment; returns the numbers that it makes of a folder."""
    with Limit.of(BUILD_SECONDS):
        python = python_with(*ENVIRONMENTS[tool])
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [python, WRITE, tool, scheme, folder]
    environment = kept | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder.with_suffix(".expected"))


@deep
@pytest.mark.parametrize("case", SCHEMES)
def test_an_exporters_file_is_what_the_tool_dequantizes_it_to(tmp_path, case):
    tool, scheme = case.split()
    folder = tmp_path / "out"
    expected = run(tool, scheme, folder)
    loaded = mx.load(folder, join_experts=False)
    found = {name: t for name, t in loaded.items() if isinstance(t, mx.MXTensor)}
    assert found.keys() == expected.keys() and {t.format for t in found.values()} == {SCHEMES[case]}
    # Of two scales the tools round the product, and a reciprocal is rounded when it is read.
    rtol = 2**-22 if SCHEMES[case] == "nvfp4" else 0
    for name, t in found.items():
        torch.testing.assert_close(t.dequantize("float32"), expected[name], rtol=rtol, atol=0)
    tf.utils.logging.disable_progress_bar()
    model = from_pretrained(folder, dtype=torch.float32)
    experts = model.model.layers[1].mlp.experts
    assert isinstance(experts, mx.MXExperts) == (tool in ONE_EACH)
    if tool in ONE_EACH:
        for e in range(experts.num_experts):
            base = f"model.layers.1.mlp.experts.{e}"
            halves = [expected[f"{base}.{name}.weight"] for name in ("gate_proj", "up_proj")]
            got = experts.gate_up_proj.dequantize("float32")[e]
            torch.testing.assert_close(got, torch.cat(halves), rtol=rtol, atol=0)


ROTATED = {
    "compressed_tensors_rotated MXFP4A16": ("bf16", {"down_proj": 64, "qkv": 128}, 2**-6),
    "quark_rotated mxfp4": ("mxfp4", {"down_proj": 64, "qkv": 64, "gate_proj": 64}, 0),
}
"""What activations are multiplied as, the blocks of some layers, and how far off logits may be.

The first tool multiplies floats: activations that bfloat16 rounds differ by 2**-9, in 14 layers.
"""


@deep
@pytest.mark.parametrize("case", ROTATED)
def test_a_model_that_rotates_at_run_time_computes_what_its_tool_does(tmp_path, case):
    activations, blocks, bound = ROTATED[case]
    tool, scheme = case.split()
    folder = tmp_path / "out"
    expected = run(tool, scheme, folder)
    mx.load(folder, rotations=(found := {}))
    expected_blocks = {
        f"model.layers.{i}.{place}.weight": block
        for i in (0, 1)
        for of, block in blocks.items()
        for place in (
            [f"self_attn.{x}_proj" for x in of] if of == "qkv"
            else [f"mlp.{x}" for x in ((of, "up_proj") if of == "gate_proj" else (of,))]
        )
    }  # fmt: skip
    assert found == expected_blocks
    model = from_pretrained(folder, dtype=torch.float32, activations=activations)
    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():
        logits = model(ids).logits
        error = (logits - expected["logits"]).norm() / expected["logits"].norm()
        assert error <= bound
        # A saved model rotates too, and so does one whose MLPs are joined.
        model.save_pretrained(tmp_path / "saved")
        again = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        assert torch.equal(again(ids).logits, logits)
        mx.load(tmp_path / "saved", rotations=(kept := {}))
        assert kept == found
        for layer in model.modules():
            if isinstance(layer, mx.MXLinear):
                layer.hadamard = None
        assert (model(ids).logits - logits).norm() > 0.5 * logits.norm()


TO = {
    "compressed-tensors": ("mxfp4", "mxfp6", "nvfp4"),
    "quark": ("mxfp4", "mxfp6", "mxfp6_e3m2", "nvfp4"),
    "modelopt": ("mxfp4", "mxfp8", "nvfp4"),
}
"""Forms that we write, and formats in them."""


@deep
@pytest.mark.parametrize("to, format", [(to, format) for to in TO for format in TO[to]])
def test_a_tool_makes_of_our_files_what_we_do(tmp_path, to, format):
    out = tmp_path / "out"
    model_with_words(tmp_path / "floats")
    checkpoints.convert(tmp_path / "floats", out, to=to, format=format)
    expected = run(to.replace("-", "_"), "read", out)
    found = {name: t for name, t in mx.load(out).items() if isinstance(t, mx.MXTensor)}
    assert {t.format for t in found.values()} == {format} and len(found) == 2 * 7
    assert found.keys() == expected.keys()
    rtol = 2**-22 if format == "nvfp4" else 0
    for name, t in found.items():
        torch.testing.assert_close(t.dequantize("float32"), expected[name], rtol=rtol, atol=0)


CALIBRATE = Path(__file__).parents[2] / "examples" / "calibrate.py"


def model_with_words(folder):
    """Writes a small random model whose tokens are words, some of them rare; returns a text."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 96, "architectures": ["LlamaForCausalLM"]}
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder)
    return (torch.rand(4 * 512).square() * 96).long()


@deep
@pytest.mark.parametrize("scheme", ["MXFP4A16", "NVFP4A16"])
def test_weights_that_the_example_calibrates_lose_less_on_the_text_than_rounded_ones(
    tmp_path, scheme
):
    """Its program as the guide shows it, in an environment of its own, and our loading."""
    floats, out, format = tmp_path / "floats", tmp_path / "out", scheme.lower().removesuffix("a16")
    ids = model_with_words(floats)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i}" for i in ids))
    with Limit.of(BUILD_SECONDS):
        python = python_with(*ENVIRONMENTS["llmcompressor"])
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [python, CALIBRATE, floats, text, scheme, out]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path,
        env=kept | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    loaded = mx.load(out)
    codes = {name: t for name, t in loaded.items() if isinstance(t, mx.MXTensor)}
    assert {t.format for t in codes.values()} == {format} and len(codes) == 2 * 7
    exact = tf.AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32)
    rounded = mx.convert(copy.deepcopy(exact), format=format, activations="bf16")
    calibrated = from_pretrained(out, dtype=torch.float32, activations="bf16")
    with torch.inference_mode():
        right, *others = (m(ids.view(4, 512)).logits for m in (exact, rounded, calibrated))
    by_rounding, by_calibration = ((got - right).norm() / right.norm() for got in others)
    assert 0.01 < by_calibration < 0.9 * by_rounding


@deep
def test_gguf_is_what_its_library_dequantizes_it_to(tmp_path, rng, monkeypatch):
    """Every code in every place, under every scale but 255, which is NaN here alone.

    NVFP4's scales have no sign, so there are 127 twice; tensor scales lie beside, or are 1.
    """
    python = python_with("gguf-0.19.0", ("gguf==0.19.0",))
    (packages,) = python.parent.parent.glob("lib/*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    import gguf  # noqa: PLC0415  of that environment

    kinds = gguf.GGMLQuantizationType
    blocks = rng.integers(0, 256, (2, 255, 16, 17), dtype=np.uint8)
    blocks[..., 0] = np.arange(255)[None, :, None]
    of_nvfp4 = rng.integers(0, 256, (2, 255, 16, 36), dtype=np.uint8)
    of_nvfp4[..., :4] = (np.arange(255)[:, None, None] + 64 * np.arange(4)) % 255
    floats = rng.standard_normal((6, 64)).astype(np.float32)
    whole = {"blk.0.ffn_down_exps": np.float32([0.37, 2**-9]), "blk.1.attn_q": np.float32([1.7])}
    tensors = {
        "blk.0.ffn_up_exps.weight": (blocks.reshape(2, 255, 272), kinds.MXFP4),
        "blk.0.ffn_down_exps.weight": (of_nvfp4.reshape(2, 255, 576), kinds.NVFP4),
        "blk.1.attn_q.weight": (of_nvfp4[0].reshape(255, 576), kinds.NVFP4),
        "blk.1.attn_k.weight": (of_nvfp4[1].reshape(255, 576), kinds.NVFP4),
        "blk.0.attn_q.weight": (gguf.quantize(floats, kinds.Q8_0), kinds.Q8_0),
        "bf16": (gguf.quantize(floats, kinds.BF16), kinds.BF16),
        "f16": (floats.astype(np.float16), kinds.F16),
        "f32": (floats[0], kinds.F32),
        "blk.0.attn_q.scale": (floats[0], kinds.F32),
    }
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    scales = {f"{name}.scale": (array, kinds.F32) for name, array in whole.items()}
    for name, (array, kind) in (tensors | scales).items():
        writer.add_tensor(name, array, raw_dtype=kind)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    with pytest.warns(UserWarning, match=r"got blk.0.attn_q.weight of Q8_0, which become float32"):
        loaded = mx.load(tmp_path / "x.gguf")
    assert loaded.keys() == tensors.keys()
    for name, (array, kind) in tensors.items():
        t, is_codes = loaded[name], kind in (kinds.MXFP4, kinds.NVFP4)
        assert isinstance(t, mx.MXTensor) == is_codes
        got = t.dequantize("float32") if is_codes else t.float()
        assert not is_codes or t.format == kind.name.lower()
        expected = gguf.dequantize(array, kind)
        factor = whole.get(name.removesuffix(".weight"), np.float32([1]))
        expected *= factor.reshape(-1, 1, 1) if len(factor) > 1 else factor
        # Two products, each rounded, with a tensor scale.
        rtol = 2**-22 if name.removesuffix(".weight") in whole else 0
        np.testing.assert_allclose(got.numpy(), expected, rtol=rtol, atol=0)
    (tmp_path / "broken.gguf").write_bytes((tmp_path / "x.gguf").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"broken.gguf: got 60 bytes that are no GGUF file"):
        mx.load(tmp_path / "broken.gguf")


MLX = """
import sys
import mlx.core as mx

tensors, expected = mx.load(sys.argv[1]), {}
for name in [name.removesuffix(".scales") for name in tensors if name.endswith(".scales")]:
    words, scales = tensors[name + ".weight"], tensors[name + ".scales"]
    expected[name] = mx.dequantize(words, scales, mode=name, dtype=mx.float32)
    # What it quantizes itself has the same form.
    own = mx.quantize(mx.random.normal(expected[name].shape), mode=name)
    assert [(t.dtype, t.shape) for t in own] == [(t.dtype, t.shape) for t in (words, scales)]
mx.save_safetensors(sys.argv[2], expected)
"""
MLX_MODES = {"mxfp4": (32, 4, 255), "mxfp8": (32, 8, 255), "nvfp4": (16, 4, 127)}
"""Elements of a scale, bits of a code, and scales that are numbers."""


@deep
def test_mlx_words_are_what_mlx_dequantizes_them_to(tmp_path, rng):
    """Random codes under every scale, in each mode, which names of modules tell."""
    python = python_with("mlx-0.32.4", ("mlx[cpu]==0.32.4",))
    arrays, said = {}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    for mode, (group, bits, count) in MLX_MODES.items():
        codes = rng.integers(0, 256, (count, 128 * bits // 8), dtype=np.uint8)
        # E4M3 has two NaNs.
        codes = np.where(codes & 0x7F == 0x7F, 0, codes) if bits == 8 else codes
        scales = np.arange(count, dtype=np.uint8)[:, None].repeat(128 // group, 1)
        arrays |= {f"{mode}.weight": codes.view(np.uint32), f"{mode}.scales": scales}
        said[mode] = {"group_size": group, "bits": bits, "mode": mode}
    folder = tmp_path / "mlx"
    folder.mkdir()
    checkpoint(folder, {"quantization": said, "quantization_config": said}, arrays)
    written = folder / "model.safetensors", tmp_path / "expected.safetensors"
    subprocess.run([python, "-c", MLX, *map(str, written)], check=True)
    loaded, expected = mx.load(folder), load_file(written[1])
    assert {name.removesuffix(".weight") for name in loaded} == expected.keys() == MLX_MODES.keys()
    for mode, values in expected.items():
        t = loaded[f"{mode}.weight"]
        assert t.format == mode
        assert torch.equal(t.dequantize("float32"), values)
