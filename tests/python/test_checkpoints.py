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
from cases import bytes_of
from checkpoint_forms import EXPERTS, FORMS, MX4, UP, codes, floats, scales
from mx_kernels.checkpoints.files import open_path
from tests.tiers import deep

every_form = pytest.mark.parametrize("form", FORMS)


def one_file(folder, arrays):
    tensorfiles.write(folder / "model.safetensors", arrays)


def with_index(folder, arrays):
    tensorfiles.write_sharded(folder, arrays, 3)


def without_index(folder, arrays):
    tensorfiles.write_sharded(folder, arrays, 3, index=False)


every_storage = pytest.mark.parametrize("store", [one_file, with_index, without_index])


def checkpoint(folder, config, arrays, store=one_file):
    store(folder, arrays)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def torch_of(array):
    """The tensor with an array's bytes, dtype and shape."""
    raw = torch.from_numpy(np.atleast_1d(array).copy().view(np.uint8))
    return raw.view(getattr(torch, array.dtype.name)).reshape(array.shape)


def assert_means(loaded, meaning):
    """Compares what was loaded with arrays, and codes and scales, to the bit."""
    assert loaded.keys() == meaning.keys()
    for name, expected in meaning.items():
        got = loaded[name]
        if isinstance(expected, np.ndarray):
            assert type(got) is torch.Tensor
            assert (got.dtype, got.shape) == (torch_of(expected).dtype, expected.shape), name
            assert got.reshape(-1).view(torch.uint8).numpy().tobytes() == expected.tobytes(), name
            continue
        format, expected_codes, expected_scales = expected
        assert isinstance(got, mx.MXTensor)
        plain = got.unshuffle()
        k = 8 * expected_codes.shape[-1] // oracle.FORMATS[format].element.bits
        assert (got.format, got.shape) == (format, (*expected_codes.shape[:-1], k)), name
        oracle.assert_bitwise_equal(bytes_of(plain.codes), expected_codes)
        oracle.assert_bitwise_equal(bytes_of(plain.scales), expected_scales)
        assert plain.scales.is_contiguous(), name


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


# Eighteen rows in blocks of eight cannot be told without the config.
KNOWN_BY_NAMES = [form for form in FORMS if form != "quark_blocks"]


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


# What is refused.

FLOAT_SCALES = np.ones((1, 1), np.float32)
FP8 = np.zeros((18, 96), ml_dtypes.float8_e4m3fn)
REFUSED = {
    "FP8 in blocks of 64 x 64": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        {"a.weight": FP8, "a.weight_scale_inv": np.ones((1, 2), np.float32)},
        r"got weight_block_size \[64, 64\], expected \[128, 128\]",
    ),
    "FP8 in blocks of 64 x 64 without a config": (
        {},
        {"a.weight": FP8, "a.weight_scale_inv": np.ones((1, 2), np.float32)},
        r"expected scales \[1, 1\] of fp8_block_2d or scales \[18, 1\], or one of fp8 or",
    ),
    "FP8 of rows where the config says blocks": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"a.weight": FP8, "a.weight_scale_inv": np.ones((18, 1), np.float32)},
        r"expected scales \[1, 1\] of fp8_block_2d$",
    ),
    "FP8 without scales where the config says it has them": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"a.weight": FP8},
        "got codes a.weight .*, expected scales a.weight_scale or a.weight_scale_inv beside them",
    ),
    "scales of FP8 alone": (
        {}, {"a.weight_scale_inv": FLOAT_SCALES}, "got scales a.weight_scale_inv .* codes a.weight",
    ),
    "FP8 with rows of 40": (
        {},
        {"a.weight": np.zeros((18, 40), ml_dtypes.float8_e4m3fn), "a.weight_scale": FLOAT_SCALES},
        "expected weights .*, K a multiple of 32",
    ),
    "NVFP4": (
        {},
        {
            "a.weight": np.zeros((2, 16), np.uint8),
            "a.weight_scale": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
            "a.weight_scale_2": np.ones((), np.float32),
        },
        "a.weight_scale, which is NVFP4, with E4M3 scales",
    ),
    "NVFP4 of compressed-tensors": (
        {"quantization_config": {"quant_method": "compressed-tensors",
                                 "config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}}}},
        {},
        "format 'nvfp4-pack-quantized' of compressed-tensors .NVFP4",
    ),
    "integers of compressed-tensors": (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
        {},
        "format 'pack-quantized' of compressed-tensors, expected mxfp4-pack-quantized or",
    ),
    "E5M2 in blocks of 128 x 128": (
        {},
        {"a.weight": np.zeros((18, 160), ml_dtypes.float8_e5m2),
         "a.weight_scale": np.ones((1, 2), np.float32)},
        r"got a.weight float8_e5m2 .*, expected scales \[18, 1\], or one of fp8_e5m2$",
    ),
    "E5M2 where the config says E4M3": (
        {"quantization_config": {"quant_method": "fp8"}},
        {"a.weight": FP8.view(ml_dtypes.float8_e5m2), "a.weight_scale": FLOAT_SCALES},
        "got a.weight float8_e5m2 .*, expected the codes of fp8, as the config says",
    ),
    "E5M2 with scales of integers": (
        {},
        {"a.weight": FP8.view(ml_dtypes.float8_e5m2), "a.weight_scale": np.ones((1, 1), np.int64)},
        "which is float8_e5m2 with int64 scales, expected E8M0 scales",
    ),
    "GPTQ": (
        {"quantization_config": {"quant_method": "gptq"}}, {}, "quant_method 'gptq' .integers",
    ),
    "AWQ by its names": (
        {}, {"a.qweight": np.zeros((2, 2), np.int64)}, "which is GPTQ or AWQ",
    ),
    "a method nobody knows": (
        {"quantization_config": {"quant_method": ["x"]}}, {}, r"quant_method \['x'\], expected mxf",
    ),
    "Quark's FP6": (
        {"quantization_config": {"quant_method": "quark", "global_quant_config": {
            "weight": MX4 | {"dtype": "fp6_e3m2"}}}},
        {"a.weight": np.zeros((2, 24), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "'fp6_e3m2'.* for a, expected dtype fp4 or",
    ),
    "Quark's groups of 16": (
        {"quantization_config": {"quant_method": "quark", "global_quant_config": {
            "weight": MX4 | {"group_size": 16}}}},
        {"a.weight": np.zeros((2, 16), np.uint8), "a.weight_scale": np.zeros((2, 2), np.uint8)},
        "'group_size': 16.* for a, expected",
    ),
    "another format than the config's": (
        {"quantization_config": {"quant_method": "mxfp8"}},
        {"a.weight": np.zeros((2, 16), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "a.weight uint8 .2, 16. and a.weight_scale uint8 .2, 1., expected the codes of mxfp8",
    ),
    "codes without scales": (
        {}, {"a_blocks": np.zeros((2, 2, 1, 16), np.uint8)},
        "got codes a_blocks uint8 .2, 2, 1, 16., expected scales a_scales beside them",
    ),
    "Quark's codes without scales": (
        {"quantization_config": {"quant_method": "quark"}},
        {"a.weight": np.zeros((2, 16), np.uint8)},
        "got codes a.weight .* expected scales a.weight_scale",
    ),
    "scales without codes": (
        {}, {"a_scales": np.zeros((2, 2, 1), np.uint8)},
        "got scales a_scales .* expected codes a_blocks of a quantized dtype",
    ),
    "scales beside floats": (
        {},
        {"a.weight": np.ones((2, 32), np.float32), "a.weight_scale": np.ones((2, 1), np.uint8)},
        "got scales a.weight_scale .*, expected codes a.weight_packed or a.weight of a quantized",
    ),
    "an expert's scales missing": (
        {}, {"a_blocks": np.zeros((2, 2, 1, 16), np.uint8),
             "a_scales": np.zeros((1, 2, 1), np.uint8)},
        r"expected scales for \[2, 2, 32\]: \[2, 2, 1\]",
    ),
    "blocks of eight bytes": (
        {}, {"a_blocks": np.zeros((2, 2, 2, 8), np.uint8),
             "a_scales": np.zeros((2, 2, 2), np.uint8)},
        r"expected codes \[..., N, K/32, 16\]",
    ),
    "scales of 16": (
        {}, {"a.weight_packed": np.zeros((2, 16), np.uint8),
             "a.weight_scale": np.zeros((2, 2), np.uint8)},
        "expected 16 bytes of mxfp4 for each scale",
    ),
    "bytes of any format of eight bits": (
        {}, {"a.weight": np.zeros((2, 32), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "may be any format of eight bits: view them as such",
    ),
    "a scale for 128 rows and columns": (
        {}, {"a.weight": np.zeros((128, 128), ml_dtypes.float8_e4m3fn),
             "a.weight_scale": np.zeros((1, 1), np.uint8)},
        "expected 32 bytes of mxfp8 for each scale",
    ),
    "rows that no block of rows divides": (
        {}, {"a.weight": np.zeros((5, 32), ml_dtypes.float8_e4m3fn),
             "a.weight_scale": np.zeros((2, 1), np.uint8)},
        r"expected scales for \[5, 32\]: \[5, 1\]",
    ),
    "nothing along K": (
        {}, {"a.weight": np.zeros((5, 0), np.uint8), "a.weight_scale": np.zeros((5, 0), np.uint8)},
        r"expected scales for \[5, 0\]",
    ),
    "a parameter twice": (
        {}, {"a_blocks": np.zeros((2, 2, 1, 16), np.uint8),
             "a_scales": np.zeros((2, 2, 1), np.uint8), "a": np.ones(1, np.float32)},
        "got parameter a twice",
    ),
    "scales of two": (
        {}, {"a.weight": np.zeros((2, 16), np.uint8),
             "a.weight_packed": np.zeros((2, 16), np.uint8),
             "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "got (parameter a.weight twice|a.weight_scale as a part of two)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_quantizations_and_halves_are_refused_by_name(tmp_path, case):
    config, arrays, message = REFUSED[case]
    checkpoint(tmp_path, config, arrays)
    with pytest.raises(ValueError, match=message) as raised:
        mx.load(tmp_path)
    assert str(tmp_path) in str(raised.value)
    if not config:
        with pytest.raises(ValueError, match=message):
            mx.load({name: torch_of(array) for name, array in arrays.items()})


@pytest.mark.parametrize("value", [3, {"a": {"b": torch.ones(1)}}, {"a": None}, {3: torch.ones(1)}])
def test_what_is_no_checkpoint_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"path: got int|state dict: got"):
        mx.load(value)


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


def test_loading_takes_the_memory_of_the_result_and_of_one_file(tmp_path):
    shard = {f"{i}": torch.full((2, 256, 16384), i / 7).bfloat16() for i in range(6)}
    weights = {name: mx.quantize(x) if i % 2 else x for i, (name, x) in enumerate(shard.items())}
    mx.save({"0": weights["1"]}, tmp_path / "small")
    mx.save(weights, tmp_path / "large", max_shard_bytes=1)
    largest = max(w.nbytes for w in weights.values())
    run = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True, check=True
    )
    size, grown = map(int, run.stdout.split())
    assert size >= sum(w.nbytes for w in weights.values())
    # Two files are mapped at once; without unmapping, or with a copy of all, it would be twice.
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
