"""Checkpoints of every form, as arrays that tests write, and what they mean.

`FORMS[name](rng)` returns the config.json, the arrays by name, and by parameter what a load has
to give: `(format, codes [..., N, packed K], scales [..., N, K/32])`, or the array itself.
`tensorfiles.checkpoint` writes them, `assert_means` compares.
"""

import ml_dtypes
import numpy as np
import torch

import mx_kernels as mx
import oracle
from cases import bytes_of

BLOCK = 32
MX4 = {
    "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0",
    "is_dynamic": False,
}  # fmt: skip
MX8 = MX4 | {"dtype": "fp8_e4m3"}


def codes(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def finite_fp8(rng, *shape, largest=0x7E):
    found = codes(rng, *shape)
    return np.where(found & 0x7F > largest, 0, found).astype(np.uint8)


def scales(rng, *shape):
    return rng.integers(100, 140, shape, dtype=np.uint8)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def plain(rng):
    """Tensors that are no part of anything, one of an odd number of bytes."""
    return {
        "model.norm.weight": floats(rng, 64),
        "model.embed_tokens.weight": floats(rng, 10, 64),
        "model.layers.0.mlp.up_proj.bias": floats(rng, 18),
        "model.odd": codes(rng, 3),
        "model.step": np.array(7, np.int64),
    }


UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts"


def gpt_oss(rng):
    c, s = codes(rng, 2, 18, 3, 16), scales(rng, 2, 18, 3)
    others = plain(rng) | {f"{EXPERTS}.gate_up_proj_bias": floats(rng, 2, 18)}
    arrays = {f"{EXPERTS}.gate_up_proj_blocks": c, f"{EXPERTS}.gate_up_proj_scales": s}
    config = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["x"]}}
    meaning = {f"{EXPERTS}.gate_up_proj": ("mxfp4", c.reshape(2, 18, 48), s)}
    return config, arrays | others, meaning | others


def _quark(weight, layers=None):
    return {
        "quantization_config": {
            "quant_method": "quark",
            "global_quant_config": {"weight": weight, "input_tensors": None},
            "layer_quant_config": layers or {},
            "exclude": ["lm_head"],
        }
    }


def quark_mxfp4(rng):
    c, s = codes(rng, 18, 48), scales(rng, 18, 3)
    others = plain(rng) | {f"{UP}.input_scale": np.array([1.0], np.float32)}
    arrays = {f"{UP}.weight": c, f"{UP}.weight_scale": s} | others
    return _quark(MX4), arrays, {f"{UP}.weight": ("mxfp4", c, s)} | others


def quark_experts(rng):
    c, s = codes(rng, 2, 18, 48), scales(rng, 2, 18, 3)
    name, others = f"{EXPERTS}.gate_up_proj", plain(rng)
    arrays = {f"{name}.weight": c, f"{name}.weight_scale": s} | others
    return _quark([MX4]), arrays, {f"{name}.weight": ("mxfp4", c, s)} | others


def quark_mxfp8(rng):
    c, s = finite_fp8(rng, 18, 96), scales(rng, 18, 3)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.weight_scale": s}
    others = plain(rng)
    return _quark(MX8), arrays | others, {f"{UP}.weight": ("mxfp8", c, s)} | others


def quark_blocks(rng):
    """A row of scales for 8 rows of codes, of which there are 18; MXFP4 beside it."""
    c, s = finite_fp8(rng, 18, 96), scales(rng, 3, 3)
    c4, s4 = codes(rng, 5, 16), scales(rng, 5, 1)
    other = "model.layers.1.mlp.up_proj"
    arrays = {
        f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn),
        f"{UP}.weight_scale": s.view(ml_dtypes.float8_e8m0fnu),
        f"{other}.weight": c4,
        f"{other}.weight_scale": s4,
    }
    blocks = MX8 | {"qscheme": "per_block", "group_size": None, "block_size": [8, 32]}
    config = _quark(MX4, {"*layers.0.mlp*": {"weight": blocks}})
    meaning = {
        f"{UP}.weight": ("mxfp8", c, np.repeat(s, 8, 0)[:18]),
        f"{other}.weight": ("mxfp4", c4, s4),
    }
    others = plain(rng)
    return config, arrays | others, meaning | others


def _compressed(name):
    group = {"format": name, "targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}
    method = {"quant_method": "compressed-tensors", "format": name}
    return {"quantization_config": method | {"config_groups": {"group_0": group}}}


def compressed_mxfp4(rng):
    c, s = codes(rng, 18, 48), scales(rng, 18, 3)
    others = plain(rng)
    arrays = {f"{UP}.weight_packed": c, f"{UP}.weight_scale": s} | others
    meaning = {f"{UP}.weight": ("mxfp4", c, s)}
    return _compressed("mxfp4-pack-quantized"), arrays, meaning | others


def compressed_mxfp8(rng):
    _, arrays, meaning = quark_mxfp8(rng)
    return _compressed("mxfp8-quantized"), arrays, meaning


def mxfp8(rng):
    _, arrays, meaning = quark_mxfp8(rng)
    arrays[f"{UP}.weight_scale_inv"] = arrays.pop(f"{UP}.weight_scale")
    return {"text_config": {"quantization_config": {"quant_method": "mxfp8"}}}, arrays, meaning


def float_scales(rng, *shape):
    return rng.uniform(2**-12, 2**-6, shape).astype(np.float32)


def deepseek(rng):
    """Rows and columns that are no multiples of 128; experts beside them."""
    c, s = finite_fp8(rng, 200, 288), float_scales(rng, 2, 3)
    c3, s3 = finite_fp8(rng, 2, 18, 160), float_scales(rng, 2, 1, 2)
    other = f"{EXPERTS}.gate_up_proj"
    arrays = {
        f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn),
        f"{UP}.weight_scale_inv": s,
        f"{other}.weight": c3.view(ml_dtypes.float8_e4m3fn),
        f"{other}.weight_scale_inv": s3,
    }
    method = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    others = plain(rng)
    meaning = {
        f"{UP}.weight": ("fp8_block_2d", c, s),
        f"{other}.weight": ("fp8_block_2d", c3, s3),
    }
    return {"quantization_config": method}, arrays | others, meaning | others


def fp8_of_a_tensor(rng):
    """One scale, of 16 bits; that of activations is left as it is."""
    c, s = finite_fp8(rng, 18, 96), float_scales(rng, 1).astype(ml_dtypes.bfloat16)
    others = plain(rng) | {f"{UP}.input_scale": np.array([1.0], np.float32)}
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.weight_scale": s} | others
    meaning = {f"{UP}.weight": ("fp8", c, np.full((18, 1), s[0], np.float32))}
    return _compressed("float-quantized"), arrays, meaning | others


def fp8_of_rows(rng):
    c, s = finite_fp8(rng, 18, 96), float_scales(rng, 18)
    weight = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0, "scale_type": "float"}
    others = plain(rng)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.weight_scale": s} | others
    return _quark(weight), arrays, {f"{UP}.weight": ("fp8", c, s[:, None])} | others


def e5m2_of_rows(rng):
    c, s = finite_fp8(rng, 18, 96, largest=0x7B), float_scales(rng, 18, 1)
    weight = {"dtype": "fp8_e5m2", "qscheme": "per_channel", "ch_axis": 0}
    others = plain(rng)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e5m2), f"{UP}.weight_scale": s} | others
    return _quark(weight), arrays, {f"{UP}.weight": ("fp8_e5m2", c, s)} | others


def fp8_of_groups(rng):
    """Compressed-tensors with groups of 128 along K."""
    c, s = finite_fp8(rng, 18, 160), float_scales(rng, 18, 2)
    others = plain(rng)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.weight_scale": s} | others
    return _compressed("float-quantized"), arrays, {f"{UP}.weight": ("fp8_block", c, s)} | others


def fused_fp8(rng):
    """Experts under the parameter's name: a scale for each of them, or for rows."""
    shapes = {"gate_up_proj": (2, 1, 1), "down_proj": (2, 160, 1)}
    others = plain(rng) | {f"{EXPERTS}.gate_up_proj_activation_scale": np.ones(2, np.float32)}
    arrays, meaning = dict(others), dict(others)
    for name, shape in shapes.items():
        c, s = finite_fp8(rng, 2, 160, 96), float_scales(rng, *shape)
        arrays[f"{EXPERTS}.{name}"] = c.view(ml_dtypes.float8_e4m3fn)
        arrays[f"{EXPERTS}.{name}_scale_inv"] = s
        meaning[f"{EXPERTS}.{name}"] = ("fp8", c, np.broadcast_to(s, (2, 160, 1)).copy())
    method = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    return {"quantization_config": method}, arrays, meaning


def turned_fp8(rng):
    """Llama 4 keeps experts as [E, K, N], with a scale for each output."""
    c, s = finite_fp8(rng, 2, 160, 96), float_scales(rng, 2, 160, 1)
    c2, s2 = finite_fp8(rng, 2, 96, 64), float_scales(rng, 2, 96, 1)
    others, of = plain(rng), "model.layers.0.feed_forward.experts"
    arrays = {
        f"{of}.gate_up_proj": c.transpose(0, 2, 1).copy().view(ml_dtypes.float8_e4m3fn),
        f"{of}.gate_up_proj_scale": s.transpose(0, 2, 1).copy(),
        f"{of}.down_proj": c2.transpose(0, 2, 1).copy().view(ml_dtypes.float8_e4m3fn),
        f"{of}.down_proj_scale": s2.transpose(0, 2, 1).copy(),
    }
    said = {"quant_method": "fbgemm_fp8"}
    config = {"model_type": "llama4_text", "hidden_size": 96, "quantization_config": said}
    meaning = {
        f"{of}.gate_up_proj": ("fp8", c, s),
        f"{of}.down_proj": ("fp8", c2, s2),
    }
    return config, arrays | others, meaning | others


def fused_fp8_blocks(rng):
    c, s = finite_fp8(rng, 2, 200, 288), float_scales(rng, 2, 2, 3)
    name, others = f"{EXPERTS}.gate_up_proj", plain(rng)
    arrays = {name: c.view(ml_dtypes.float8_e4m3fn), f"{name}_scale_inv": s} | others
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    return {"quantization_config": method}, arrays, {name: ("fp8_block_2d", c, s)} | others


def power_of_two(s):
    """What E8M0 bytes are, as float32."""
    return s.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def deepseek_v4(rng):
    """E8M0 for 128 x 128, and beside it experts in E2M1 that are said to be int8."""
    c, s = finite_fp8(rng, 200, 288), scales(rng, 2, 3)
    c4, s4 = codes(rng, 18, 48), scales(rng, 18, 3)
    other, others = "model.layers.0.ffn.experts.3.w1", plain(rng)
    arrays = {
        f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn),
        f"{UP}.scale": s.view(ml_dtypes.float8_e8m0fnu),
        f"{other}.weight": c4.view(np.int8),
        f"{other}.scale": s4.view(ml_dtypes.float8_e8m0fnu),
    }
    meaning = {
        f"{UP}.weight": ("fp8_block_2d", c, power_of_two(s)),
        f"{other}.weight": ("mxfp4", c4, s4),
    }
    method = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    return {"quantization_config": method}, arrays | others, meaning | others


def quark_e8m0_blocks(rng):
    """E8M0 for 128 x 128 as bytes, which only the config tells."""
    c, s = finite_fp8(rng, 200, 288), scales(rng, 2, 3)
    others = plain(rng)
    weight = MX8 | {"qscheme": "per_block", "group_size": None, "block_size": [128, 128]}
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.weight_scale": s} | others
    meaning = {f"{UP}.weight": ("fp8_block_2d", c, power_of_two(s))}
    return _quark(weight), arrays, meaning | others


def _blocks(rng, block, scale_dtype, format, repeats):
    """FP8 in blocks that only the config tells, and its scales repeated as the format has them."""
    shape = (200, 608)
    stored = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    is_float = scale_dtype == np.float32
    c, s = finite_fp8(rng, *shape), (float_scales if is_float else scales)(rng, *stored)
    arrays = {
        f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn),
        f"{UP}.weight_scale_inv": s.view(scale_dtype),
    }
    method = {"quant_method": "fp8", "weight_block_size": list(block)}
    values = s if is_float or format == "mxfp8" else power_of_two(s)
    for axis, times in enumerate(repeats):
        values = np.repeat(values, times, axis)
    values = values[:200] if format != "fp8_block_2d" else values[:2]
    values = values[:, : 608 // 32 if format == "mxfp8" else 5].copy()
    others = plain(rng)
    return {"quantization_config": method}, arrays | others, {
        f"{UP}.weight": (format, c, values)
    } | others  # fmt: skip


E8 = ml_dtypes.float8_e8m0fnu
BLOCKS = {
    "blocks_of_64_rows": ((64, 128), np.float32, "fp8_block", (64, 1)),
    "blocks_of_256": ((256, 256), np.float32, "fp8_block_2d", (2, 2)),
    "e8m0_of_64_rows": ((64, 128), E8, "fp8_block", (64, 1)),
    "e8m0_of_64": ((1, 64), np.uint8, "mxfp8", (1, 2)),
    "e8m0_of_128_rows_of_32": ((128, 32), np.uint8, "mxfp8", (128, 1)),
}


def _modelopt(algorithm, **others):
    said = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], **others}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
    return {"quantization_config": said | {"config_groups": {"group_0": group}}}


def modelopt_fp8(rng):
    _, arrays, meaning = fp8_of_a_tensor(rng)
    cache = {"model.layers.0.self_attn.k_proj.k_scale": np.ones((), np.float32)}
    return _modelopt("FP8"), arrays | cache, meaning | cache


def modelopt_blocks(rng):
    """Scales with the axes within blocks."""
    c, s = finite_fp8(rng, 256, 384), float_scales(rng, 2, 3)
    others = plain(rng)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn),
              f"{UP}.weight_scale": s[:, None, :, None]} | others  # fmt: skip
    return _modelopt("fp8_pb_wo"), arrays, {f"{UP}.weight": ("fp8_block_2d", c, s)} | others


def modelopt_mixed(rng):
    """MXFP8 and, by the name of a module, FP8."""
    _, arrays, meaning = quark_mxfp8(rng)
    c, s = finite_fp8(rng, 18, 96), float_scales(rng)
    other = "model.layers.1.self_attn.o_proj"
    of_other = {f"{other}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{other}.weight_scale": s}
    layers = {UP: {"quant_algo": "MXFP8", "group_size": 32}, other: {"quant_algo": "FP8"}}
    scales_ = np.full((18, 1), s, np.float32)
    config = _modelopt("MIXED_PRECISION", quantized_layers=layers)
    return config, arrays | of_other, meaning | {f"{other}.weight": ("fp8", c, scales_)}


def fbgemm(rng):
    _, arrays, meaning = fp8_of_rows(rng)
    said = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    return {"quantization_config": said}, arrays, meaning


def auto_round(rng):
    """Four bits, and eight by the name of a module."""
    _, arrays, meaning = compressed_mxfp4(rng)
    c, s = finite_fp8(rng, 18, 96), scales(rng, 18, 3)
    other = "model.layers.1.mlp.up_proj"
    said = {
        "quant_method": "auto-round", "packing_format": "auto_round:llm_compressor",
        "data_type": "mx_fp", "bits": 4, "group_size": 32, "sym": True,
        "extra_config": {
            ".*layers\\.1.*": {"bits": 8}, "lm_head": {"bits": 16, "data_type": "float"},
        },
    }  # fmt: skip
    of_other = {f"{other}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{other}.weight_scale": s}
    meaning = meaning | {f"{other}.weight": ("mxfp8", c, s)}
    return {"quantization_config": said}, arrays | of_other, meaning


def mlx(rng):
    """Words of 32 bits: experts in four bits, and layers in eight, and in four of NVFP4."""
    c, s = codes(rng, 2, 18, 48), scales(rng, 2, 18, 3)
    c8, s8 = finite_fp8(rng, 18, 96), scales(rng, 18, 3)
    c16, s16, _ = _nvfp4(rng, 18, 96)
    name, others = "model.layers.0.mlp.switch_mlp.up_proj", plain(rng)
    nvfp4 = "model.layers.1.mlp.up_proj"
    said = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    said |= {UP: {"group_size": 32, "bits": 8, "mode": "mxfp8"}}
    said |= {nvfp4: {"group_size": 16, "bits": 4, "mode": "nvfp4"}}
    arrays = {f"{name}.weight": c.view(np.uint32), f"{name}.scales": s,
              f"{UP}.weight": c8.view(np.uint32), f"{UP}.scales": s8,
              f"{nvfp4}.weight": c16.view(np.uint32), f"{nvfp4}.scales": s16}  # fmt: skip
    meaning = {f"{name}.weight": ("mxfp4", c, s), f"{UP}.weight": ("mxfp8", c8, s8)}
    meaning |= {f"{nvfp4}.weight": ("nvfp4", c16, _of_rows(s16, 1.0))}
    return {"quantization": said, "quantization_config": said}, arrays | others, meaning | others


def compressed_mxfp6(rng):
    c, s = codes(rng, 18, 72), scales(rng, 18, 3)
    others = plain(rng)
    arrays = {f"{UP}.weight_packed": c, f"{UP}.weight_scale": s} | others
    return _compressed("mxfp6-pack-quantized"), arrays, {f"{UP}.weight": ("mxfp6", c, s)} | others


def quark_e3m2(rng):
    """Six bits as bytes, whose format only the config tells."""
    c, s = codes(rng, 18, 72), scales(rng, 18, 3)
    others = plain(rng)
    arrays = {f"{UP}.weight": c, f"{UP}.weight_scale": s} | others
    return (
        _quark(MX4 | {"dtype": "fp6_e3m2"}),
        arrays,
        {f"{UP}.weight": ("mxfp6_e3m2", c, s)} | others,
    )


def _nvfp4(rng, *shape):
    """Codes, E4M3 scales, and tensor scales for each leading index."""
    *lead, rows, k = shape
    s = finite_fp8(rng, *lead, rows, k // 16, largest=0x7E) & 0x7F
    return codes(rng, *lead, rows, k // 2), s, float_scales(rng, *lead)


def _of_rows(s, whole):
    """Scales as a tensor holds them: behind those of a row its tensor scale."""
    whole = np.broadcast_to(np.float32(whole)[..., None, None], (*s.shape[:-1], 1))
    return np.concatenate([s, whole.copy().view(np.uint8)], -1)


def compressed_nvfp4(rng):
    """What values are divided by is stored: a power of two, so that its reciprocal is exact."""
    c, s, _ = _nvfp4(rng, 18, 96)
    others = plain(rng) | {f"{UP}.input_global_scale": np.ones(1, np.float32)}
    arrays = {
        f"{UP}.weight_packed": c, f"{UP}.weight_scale": s.view(ml_dtypes.float8_e4m3fn),
        f"{UP}.weight_global_scale": np.full(1, 512, np.float32),
    }  # fmt: skip
    group = {"strategy": "tensor_group", "group_size": 16, "num_bits": 4, "type": "float"}
    config = _compressed("nvfp4-pack-quantized")
    config["quantization_config"]["config_groups"]["group_0"]["weights"] = group
    meaning = {f"{UP}.weight": ("nvfp4", c, _of_rows(s, 2**-9))}
    return config, arrays | others, meaning | others


def quark_nvfp4(rng):
    """Quark says of codes and of their scales how each is quantized."""
    c, s, whole = _nvfp4(rng, 18, 96)
    others = plain(rng) | {f"{UP}.input_scale_2": np.ones((), np.float32)}
    of_codes = {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "is_scale_quant": False,
                "scale_format": "float32", "symmetric": None}  # fmt: skip
    of_scales = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_scale_quant": True,
                 "scale_type": "float32", "symmetric": True}  # fmt: skip
    arrays = {f"{UP}.weight": c, f"{UP}.weight_scale": s.view(ml_dtypes.float8_e4m3fn)}
    arrays[f"{UP}.weight_scale_2"] = np.asarray(whole, np.float32)
    meaning = {f"{UP}.weight": ("nvfp4", c, _of_rows(s, whole))}
    return _quark([of_codes, of_scales]), arrays | others, meaning | others


def modelopt_nvfp4(rng):
    """A tensor scale for each matrix, also of experts in one tensor and of those apart."""
    arrays, meaning = {}, {}
    one, three = (_nvfp4(rng, *shape) for shape in ((18, 96), (3, 18, 64)))
    apart = _nvfp4(rng, 2, 2, 18, 96)
    other = "model.layers.1.mlp.experts"
    found = {f"{UP}.weight": one, f"{EXPERTS}.down_proj": three}
    meaning = {name: ("nvfp4", c, _of_rows(s, g)) for name, (c, s, g) in found.items()}
    for e in range(2):
        for i, name in enumerate(("gate_proj", "up_proj")):
            found[f"{other}.{e}.{name}.weight"] = [part[e, i] for part in apart]
    for name, (c, s, whole) in found.items():
        arrays |= {
            name: c, f"{name}_scale": s.view(ml_dtypes.float8_e4m3fn),
            f"{name}_scale_2": np.asarray(whole, np.float32),
        }  # fmt: skip
    c, s, whole = apart
    joined = _of_rows(s, whole).reshape(2, 36, 10)
    meaning[f"{other}.gate_up_proj"] = ("nvfp4", c.reshape(2, 36, 48), joined)
    others = plain(rng) | {f"{UP}.input_scale": np.ones((), np.float32)}
    return _modelopt("NVFP4", group_size=16), arrays | others, meaning | others


def odd_k(rng):
    """K that no block divides: floats, beside codes."""
    config, arrays, meaning = compressed_mxfp4(rng)
    name = "vision_tower.layers.0.fc1"
    c, s = codes(rng, 18, 20), scales(rng, 18, 2)
    arrays |= {f"{name}.weight_packed": c, f"{name}.weight_scale": s}
    meaning |= {f"{name}.weight": _as_floats(c, s, "mxfp4", 40)}
    for number, (format, stored) in enumerate(
        {"fp8": (18, 1), "mxfp8": (18, 2), "fp8_block_2d": (1, 1)}.items()
    ):
        c = finite_fp8(rng, 18, 48)
        s = (scales if format == "mxfp8" else float_scales)(rng, *stored)
        arrays |= {f"{name}_{number}.weight": c.view(ml_dtypes.float8_e4m3fn),
                   f"{name}_{number}.weight_scale": s}  # fmt: skip
        meaning |= {f"{name}_{number}.weight": _as_floats(c, s, format, 48)}
    return config, arrays, meaning


def experts_apart(rng):
    """A tensor for each of three experts, of rows that no block of 128 divides."""
    c, s = finite_fp8(rng, 3, 2, 200, 288), float_scales(rng, 3, 2, 2, 3)
    c2, s2 = finite_fp8(rng, 3, 288, 224), float_scales(rng, 3, 3, 2)
    arrays = {}
    for e in (1, 2, 0):
        for name, of_codes, of_scales in (
            ("up_proj", c[e, 1], s[e, 1]), ("gate_proj", c[e, 0], s[e, 0]),
            ("down_proj", c2[e], s2[e]),
        ):  # fmt: skip
            arrays[f"{EXPERTS}.{e}.{name}.weight"] = of_codes.view(ml_dtypes.float8_e4m3fn)
            arrays[f"{EXPERTS}.{e}.{name}.weight_scale_inv"] = of_scales
    config = deepseek(rng)[0] | {"num_experts": 3}
    others = plain(rng)
    by_rows = np.repeat(s, 128, 2)[:, :, :200].reshape(3, 400, 3)
    meaning = {
        f"{EXPERTS}.gate_up_proj": ("fp8_block", c.reshape(3, 400, 288), by_rows),
        f"{EXPERTS}.down_proj": ("fp8_block_2d", c2, s2),
    }
    return config, arrays | others, meaning | others


def experts_of_bytes(rng):
    """DeepSeek-V4's names, and biases; experts without a gate in another layer."""
    c, s = codes(rng, 2, 2, 18, 48), scales(rng, 2, 2, 18, 3)
    c2, s2 = codes(rng, 2, 96, 16), scales(rng, 2, 96, 1)
    c3, s3 = codes(rng, 2, 18, 48), scales(rng, 2, 18, 3)
    bias = floats(rng, 2, 2, 18)
    here, there = "layers.0.ffn.experts", "backbone.layers.1.mixer.experts"
    others, arrays = plain(rng), {}
    for e in range(2):
        pairs = {
            f"{here}.{e}.w1": (c[e, 0], s[e, 0]), f"{here}.{e}.w2": (c2[e], s2[e]),
            f"{here}.{e}.w3": (c[e, 1], s[e, 1]), f"{there}.{e}.up_proj": (c3[e], s3[e]),
        }  # fmt: skip
        for name, (of_codes, of_scales) in pairs.items():
            arrays[f"{name}.weight"] = of_codes.view(np.int8)
            arrays[f"{name}.scale"] = of_scales.view(ml_dtypes.float8_e8m0fnu)
        arrays |= {f"{here}.{e}.w1.bias": bias[e, 0], f"{here}.{e}.w3.bias": bias[e, 1]}
    meaning = {
        f"{here}.gate_up_proj": ("mxfp4", c.reshape(2, 36, 48), s.reshape(2, 36, 3)),
        f"{here}.gate_up_proj_bias": bias.reshape(2, 36),
        f"{here}.down_proj": ("mxfp4", c2, s2),
        f"{there}.up_proj": ("mxfp4", c3, s3),
    }
    return {}, arrays | others, meaning | others


def _as_floats(c, s, format, k):
    padded = np.pad(c, ((0, 0), (0, c.shape[1] * (-k % 32) // k)))
    values = oracle.dequantize(padded, s, format)[:, :k]
    return values.astype(np.float32).astype(ml_dtypes.bfloat16)


def _of_a_file(rng, ending):
    """FP8 with one scale, in a file that has no config."""
    c, s = finite_fp8(rng, 18, 96), float_scales(rng)
    others = plain(rng)
    arrays = {f"{UP}.weight": c.view(ml_dtypes.float8_e4m3fn), f"{UP}.{ending}": np.float32(s)}
    meaning = {f"{UP}.weight": ("fp8", c, np.full((18, 1), s, np.float32))}
    return {}, arrays | others, meaning | others


def comfyui(rng):
    config, arrays, meaning = _of_a_file(rng, "scale_weight")
    marks = {"scaled_fp8": finite_fp8(rng, 2).view(ml_dtypes.float8_e4m3fn)}
    return config, arrays | marks, meaning | marks


def mistral(rng):
    config, arrays, meaning = _of_a_file(rng, "qscale_weight")
    of_activations = {f"{UP}.qscale_act": np.ones((), np.float32)}
    return config, arrays | of_activations, meaning | of_activations


FORMS = {
    form.__name__: form
    for form in (
        gpt_oss, quark_mxfp4, quark_experts, quark_mxfp8, quark_blocks, compressed_mxfp4,
        compressed_mxfp8, mxfp8, deepseek, fp8_of_a_tensor, fp8_of_rows, e5m2_of_rows,
        fp8_of_groups, fused_fp8, turned_fp8, fused_fp8_blocks, deepseek_v4, quark_e8m0_blocks,
        modelopt_fp8, modelopt_blocks, modelopt_mixed, fbgemm, auto_round, mlx, compressed_mxfp6,
        quark_e3m2, compressed_nvfp4, quark_nvfp4, modelopt_nvfp4, odd_k,
        experts_apart, experts_of_bytes, comfyui, mistral,
    )
}  # fmt: skip


FORMS |= {name: lambda rng, case=case: _blocks(rng, *case) for name, case in BLOCKS.items()}


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
