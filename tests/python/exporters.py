"""A checkpoint by another tool's own exporter, and what that tool itself dequantizes it to.

    python exporters.py TOOL SCHEME FOLDER      in the environment that has the tool
    python exporters.py TOOL read FOLDER        of a checkpoint that is there already

writes the checkpoint to FOLDER, and to FOLDER.expected a safetensors file of float32 weights by
name. The model is a tiny mixture of experts, one tensor an expert.
"""

# Each tool is imported where it is asked for: an environment has not all of them.
# ruff: noqa: PLC0415

import copy
import sys
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 96, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "mlp_only_layers": [0],
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.arange(40).view(2, 20)


def tiny(dtype=torch.bfloat16):
    torch.manual_seed(0)
    config = tf.Qwen3MoeConfig(**SIZES, architectures=["Qwen3MoeForCausalLM"])
    model = tf.Qwen3MoeForCausalLM(config).to(dtype).eval()
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return model


def tensors_in(folder):
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


def modelopt(scheme, folder):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.nn.modules.tensor_quantizer import TensorQuantizer

    model, is_fp8 = tiny(), scheme.startswith("FP8")
    # Others need no calibration, and the kernels of CUDA that round activations are not here.
    mtq.quantize(model, getattr(mtq, f"{scheme}_CFG"), (lambda m: m(IDS)) if is_fp8 else None)
    if not is_fp8:
        TensorQuantizer.forward = lambda self, x: x
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=str(folder))
    return of_modelopt(folder)


def of_modelopt(folder):
    """Returns what ModelOpt makes of the weights in a folder."""
    from modelopt.torch.export.quant_utils import from_quantized_weight
    from modelopt.torch.quantization.qtensor import (
        FP8QTensor,
        MXFP4QTensor,
        MXFP8QTensor,
        NVFP4QTensor,
    )

    tensors, expected = tensors_in(folder), {}
    for name in [name.removesuffix("_scale") for name in tensors if name.endswith("weight_scale")]:
        codes, scales, float32 = tensors[name], tensors[f"{name}_scale"], torch.float32
        if f"{name}_scale_2" in tensors:
            shape = torch.Size((codes.shape[0], 2 * codes.shape[1]))
            q = NVFP4QTensor(shape, float32, codes)
            scale = {"scale": scales, "double_scale": tensors[f"{name}_scale_2"]}
            expected[name] = q.dequantize(float32, block_sizes={-1: 16}, **scale)
        elif codes.dtype == torch.uint8:
            shape = torch.Size((codes.shape[0], 2 * codes.shape[1]))
            q = MXFP4QTensor(shape, float32, codes)
            expected[name] = q.dequantize(float32, scale=scales, block_sizes={-1: 32})
        elif scales.dtype == torch.uint8:
            expected[name] = MXFP8QTensor(codes.shape, float32, codes).dequantize(scale=scales)
        elif scales.ndim == 0:
            expected[name] = from_quantized_weight(codes, scales, "fp8", float32)
        else:
            is_blocks = scales.ndim == 4
            blocks = {-1: 128, -2: 128} if is_blocks else None
            scale = scales.squeeze((1, 3)) if is_blocks else scales[:, None]
            q = FP8QTensor(codes.shape, float32, codes)
            expected[name] = q.dequantize(float32, scale=scale, block_sizes=blocks)
    return expected


def _quantize(model, scheme):
    """Gives a model compressed-tensors' scheme, and scales; returns the names of its layers."""
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    group = preset_name_to_scheme(scheme, ["Linear"])
    config = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head", "re:.*gate$"])
    apply_quantization_config(model, config)
    names = [n for n, m in model.named_modules() if hasattr(m, "weight_scale")]
    for module in map(model.get_submodule, names):
        args, (rows, k) = module.quantization_scheme.weights, module.weight.shape
        group = 1, args.group_size
        sizes = {"channel": (1, k), "tensor": (rows, k), "group": group, "tensor_group": group}
        high, of_k = (
            sizes.get(str(args.strategy).rpartition(".")[2].lower()) or args.block_structure
        )
        blocks = module.weight.detach().view(rows // high, high, k // of_k, of_k)
        ends, whole = (blocks.amin((1, 3)), blocks.amax((1, 3))), None
        if hasattr(module, "weight_global_scale"):
            whole = generate_gparam(ends[0].min(), ends[1].max())
            module.weight_global_scale.data.copy_(whole)
        scale, _ = calculate_qparams(*ends, args, global_scale=whole)
        module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    return names


def compressed_tensors(scheme, folder):
    from compressed_tensors.compressors import ModelCompressor

    model = tiny(torch.float32)
    names = _quantize(model, scheme)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    if scheme.startswith("NVFP4"):
        # Decompressing the model would round to bfloat16.
        return {f"{n}.weight": _of_nvfp4(model.get_submodule(n)) for n in names}
    compressor.decompress_model(model)
    return {f"{n}.weight": model.get_parameter(f"{n}.weight").float() for n in names}


def dense():
    """Returns a tiny Llama in float32."""
    torch.manual_seed(0)
    sizes = {k: v for k, v in SIZES.items() if "expert" not in k and "mlp_only" not in k}
    sizes.pop("moe_intermediate_size")
    config = tf.LlamaConfig(**sizes, architectures=["LlamaForCausalLM"])
    model = tf.LlamaForCausalLM(config).eval()
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return model


@torch.no_grad()
def compressed_tensors_rotated(scheme, folder):
    """What down_proj is given is rotated in blocks of 64, what q, k and v are in blocks of 128."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationStatus
    from compressed_tensors.transform import (
        TransformArgs,
        TransformConfig,
        TransformScheme,
        apply_transform_config,
    )

    model, schemes = dense(), {}
    for name, target, size in (("R4", "down", 64), ("U", "(q|k|v)", 128)):
        places = (("input", False), ("weight_input", True))
        apply = [
            TransformArgs(targets=[f"re:.*{target}_proj$"], location=at, inverse=is_inverse)
            for at, is_inverse in places
        ]
        schemes[name] = TransformScheme(type="hadamard", head_dim=size, apply=apply)
    apply_transform_config(model, TransformConfig(config_groups=schemes))
    for name in _quantize(model, scheme):
        model.get_submodule(name).quantization_status = QuantizationStatus.FROZEN
    logits = model(IDS).logits
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return {"logits": logits}


@torch.no_grad()
def quark_rotated(scheme, folder):
    """What all layers but o_proj are given is rotated in blocks of 64."""
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import RotationConfig

    layer = "model.layers.layer_id."
    readers = [
        [f"{layer}self_attn.{of}_proj" for of in "qkv"],
        [f"{layer}mlp.{of}_proj" for of in ("up", "gate")],
    ]
    places = [{"target_modules": of, "next_modules": of} for of in readers]
    config = LLMTemplate.get("llama").get_config(scheme=scheme)
    config.algo_config = [
        RotationConfig(
            model_decoder_layers="model.layers", v_proj="self_attn.v_proj", mlp="mlp",
            o_proj="self_attn.o_proj", self_attn="self_attn", rotation_size=64,
            scaling_layers={"first_layer": places, "middle_layers": places, "last_layer": []},
            r1=True, online_r1_rotation=True, r2=False, r3=False, r4=True,
        )
    ]  # fmt: skip
    model = ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(dense(), [IDS]))
    logits = model(IDS).logits
    export_safetensors(model, folder)
    return {"logits": logits}


def _of_nvfp4(module):
    """Returns what compressed-tensors makes of the weights of a module, in float32."""
    from compressed_tensors.compressors import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    rows, packed = module.weight_packed.shape
    codes = unpack_fp4_from_uint8(module.weight_packed, rows, 2 * packed, dtype=torch.float32)
    args, scale = module.quantization_scheme.weights, module.weight_scale.float()
    return dequantize(codes, scale, args=args, global_scale=module.weight_global_scale)


def quark(scheme, folder):
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors

    config = LLMTemplate.get("qwen3_moe").get_config(scheme=scheme)
    model = ModelQuantizer(config).quantize_model(tiny(torch.float32), [IDS])
    model, floats = ModelQuantizer.freeze(model), folder.with_suffix(".floats")
    export_safetensors(copy.deepcopy(model), floats, weight_format="fake_quantized")
    export_safetensors(model, folder)
    names = [n.removesuffix("_scale") for n in tensors_in(folder) if n.endswith("weight_scale")]
    values = tensors_in(floats)
    return {name: values[name].float() for name in names}


def auto_round(scheme, folder):
    from auto_round import AutoRound
    from auto_round.experimental.qmodules.mx import MXFP4QuantLinear, MXFP8QuantLinear
    from auto_round.schemes import preset_name_to_scheme
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = WordLevel({f"w{i}": i for i in range(SIZES["vocab_size"])}, unk_token="w0")
    tokens = {"pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **tokens)
    model, source = tiny(), folder.with_suffix(".source")
    model.save_pretrained(source)
    scheme, _, form = scheme.partition(":")
    # Round to nearest, without data.
    rounder = AutoRound(model, tokenizer=tokenizer, scheme=scheme, iters=0, disable_opt_rtn=True)
    written = folder.with_suffix(".written")
    rounder.quantize_and_save(str(written), format=form)
    (made,) = {file.parent for file in written.rglob("config.json")}
    made.rename(folder)
    tensors, expected, said = tensors_in(folder), {}, preset_name_to_scheme(scheme)
    for name, scales in tensors.items():
        if name.endswith(".weight_scale"):
            base = name.removesuffix("_scale")
            packed = tensors.get(f"{base}_packed")
            kind = MXFP8QuantLinear if packed is None else MXFP4QuantLinear
            codes = tensors[base] if packed is None else packed
            sizes = 32 * scales.shape[1], len(scales)
            layer = kind(*sizes, said, weight=codes, weight_scale=scales, dtype=torch.float32)
            expected[base] = layer.dequant_weight_online()
    return expected


def read(tool, folder):
    """Returns what a tool makes of the linear layers in a folder, which it has not written."""
    if tool == "modelopt":
        return of_modelopt(folder)
    config, float32 = tf.AutoConfig.from_pretrained(folder), {"dtype": torch.float32}
    if tool == "quark":
        from quark.torch import import_model_from_safetensors

        del config.quantization_config
        model = tf.AutoModelForCausalLM.from_config(config, **float32)
        model = import_model_from_safetensors(model, str(folder))
    else:
        is_nvfp4 = config.quantization_config["format"].startswith("nvfp4")
        how = tf.CompressedTensorsConfig(dequantize=not is_nvfp4)
        model = tf.AutoModelForCausalLM.from_pretrained(folder, quantization_config=how, **float32)
        if is_nvfp4:
            # Dequantizing the model would round to bfloat16.
            packed = {n: m for n, m in model.named_modules() if hasattr(m, "weight_packed")}
            return {f"{n}.weight": _of_nvfp4(m) for n, m in packed.items()}
    layers = {n: m for n, m in model.named_modules() if n.endswith("_proj")}
    with torch.inference_mode():
        return {f"{n}.weight": m(torch.eye(m.in_features)).T for n, m in layers.items()}


if __name__ == "__main__":
    tool, scheme, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    expected = read(tool, folder) if scheme == "read" else globals()[tool](scheme, folder)
    contiguous = {name: t.contiguous() for name, t in expected.items()}
    save_file(contiguous, folder.with_suffix(".expected"))
