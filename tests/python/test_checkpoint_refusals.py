"""Nothing passes in silence: halves of pairs, other quantizations, configs that change weights."""

import fnmatch
import time

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import tensorfiles
from checkpoint_forms import MX4, torch_of
from mx_kernels.checkpoints import configs, convert
from mx_kernels.checkpoints.configs import Rules
from tensorfiles import checkpoint, one_file

U8, F32 = np.uint8, np.float32
FLOAT_SCALES = np.ones((1, 1), np.float32)
FP8 = np.zeros((18, 96), ml_dtypes.float8_e4m3fn)
REFUSED = {
    "FP8 in blocks of 64 x 64": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        {"a.weight": FP8, "a.weight_scale_inv": np.ones((1, 2), np.float32)},
        r"weight_block_size \[64, 64\] .* scales a.weight_scale_inv float32 \[1, 2\], expected",
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
    "no pair of sizes of a block": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, True]}}, {},
        r"weight_block_size \[128, True\], expected two positive integers, as \[128, 128\]",
    ),
    "compressed blocks of no pair": (
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {
            "format": "float-quantized", "weights": {
                "strategy": "block", "block_structure": [128]}}}}},
        {"a.weight": FP8, "a.weight_scale": np.ones((1, 1), np.float32)},
        r"block_structure \[128\], expected two",
    ),
    "ModelOpt's NVFP4 with AWQ": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}},
        {"a.weight": np.zeros((2, 16), np.uint8),
         "a.weight_scale": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
         "a.weight_scale_2": np.ones((), np.float32)},
        "got quant_algo 'NVFP4_AWQ' .NVFP4: scales of 16 .* for a, expected FP8 or",
    ),
    "one of ModelOpt's mixed layers": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                                 "quantized_layers": {"a": {"quant_algo": "W4A16_AWQ"}}}},
        {"a.weight": np.zeros((2, 16), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "got quant_algo 'W4A16_AWQ' .integers. for a,",
    ),
    "auto-round's integers": (
        {"quantization_config": {"quant_method": "auto-round", "data_type": "int", "bits": 4}},
        {"a.weight_packed": np.zeros((2, 16), np.uint8), "a.weight_scale": np.zeros((2, 1), U8)},
        "got data_type .*'int' of 4 bits.* for a, expected mx_fp of 4 bits or",
    ),
    "MLX's affine": (
        {"quantization": {"group_size": 32, "bits": 4},
         "quantization_config": {"group_size": 32, "bits": 4}},
        {"a.weight": np.zeros((2, 4), np.uint32), "a.scales": np.zeros((2, 1), U8)},
        "got mode 'affine' .integers. for a, expected mxfp4 or mxfp8",
    ),
    "MLX's affine without its config": (
        {}, {"a.weight": np.zeros((2, 4), np.uint32), "a.scales": np.ones((2, 1), np.float16)},
        "a.weight uint32 .2, 4. and beside it a.scales float16",
    ),
    "NVFP4": (
        {},
        {
            "a.weight": np.zeros((2, 16), np.uint8),
            "a.weight_scale": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
            "a.weight_scale_3": np.ones((), np.float32),
        },
        "a.weight_scale, which is NVFP4, with E4M3 scales but no tensor scale",
    ),
    "NVFP4 that the config calls MXFP4": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP4"}},
        {"a.weight": np.zeros((2, 16), np.uint8),
         "a.weight_scale": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
         "a.weight_scale_2": np.ones((), np.float32)},
        "and a.weight_scale_2 float32 .., expected the codes of mxfp4, as the config says",
    ),
    "E8M0 scales that the config calls NVFP4's": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        {"a.weight": np.zeros((2, 16), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        r"and a.weight_scale uint8 \[2, 1\], expected E4M3 scales of nvfp4, as the config says",
    ),
    "E4M3 scales of codes of eight bits": (
        {}, {"a.weight": FP8, "a.weight_scale": np.zeros((18, 6), ml_dtypes.float8_e4m3fn),
             "a.weight_scale_2": np.ones((), np.float32)},
        "got a.weight_scale, which is float8_e4m3fn with float8_e4m3fn scales, expected E8M0",
    ),
    "a tensor scale without scales": (
        {}, {"a.weight": np.zeros((2, 16), np.uint8), "a.weight_scale_2": np.ones((), np.float32)},
        r"a.weight_scale_2 float32 \[\], a tensor scale of NVFP4, expected codes of four bits",
    ),
    "MXFP6 that the config calls MXFP4": (
        {"quantization_config": {"quant_method": "compressed-tensors",
                                 "format": "mxfp4-pack-quantized",
                                 "config_groups": {"g": {"weights": {"num_bits": 4}}}}},
        {"a.weight_packed": np.zeros((5, 72), np.uint8), "a.weight_scale": np.ones((5, 3), U8)},
        "expected 16 bytes of mxfp4 for each scale along the last axis",
    ),
    "six bits in bytes that are no whole codes": (
        {"quantization_config": {"quant_method": "compressed-tensors",
                                 "format": "mxfp6-pack-quantized",
                                 "config_groups": {"g": {"weights": {"num_bits": 6}}}}},
        {"a.weight_packed": np.zeros((5, 25), np.uint8), "a.weight_scale": np.ones((5, 2), U8)},
        "expected 24 bytes of mxfp6 for each scale along the last axis",
    ),
    "NVFP4 with a tensor scale for each row": (
        {},
        {"a.weight": np.zeros((2, 16), np.uint8),
         "a.weight_scale": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
         "a.weight_scale_2": np.ones(2, np.float32)},
        r"float32 \[2\], expected codes .*, N, K/16\], and a float32 for the tensor",
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
    "blocks across the sums": (
        {"model_type": "llama4_text", "hidden_size": 96},
        {"m.experts.gate_up_proj": np.zeros((2, 96, 160), ml_dtypes.float8_e4m3fn),
         "m.experts.gate_up_proj_scale": np.ones((2, 1, 2), np.float32)},
        r"keeps as \[..., K, N\], and scales \[2, 1, 2\], expected codes .* \[2, 1, 160\]",
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
    "Quark's four bits of integers": (
        {"quantization_config": {"quant_method": "quark", "global_quant_config": {
            "weight": MX4 | {"dtype": "int4"}}}},
        {"a.weight": np.zeros((2, 24), np.uint8), "a.weight_scale": np.zeros((2, 1), np.uint8)},
        "'int4'.* for a, expected dtype fp4 or",
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
        r"a.weight_scale uint8 \[5, 0\], expected 16 bytes of mxfp4 for each scale along the last ",
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


WHOLE = {"a number": np.nan, "finite": np.inf, "positive": -1.0, "what can be divided by": 0.0}


@pytest.mark.parametrize("case", WHOLE)
def test_tensor_scales_are_numbers_that_codes_can_be_multiplied_by(tmp_path, case):
    """Of zeros ModelOpt has 0; compressed-tensors divides by what it stores."""
    whole, codes = np.float32(WHOLE[case]), np.full((2, 16), 0x21, np.uint8)
    scales = np.ones((2, 2), ml_dtypes.float8_e4m3fn)
    forms = {
        "a.weight_global_scale": ("a.weight_packed", whole.reshape(1)),
        "a.weight_scale_2": ("a.weight", whole),
    }
    for name, (of_codes, array) in forms.items():
        arrays = {of_codes: codes, "a.weight_scale": scales, name: array}
        tensorfiles.write(tmp_path / "x.safetensors", arrays)
        if whole == 0 and array.shape == ():
            assert not mx.load(tmp_path / "x.safetensors")["a.weight"].dequantize().any()
            continue
        with pytest.raises(ValueError, match=f"{name}: got a tensor scale .*, expected a number"):
            mx.load(tmp_path / "x.safetensors")
        with pytest.raises(ValueError, match="expected a number"):
            convert(tmp_path / "x.safetensors", tmp_path / "out.safetensors")
        assert not (tmp_path / "out.safetensors").exists()


QUARK = {"quant_method": "quark", "global_quant_config": {"weight": MX4}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}


def group(**weights):
    return COMPRESSED | {"config_groups": {"g": {"weights": {"num_bits": 4, **weights}}}}


def transform(*locations):
    apply = [{"location": location, "targets": ["Linear"]} for location in locations]
    return COMPRESSED | {
        "transform_config": {"config_groups": {"R": {"type": "hadamard", "apply": apply}}}
    }


def turned(**entries):
    """Returns a config that turns the input of a, by a scheme with these entries."""
    scheme = {"type": "hadamard", "head_dim": 32, "apply": at_input("a")} | entries
    return COMPRESSED | {"transform_config": {"config_groups": {"R": scheme}}}


def at_input(targets, **entries):
    return [{"location": "input", "targets": targets, **entries}]


def at(targets, **entries):
    return turned(apply=at_input(targets, **entries))


def quark_rule(**weight):
    return QUARK | {"global_quant_config": {"weight": MX4 | weight}}


CHANGES = {
    "a rotation of the input": (transform("weight_input", "input"), "'R' .'hadamard' at 'input'"),
    "a rotation of queries": (transform("q_attn"), "at 'q_attn'"),
    "a rotation of the result": (transform("output"), "at 'output'.*expected 'input'"),
    "queries and keys turned apart": (
        turned(apply=[{"location": "q_attn"}, {"location": "k_cache", "inverse": True}]),
        "at 'q_attn'",
    ),
    "random signs": (
        turned(type="random-hadamard"), "'random-hadamard' at 'input'.*type 'hadamard'",
    ),
    "a permutation": (turned(randomize=True), "with randomize, .*expected randomize false"),
    "blocks of 48": (turned(head_dim=48), "with head_dim 48, .*expected 32 or 64 or 128"),
    "a class of modules": (at("LlamaAttention"), "of 'LlamaAttention'.*'Linear' or names"),
    "a pattern that takes long": (at("re:(a+)+$"), "of 're:.a...+.'.*expected letters"),
    "targets that are no names": (at([3]), "of .3., .*names of modules"),
    "a transform nobody knows": (COMPRESSED | {"transform_config": [1]}, r"transform_config: got"),
    "a transform without a place": (transform(None), "at None"),
    "Quark's rotation of the input": (
        QUARK | {"algo_config": [{"name": "rotation", "r1": True, "r4": True}]}, "on' with r4",
    ),
    "Quark's online rotation": (
        QUARK | {"algo_config": {"name": "rotation", "online_r1_rotation": True}}, "with online_r1",
    ),
    "an algorithm nobody knows": (QUARK | {"algo_config": [{"name": "svd"}]}, "got 'svd'"),
    "a Hadamard transform": (
        {"quant_method": "fp8", "online_hadamard": True}, "got online_hadamard True",
    ),
    "a rotation under another method": (
        COMPRESSED | {"algo_config": [{"name": "rotation", "r4": True}]}, "'rotation' with r4",
    ),
    "a rotation that the method does not have": (
        {"quant_method": "mxfp4", "rotation": {"size": 32}}, "got rotation .'size': 32.",
    ),
    "another E4M3 in the same bytes": (
        {"quant_method": "fp8", "fmt": "e4m3fnuz"}, "got fmt 'e4m3fnuz'",
    ),
    "scales in the order of a device": (
        {"quant_method": "mxfp4", "is_swizzled_scales": True}, "got is_swizzled_scales True",
    ),
    "zero points": ({"quant_method": "mxfp4", "zero_point": True}, "got zero_point True"),
    "sparse weights": (
        COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask'",
    ),
    "two methods": (COMPRESSED | {"text": "quark"}, "'compressed-tensors' and .'quark'. in one"),
    "not symmetric": (group(symmetric=False), "got symmetric False"),
    "Quark's not symmetric": (quark_rule(symmetric=False), "got symmetric False for a"),
    "Quark's scales quantized": (quark_rule(is_scale_quant=True), "got is_scale_quant True"),
    "columns in another order": (group(actorder="group"), "got actorder 'group'"),
    "integers": (group(type="int"), "got type 'int' for weights of mxfp4-pack-quantized"),
    "three bits": (group(num_bits=3), "got num_bits 3"),
    "a strategy nobody knows": (group(strategy="tensor_group"), "got strategy 'tensor_group'"),
    "one of two groups": (
        COMPRESSED | {"config_groups": {
            "a": {"format": "mxfp4-pack-quantized", "weights": {}},
            "b": {"format": None, "weights": {"type": "int"}}}}, "got type 'int'",
    ),
    "another format of one type": (
        QUARK | {"layer_type_quant_config": {"Linear": {"weight": MX4 | {"dtype": "int4"}}}},
        "'dtype': 'int4'",
    ),
    "a pattern without end": (
        QUARK | {"layer_quant_config": {"*" * 5000: {}}}, "a pattern of 5000 characters",
    ),
    "patterns without end": (
        QUARK | {"layer_quant_config": {f"{i}*": {} for i in range(2001)}}, "2001 patterns",
    ),
}  # fmt: skip
HARMLESS = {
    "a rotation that is merged": transform("weight_input", "weight_output"),
    "queries and keys turned alike by compressed-tensors": transform("q_attn", "k_cache"),
    "no transforms": COMPRESSED | {"transform_config": {}},
    "Quark's merged rotation": QUARK | {"algo_config": [
        {"name": "rotation", "r1": True, "r2": True, "r4": False, "rotation_size": 32},
        {"name": "awq"}, {"name": "smooth", "alpha": 0.5}]},
    "queries and keys turned alike": QUARK | {"algo_config": {
        "name": "rotation", "r1": True, "r3": True, "online_r1_rotation": False}},
    "dense": COMPRESSED | {"sparsity_config": {"format": "dense"}},
    "nothing sparse": COMPRESSED | {"sparsity_config": {}, "transform_config": None},
    "codes of activations and caches": group(symmetric=True, actorder="static") | {
        "kv_cache_scheme": {"num_bits": 8, "symmetric": False}},
    "activations alone": COMPRESSED | {"config_groups": {
        "a": {"weights": None, "input_activations": {"num_bits": 8, "symmetric": False}}}},
    "rules of other types": QUARK | {"layer_type_quant_config": {"Embedding": {"weight": {}}}},
    "a rule for other modules": QUARK | {"layer_quant_config": {"b*": {}, "[": {}, "?b": {}}},
}  # fmt: skip
PAIR = {"a.weight": np.zeros((4, 32), np.uint8), "a.weight_scale": np.zeros((4, 2), np.uint8)}


@pytest.mark.parametrize("case", CHANGES)
def test_a_config_that_changes_what_weights_mean_is_refused_by_name(tmp_path, case):
    said, message = CHANGES[case]
    deep = {"thinker_config": {"text_config": {"quantization_config": said}}}
    if "text" not in said:
        with pytest.raises(ValueError, match=message):
            mx.load(checkpoint(tmp_path, deep, PAIR))
    config = {"quantization_config": said}
    if method := said.get("text"):
        config["text_config"] = {"quantization_config": {"quant_method": method}}
    with pytest.raises(ValueError, match=message) as raised:
        mx.load(checkpoint(tmp_path, config, PAIR))
    assert "expected" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("case", HARMLESS)
def test_a_config_that_changes_no_weight_does_no_harm(tmp_path, case):
    loaded = mx.load(checkpoint(tmp_path, {"quantization_config": HARMLESS[case]}, PAIR))
    assert loaded["a.weight"].format == "mxfp4"


@pytest.mark.parametrize("name", ["a.b", "a.[b", "a.bb", "a.]", "b", "[a", "a"])
@pytest.mark.parametrize(
    "pattern",
    ["a.b", "a.*", "*b", "a.?", "a.[b]", "a.[!b]*", "a.[b", "[]", "[a", "*[[]*", "[]]", "a.[]]"],
)
def test_patterns_of_a_config_are_those_of_a_shell(pattern, name):
    found = Rules({pattern: True}).find(name)
    assert bool(found) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_takes_time_by_its_length(monkeypatch):
    """Of sixty thousand characters; each would take minutes if it grew as the square."""
    monkeypatch.setattr(configs, "PATTERN_CHARACTERS", 10**6)
    begin = time.process_time()
    for pattern in ("[" * 60_000, "[" * 30_000 + "*" * 30_000, "*a" * 5000 + "[", "[!" * 30_000):
        assert Rules({pattern: True}).find("a" * 10_000) is None
    assert time.process_time() - begin < 60


def test_the_first_rule_that_matches_counts():
    rules = {"a.b": 1, "a.*": 2, "a.c": 3, "?.d": 4, "*": 5}
    found = [Rules(rules).find(name) for name in ("a.b", "a.c", "b.d", "c")]
    assert found == [1, 2, 4, 5]
    assert Rules({"a": 1}).find("b") is None and Rules([1]).find("a") is None


def e4m3(*shape):
    return np.ones(shape, ml_dtypes.float8_e4m3fn)


HALVES = {
    "a scale of another name": (
        {"q.weight": e4m3(4, 64), "q.weight_factor_scale": np.ones((), F32)},
        "q.weight float8_e4m3fn .4, 64. and beside it q.weight_factor_scale float32",
    ),
    "a scale beside the module": (
        {"m.q.weight": e4m3(4, 64), "m.q_scale_of_rows": np.ones(4, F32)}, "beside it m.q_scale_of",
    ),
    "a scale below the weight": (
        {"q.weight": np.ones((4, 64), U8), "q.weight.absmax2": np.ones(4, F32)}, "q.weight.absmax2",
    ),
    "torchao": (
        {"q._weight_qdata": e4m3(4, 64), "q._weight_scale_rows": np.ones((4, 1), F32)},
        "q._weight_qdata .* beside it q._weight_scale_rows",
    ),
    "our own without its metadata": (
        {"q.codes": np.ones((4, 32), U8), "q.scales": np.ones((4, 2), U8)},
        "q.codes uint8 .* beside it q.scales uint8 .* of mx_kernels tells in its metadata",
    ),
    "HQQ": (
        {"q.W_q": np.ones((4, 32), U8), "q.scale": np.ones((4, 2), F32)}, "q.W_q .* it q.scale ",
    ),
    "integers and scales": (
        {"q.weight": np.ones((4, 8), np.int32), "q.scales": np.ones((4, 2), F32)},
        "q.weight int32 .4, 8. and beside it q.scales",
    ),
    "int8 and zero points": (
        {"q.codes8": np.ones((4, 8), np.int8), "q.codes8_zero_point": np.ones(4, F32)},
        "q.codes8 int8 .* beside it q.codes8_zero_point",
    ),
    "int8 with a float scale": (
        {"q.weight": np.ones((4, 32), np.int8), "q.weight_scale": np.ones((4, 1), F32)},
        "q.weight_scale, which is float32 scales",
    ),
    "FP8 alone": ({"q.weight": e4m3(4, 64)}, "codes q.weight .* them; numbers that have none"),
    "fused FP8 alone": ({"m.experts.w1": e4m3(2, 4, 64)}, "codes m.experts.w1"),
    "E5M2 alone": ({"q": np.ones((4, 64), ml_dtypes.float8_e5m2)}, "codes q float8_e5m2"),
    "bytes called weight": ({"q.weight": np.ones((4, 64), U8)}, "codes q.weight uint8"),
    "packed words alone": ({"q.weight_packed": np.ones((4, 8), np.int32)}, "codes q.weight_packed"),
    "a scale alone": ({"q.weight_scale": np.ones((4, 1), F32)}, "scales q.weight_scale float32"),
    "an inverse scale alone": (
        {"m.experts.w1_scale_inv": np.ones((2, 1, 1), F32)}, "expected codes m.experts.w1 of",
    ),
    "a scale of fused experts alone": (
        {"m.experts.gate_up_proj_scale": np.ones((2, 1, 1), F32)}, "codes m.experts.gate_up_proj",
    ),
    "E8M0 alone": (
        {"q.odd": np.ones((2, 2), ml_dtypes.float8_e8m0fnu)}, "scales q.odd float8_e8m0fnu .2, 2.",
    ),
    "scales of MLX alone": ({"q.scales": np.ones((4, 2), F32)}, "scales q.scales"),
    "two kinds of scales": (
        {"q.weight": e4m3(4, 64), "q.weight_scale": np.ones((), F32),
         "q.scale_weight": np.ones((), F32)},
        "q.weight .* beside it q.scale_weight .* the scales of one form and no other",
    ),
    "a bias with a scale": (
        {"q.weight": e4m3(4, 64), "q.weight_scale": np.ones((), F32),
         "q.bias_scale": np.ones(4, F32)},
        "beside it q.bias_scale",
    ),
    "scales in the order of a tensor core": (
        PAIR | {"a.comfy_quant": np.ones(9, U8)}, "a.weight .* beside it a.comfy_quant",
    ),
    "a rotation beside": (
        PAIR | {"a.input_rotation": np.ones((64, 64), F32)}, "a.weight .* beside it a.input_rotat",
    ),
    "a scale before": (
        PAIR | {"a.input_prescale": np.ones(64, F32)}, "a.weight .* beside it a.input_prescale",
    ),
    "activations that are scaled": (
        PAIR | {"a.pre_quant_scale": np.ones(64, F32)}, "which is AWQ of ModelOpt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HALVES)
def test_codes_and_scales_never_pass_as_tensors(tmp_path, case):
    arrays, message = HALVES[case]
    one_file(tmp_path, arrays)
    with pytest.raises(ValueError, match=message) as raised:
        mx.load(tmp_path)
    assert "expected" in str(raised.value)
    with pytest.raises(ValueError, match=message):
        mx.load({name: torch_of(array) for name, array in arrays.items()})


@pytest.mark.parametrize("value", [3, {"a": {"b": torch.ones(1)}}, {"a": None}, {3: torch.ones(1)}])
def test_what_is_no_checkpoint_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"path: got int|state dict: got"):
        mx.load(value)
