"""Loading a checkpoint gives what an independent reading of its files gives, in every form."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
import tensorfiles
from checkpoint_forms import (
    EXPERTS,
    FORMS,
    UP,
    assert_means,
    codes,
    finite_fp8,
    floats,
    scales,
    torch_of,
)
from mx_kernels.checkpoints.files import open_path
from tensorfiles import checkpoint, one_file
from tests.tiers import deep

every_form = pytest.mark.parametrize("form", FORMS)
pytestmark = pytest.mark.filterwarnings("ignore:.*become floats")


def with_index(folder, arrays):
    tensorfiles.write_sharded(folder, arrays, 3)


def without_index(folder, arrays):
    tensorfiles.write_sharded(folder, arrays, 3, index=False)


every_storage = pytest.mark.parametrize("store", [one_file, with_index, without_index])


@every_form
@every_storage
def test_a_folder_gives_the_bytes_of_its_files(tmp_path, rng, form, store):
    config, arrays, meaning = FORMS[form](rng)
    loaded = mx.load(checkpoint(tmp_path, config, arrays, store))
    assert_means(loaded, meaning)
    for got in loaded.values():
        if isinstance(got, mx.MXTensor):
            assert got.layout == "preshuffled_cpu"


@every_form
def test_without_preshuffling_weights_stay_plain(tmp_path, rng, form):
    config, arrays, meaning = FORMS[form](rng)
    loaded = mx.load(checkpoint(tmp_path, config, arrays), preshuffle=False)
    assert_means(loaded, meaning)
    layouts = {got.layout for got in loaded.values() if isinstance(got, mx.MXTensor)}
    assert layouts == {"plain"}


@every_form
def test_numbers_are_those_of_the_format(tmp_path, rng, form):
    config, arrays, meaning = FORMS[form](rng)
    loaded = mx.load(checkpoint(tmp_path, config, arrays))
    for name, expected in meaning.items():
        if not isinstance(expected, np.ndarray):
            format, *parts = expected
            values = oracle.round_to(oracle.dequantize(*parts, format), "float32")
            got = loaded[name].dequantize("float32").double().numpy()
            np.testing.assert_array_equal(got, values)


# Only the config tells that eighteen rows are in blocks of eight, or that bytes are E8M0.
TOLD = {
    "quark_blocks": "rows share a row of scales",
    "quark_e8m0_blocks": "32 bytes of mxfp8",
    "blocks_of_64_rows": r"expected scales \[2, 5\] of fp8_block_2d or",
    "blocks_of_256": "expected scales .* of fp8_block_2d",
    "e8m0_of_64_rows": "32 bytes of mxfp8",
    "e8m0_of_64": "32 bytes of mxfp8",
    "turned_fp8": r"gate_up_proj_scale float32 \[2, 1, 160\], expected scales \[2, 1, 2\] of",
    "e8m0_of_128_rows_of_32": r"expected scales for \[200, 608\]",
}
# Six bits are told from four by their bytes, but not from each other.
KNOWN_BY_NAMES = [form for form in FORMS if form not in (*TOLD, "quark_e3m2")]


@pytest.mark.parametrize("form", TOLD)
def test_what_only_a_config_tells_is_refused_without_it(tmp_path, rng, form):
    _, arrays, _ = FORMS[form](rng)
    one_file(tmp_path, arrays)
    with pytest.raises(ValueError, match=TOLD[form]):
        mx.load(tmp_path)


@pytest.mark.parametrize("form", KNOWN_BY_NAMES)
def test_a_single_file_is_known_by_names_and_dtypes(tmp_path, rng, form):
    _, arrays, meaning = FORMS[form](rng)
    one_file(tmp_path, arrays)
    assert_means(mx.load(tmp_path / "model.safetensors"), meaning)
    assert_means(mx.load(str(tmp_path)), meaning)


@pytest.mark.parametrize("preshuffle", [True, False])
@pytest.mark.parametrize("form", KNOWN_BY_NAMES)
def test_a_state_dict_is_known_by_names_and_dtypes(device, rng, form, preshuffle):
    _, arrays, meaning = FORMS[form](rng)
    tensors = {name: torch_of(array).to(device) for name, array in arrays.items()}
    loaded = mx.load(tensors, preshuffle=preshuffle)
    assert {got.device.type for got in loaded.values()} == {device}
    if device == "cpu":
        assert_means(loaded, meaning)


def test_mx_tensors_of_a_state_dict_are_preshuffled_too(rng):
    q = mx.quantize(torch.randn(2, 18, 96))
    assert mx.load({"q": q})["q"].layout == "preshuffled_cpu"
    assert mx.load({"q": q}, preshuffle=False)["q"].codes.data_ptr() == q.codes.data_ptr()


def test_an_index_can_be_named_itself(tmp_path, rng):
    config, arrays, meaning = FORMS["gpt_oss"](rng)
    checkpoint(tmp_path, config, arrays, with_index)
    assert_means(mx.load(tmp_path / "model.safetensors.index.json"), meaning)


def test_parameters_go_to_a_device_in_its_layout(device, tmp_path, rng):
    config, arrays, _ = FORMS["gpt_oss"](rng)
    loaded = mx.load(checkpoint(tmp_path, config, arrays), device=device)
    assert {got.device.type for got in loaded.values()} == {device}
    assert loaded[f"{EXPERTS}.gate_up_proj"].layout == f"preshuffled_{device}"


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_weights_have_the_dtype_of_the_config(tmp_path, rng, name, key):
    config, arrays, _ = FORMS["quark_mxfp4"](rng)
    loaded = mx.load(checkpoint(tmp_path, config | {key: name}, arrays))
    assert loaded[f"{UP}.weight"].dtype == getattr(torch, name)


def test_native_files_of_gpt_oss_are_left_out(tmp_path, rng):
    config, arrays, meaning = FORMS["gpt_oss"](rng)
    checkpoint(tmp_path, config, arrays, without_index)
    native = {
        "block.0.mlp.mlp1_weight.blocks": codes(rng, 2, 18, 3, 16),
        "block.0.mlp.mlp1_weight.scales": scales(rng, 2, 18, 3),
        "embedding.weight": floats(rng, 4, 64),
    }
    tensorfiles.write(tmp_path / "native.safetensors", native)
    (tmp_path / "original").mkdir()
    tensorfiles.write(tmp_path / "original" / "model.safetensors", native)
    assert_means(mx.load(tmp_path), meaning)
    with pytest.raises(ValueError, match=r"gpt-oss in its own format .* in the folder above"):
        mx.load(tmp_path / "original")


def test_parts_are_aligned_wherever_the_file_has_them(tmp_path):
    for before in range(8):
        arrays = {"a": np.zeros(before, np.uint8), "b": np.arange(3, dtype=np.int64)}
        one_file(tmp_path, arrays)
        tensor = open_path(tmp_path).parts["b"].read()
        assert tensor.data_ptr() % 8 == 0 and tensor.tolist() == [0, 1, 2]


def test_floats_stay_floats(tmp_path, rng):
    arrays = {"a.weight": floats(rng, 4, 64), "weight": np.ones((2, 2), np.float32)}
    one_file(tmp_path, arrays)
    assert_means(mx.load(tmp_path), arrays)


REST = {
    "model.layers.0.self_attn.q_proj.weight": (96, 64),
    "model.layers.0.mlp.experts.3.up_proj.weight": (32, 64),
    "lm_head.weight": (80, 64),
}
NO_REST = {
    "model.embed_tokens.weight": (80, 64),
    "model.layers.0.mlp.router.weight": (4, 64),
    "model.layers.0.self_attn.q_norm.weight": (64,),
    "model.layers.0.self_attn.k_proj.weight": (96, 40),
    "model.layers.0.mlp.c_proj.weight": (64, 96),
    "vision_tower.layers.0.fc1.weight": (64, 64),
}


@pytest.mark.parametrize("format", oracle.FORMATS)
@pytest.mark.parametrize("preshuffle", [False, True])
def test_the_rest_is_quantized_as_it_is_loaded_and_codes_stay(rng, format, preshuffle):
    """Of a checkpoint with codes, linear layers and the head; no table, router, norm or tower."""
    floats = {
        name: torch.from_numpy(rng.standard_normal(shape)).bfloat16()
        for name, shape in (REST | NO_REST).items()
    }
    codes = {"model.layers.0.mlp.down_proj.weight": mx.quantize(floats["lm_head.weight"])}
    got = mx.load(floats | codes, rest=format, preshuffle=preshuffle)
    without = mx.load(floats | codes, preshuffle=preshuffle)
    made = "fp8_block_2d" if format == "fp8_block" else format
    expected = without | {name: mx.quantize(floats[name], format=made) for name in REST}
    assert got.keys() == expected.keys()
    for name, value in got.items():
        wanted = expected[name].preshuffle() if preshuffle and name in REST else expected[name]
        assert type(value) is type(wanted)
        if isinstance(value, mx.MXTensor):
            assert (value.format, value.byte_layout) == (wanted.format, wanted.byte_layout)
            assert torch.equal(value.scales, wanted.scales)
            assert torch.equal(value.codes, wanted.codes)
        else:
            assert torch.equal(value, wanted)
    assert not {type(without[name]) for name in REST} - {torch.Tensor}


def test_a_checkpoint_without_a_rest_and_an_unknown_format_are_refused():
    floats = {"model.embed_tokens.weight": torch.ones(80, 64)}
    with pytest.raises(ValueError, match=r"rest: got 'mxint8', expected none: .* no linear layers"):
        mx.load(floats, rest="mxint8")
    with pytest.raises(ValueError, match="format: got 'int8', expected mxfp4 or"):
        mx.load(floats, rest="int8")


def test_loaded_tensors_outlive_their_file(tmp_path, rng):
    config, arrays, meaning = FORMS["gpt_oss"](rng)
    loaded = mx.load(checkpoint(tmp_path, config, arrays), preshuffle=False)
    path = tmp_path / "model.safetensors"
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert_means(loaded, meaning)


def test_a_bar_is_shown_on_stderr_if_asked_for(tmp_path, rng, capsys):
    one_file(tmp_path, {"a": floats(rng, 4)})
    mx.load(tmp_path)
    assert capsys.readouterr() == ("", "")
    mx.load(tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert not out and "loading" in err


def test_scales_of_floats_activations_and_caches_stay_tensors(tmp_path, rng):
    arrays = {
        "model.norm.scale": floats(rng, 64),
        "blocks.0.query_norm.scale": floats(rng, 64),
        "attn.logit_scale": np.ones((4, 1, 1), np.float32),
        "attn.relative_position_index": np.zeros((4, 4), np.int32),
        "layer_scale": floats(rng, 64),
        "mask": np.ones((4, 4), np.uint8),
        "q.weight": finite_fp8(rng, 4, 64).view(ml_dtypes.float8_e4m3fn),
        "q.weight_scale": np.ones((), np.float32),
        "q.bias": floats(rng, 4),
    }
    of_others = ("input_scale", "output_scale", "k_scale", "v_scale", "input_zero_point",
                 "kv_cache_scale", "input_activation_scale", "scale_input")  # fmt: skip
    arrays |= {f"q.{name}": np.ones((), np.float32) for name in of_others}
    one_file(tmp_path, arrays)
    loaded = mx.load(tmp_path)
    assert loaded.pop("q.weight").format == "fp8"
    assert_means(loaded, {n: a for n, a in arrays.items() if not n.startswith("q.weight")})


@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.float8_e8m0fnu], ids=["uint8", "e8m0"])
def test_every_power_of_two_is_a_scale_of_128_x_128(tmp_path, dtype):
    """2^-127, which is subnormal in float32, to 2^127, and 255, which is NaN."""
    scales_ = np.arange(256, dtype=np.uint8)[None]
    c = np.full((1, 256 * 128), 0x38, np.uint8)
    arrays = {
        "w.weight": c.view(ml_dtypes.float8_e4m3fn), "w.weight_scale_inv": scales_.view(dtype)
    }  # fmt: skip
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    loaded = mx.load(checkpoint(tmp_path, config, arrays))["w.weight"]
    assert loaded.format == "fp8_block_2d"
    with np.errstate(over="ignore"):
        wanted = np.ldexp(1.0, np.arange(256) - 127).astype(np.float32)
    wanted[255] = np.nan
    np.testing.assert_array_equal(loaded.unshuffle().scales.numpy()[0], wanted)
    got = loaded.dequantize("float32").numpy().reshape(256, 128)
    np.testing.assert_array_equal(got, np.repeat(wanted[:, None], 128, 1))


def test_weights_that_become_floats_are_named_once(tmp_path, rng):
    config, arrays, _ = FORMS["odd_k"](rng)
    with pytest.warns(
        UserWarning, match=r"fc1.weight \[18, 40\] of mxfp4, .* become floats"
    ) as said:
        mx.load(checkpoint(tmp_path, config, arrays))
    assert len(said) == 1 and said[0].filename == __file__
    for name in ("fc1_0.weight", "fc1_1.weight", "fc1_2.weight"):
        assert name in str(said[0].message)


def without_an_expert(arrays):
    return {name: array for name, array in arrays.items() if ".experts.1.up_proj" not in name}


def in_two_formats(arrays):
    name = f"{EXPERTS}.2.gate_proj.weight"
    return arrays | {f"{name}_scale_inv": np.ones((200, 3), np.float32)}


@pytest.mark.parametrize("change", [without_an_expert, in_two_formats])
def test_experts_that_do_not_fit_together_stay_apart(tmp_path, rng, change):
    config, arrays, meaning = FORMS["experts_apart"](rng)
    loaded = mx.load(checkpoint(tmp_path, {}, change(arrays)))
    assert f"{EXPERTS}.gate_up_proj" not in loaded
    assert loaded[f"{EXPERTS}.2.gate_proj.weight"].shape == (200, 288)
    down = f"{EXPERTS}.down_proj"
    assert_means({down: loaded[down]}, {down: meaning[down]})
    one_file(tmp_path, arrays)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 6}))
    assert f"{EXPERTS}.2.down_proj.weight" in mx.load(tmp_path)


def test_experts_stay_apart_if_asked_and_in_a_shard(tmp_path, rng):
    config, arrays, meaning = FORMS["experts_apart"](rng)
    apart = mx.load(checkpoint(tmp_path, config, arrays), join_experts=False)
    for e, of_expert in enumerate(meaning[f"{EXPERTS}.down_proj"][1]):
        got = apart[f"{EXPERTS}.{e}.down_proj.weight"].unshuffle().codes
        oracle.assert_bitwise_equal(got.numpy(), of_expert)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    (tmp_path / "model.safetensors").rename(shard)
    assert mx.load(shard).keys() == apart.keys()


# Memory, and other libraries.

PEAK = """
import gc, re, sys
import mx_kernels as mx

def memory(name):
    said = open("/proc/self/status").read()
    return int(re.search(name + r":\\s+(\\d+) kB", said)[1]) * 1024

mx.load(sys.argv[1] + "/small")
gc.collect()
before = memory("VmRSS")
loaded = mx.load(sys.argv[1] + "/large")
print(sum(t.nbytes for t in loaded.values()), memory("VmHWM") - before)
"""


def some_of_each():
    shard = {f"{i}": torch.full((2, 256, 16384), i / 7).bfloat16() for i in range(6)}
    return {name: mx.quantize(x) if i % 2 else x for i, (name, x) in enumerate(shard.items())}


def experts_in_files():
    """Four layers, each matrix of an expert in a file of its own."""
    # Joined more than the 32 MB that the allocator of C would keep when they are freed.
    x = torch.full((320, 32768), 1 / 7).bfloat16()
    names = [f"{i}.experts.{e}.{m}" for i in range(4) for e in range(2) for m in ("w1", "w3")]
    return {f"{name}.weight": mx.quantize(x, format="mxfp8") for name in names}


@pytest.mark.parametrize("weights", [some_of_each, experts_in_files])
def test_loading_takes_the_memory_of_the_result_and_of_one_parameter(tmp_path, weights):
    weights = weights()
    mx.save({"0": weights.get("1", next(iter(weights.values())))}, tmp_path / "small")
    mx.save(weights, tmp_path / "large", max_shard_bytes=1)
    joined = mx.load(tmp_path / "large", preshuffle=False)
    largest = max(w.nbytes for w in joined.values())
    run = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True, check=True
    )
    size, grown = map(int, run.stdout.split())
    assert size >= sum(w.nbytes for w in weights.values())
    # Two files are mapped at once, or one parameter is plain and preshuffled; without unmapping,
    # or with a copy of all, it would be twice.
    assert size < grown < size + 2 * largest + 8e6 < 1.7 * size


@deep
def test_gpt_oss_has_the_numbers_that_transformers_gives_it(tmp_path, rng):
    import transformers  # noqa: PLC0415  it takes seconds

    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2,
        "num_experts_per_tok": 1, "vocab_size": 32,
    }  # fmt: skip
    config = transformers.GptOssConfig(**sizes)
    model = transformers.GptOssForCausalLM(config)
    arrays = {}
    for name, tensor in model.state_dict().items():
        if name.endswith((".gate_up_proj", ".down_proj")):
            experts, k, n = tensor.shape
            arrays[f"{name}_blocks"] = codes(rng, experts, n, k // 32, 16)
            arrays[f"{name}_scales"] = scales(rng, experts, n, k // 32)
        else:
            arrays[name] = tensor.float().numpy()
    said = json.loads(config.to_json_string())
    said |= {
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4"},
    }
    checkpoint(tmp_path, said, arrays)
    floats_of_it = transformers.Mxfp4Config(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=floats_of_it
    )
    ours = mx.load(tmp_path)
    count = 0
    for name, tensor in theirs.state_dict().items():
        got = ours[name]
        if isinstance(got, mx.MXTensor):
            got = got.dequantize("bfloat16").transpose(1, 2)
            count += 1
        assert torch.equal(got.bfloat16(), tensor.bfloat16()), name
    assert count == 2
