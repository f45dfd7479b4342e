"""What the plugin gives vLLM without an engine: run by the environment that has it.

    python dispatch.py     a line of JSON: what each of CLAIMS raised, or null

Layers are bare modules, as vLLM hands them to a method; platforms are told, so that what a GPU
would get is seen on a machine without one.
"""

import json
import traceback
from types import SimpleNamespace

import torch
from torch import nn

import mx_kernels as mx

WIDTH, ROWS, EXPERTS, INNER = 128, 384, 4, 256
FORMATS = ("mxfp4", "mxfp8", "mxint8", "fp8", "fp8_block", "fp8_block_2d")
CLAIMS = {}


def claim(function):
    """Lists a function that raises if it is false."""
    CLAIMS[function.__name__] = function
    return function


def raised(error, call, *args, **kwargs) -> str:
    """Returns what a call says that has to raise."""
    try:
        call(*args, **kwargs)
    except error as found:
        return str(found)
    raise AssertionError(f"expected {error.__name__}")


def config_of(formats, activations=None):
    from mx_kernels.integrations.vllm.config import MXVllmConfig  # noqa: PLC0415  only vLLM's environment

    config = MXVllmConfig(activations)
    config.formats = dict(formats)
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return config


def bare(cls):
    """Returns a layer of a class of vLLM's without making it."""
    layer = cls.__new__(cls)
    nn.Module.__init__(layer)
    return layer


def made_linear(format, sizes=(ROWS,), width=WIDTH, whole=None, activations=None):
    """Returns a method, and a layer with its empty parameters."""
    from vllm.model_executor import parameter  # noqa: PLC0415

    from mx_kernels.integrations.vllm.config import MXLinearMethod  # noqa: PLC0415

    parameter.get_tensor_model_parallel_rank = lambda: 0
    parameter.get_tensor_model_parallel_world_size = lambda: 1
    method, layer = MXLinearMethod(format, activations), nn.Module()
    whole = whole or (width, sum(sizes))
    method.create_weights(layer, width, list(sizes), *whole, torch.bfloat16, weight_loader=print)
    return method, layer


def filled(layer, weight):
    layer.weight.codes.data.copy_(weight.codes)
    layer.weight.scales.data.copy_(weight.scales)


@claim
def every_format_multiplies_as_our_own_layer():
    torch.manual_seed(0)
    x, bias = torch.randn(5, WIDTH).bfloat16(), torch.randn(ROWS).bfloat16()
    for format in FORMATS:
        weight = mx.quantize(torch.randn(ROWS, WIDTH), format=format)
        method, layer = made_linear(format)
        filled(layer, weight)
        method.process_weights_after_loading(layer)
        assert layer.weight.format == format and not layer.weight.requires_grad
        assert layer.weight.layout == "preshuffled_cpu"
        expected = mx.linear(x, weight, bias=bias, activations=None)
        assert torch.equal(method.apply(layer, x, bias), expected), format


@claim
def activations_are_what_is_said_or_best_by_these_weights():
    from mx_kernels.integrations.vllm.linear import activations_of  # noqa: PLC0415

    said = {f: activations_of(None, torch.device("cpu"), f) for f in FORMATS}
    assert said["mxfp4"] == said["mxint8"] == "mxint8"
    assert (said["fp8"], said["fp8_block"], said["fp8_block_2d"]) == (
        ("fp8", "fp8_block", "fp8_block")
    )
    assert activations_of("bf16", torch.device("cpu"), "fp8") == "bf16"
    gpu = {f: activations_of(None, torch.device("cuda"), f) for f in FORMATS}
    assert (gpu["mxfp4"], gpu["mxfp8"], gpu["fp8_block_2d"]) == ("bf16", "mxfp8", "fp8_block")
    assert "mxfp4" not in {*said.values(), *gpu.values()}
    assert "expected 'mxfp4'" in raised(ValueError, activations_of, "int4", torch.device("cpu"))


@claim
def parts_that_would_cut_a_block_are_refused():
    whole = (2 * WIDTH, ROWS)
    made_linear("mxfp4", width=96, whole=whole)
    made_linear("fp8", width=96, whole=whole)
    for format, width, unit in (("mxint8", 80, 32), ("fp8_block_2d", 96, 128)):
        said = raised(ValueError, made_linear, format, width=width, whole=whole)
        assert f"multiple of {unit}" in said and "tensor parallel size" in said, said
    made_linear("fp8_block_2d", sizes=(ROWS - 32,))
    said = raised(ValueError, made_linear, "fp8_block_2d", sizes=(128, 96))
    assert "[128, 96]" in said and "multiples of 128, the rows of a block" in said, said
    raised(ValueError, made_linear, "fp8_block_2d", sizes=(96,), whole=(WIDTH, 192))


@claim
def parts_of_a_row_all_load_its_scale():
    for format, attribute in (("fp8", False), ("mxint8", True), ("fp8_block_2d", True)):
        _, layer = made_linear(format)
        assert hasattr(layer.weight.scales, "input_dim") == attribute, format
        assert layer.weight.scales.output_dim == 0
    assert layer.weight_block_size == [128, 128]


@claim
def layers_are_chosen_by_the_names_of_their_weights():
    from vllm.model_executor.layers.linear import (  # noqa: PLC0415
        LinearBase,
        UnquantizedLinearMethod,
    )
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: PLC0415
        ParallelLMHead,
    )
    from vllm.model_executor.models.utils import WeightsMapper  # noqa: PLC0415

    joined = {f"m.self_attn.{name}_proj": "mxfp4" for name in "qkv"}
    config = config_of(joined | {"m.up": "mxint8"}, {"m.up": "bf16"})
    config.apply_vllm_mapper(WeightsMapper(orig_to_new_substr={".self_attn.": ".attn."}))
    method = config.get_quant_method(bare(LinearBase), "m.attn.qkv_proj")
    assert (method.format, method.said) == ("mxfp4", None)
    method = config.get_quant_method(bare(LinearBase), "m.up")
    assert (method.format, method.said) == ("mxint8", "bf16")
    kept = config.get_quant_method(bare(LinearBase), "m.gate")
    assert isinstance(kept, UnquantizedLinearMethod)
    assert config.get_quant_method(nn.Module(), "m.attn") is None

    config.formats["m.attn.q_proj"] = "fp8"
    said = raised(ValueError, config.get_quant_method, bare(LinearBase), "m.attn.qkv_proj")
    assert "m.attn.q_proj as fp8, m.attn.k_proj as mxfp4" in said
    config.formats["lm_head"] = "mxint8"
    said = raised(NotImplementedError, config.get_quant_method, bare(ParallelLMHead), "lm_head")
    assert "got an output head in mxint8, expected floats" in said


# Experts


GATES = {
    "silu": ({}, {"hidden_act": "silu"}),
    "silu with a limit": ({"swiglu_limit": 1.5}, {"hidden_act": "silu", "limit": 1.5}),
    "swigluoai": ({}, {"hidden_act": "swiglu_oai"}),
    "swigluoai_uninterleave": (
        {"swiglu_limit": 2.0, "swiglu_alpha": 1.5, "swiglu_beta": 1.0},
        {"hidden_act": "swiglu_oai", "limit": 2.0, "alpha": 1.5},
    ),
    "swiglustep": ({"swiglu_limit": 0.5}, {"hidden_act": "swiglu_step", "limit": 0.5}),
    "gelu_tanh": ({}, {"hidden_act": "gelu_tanh"}),
    "situ": (
        {"activation_situ_beta": 1.5, "activation_situ_linear_beta": 2.0},
        {"hidden_act": "situ", "beta": 1.5, "linear_beta": 2.0},
    ),
    "situ of plain ups": (
        {"activation_situ_beta": 4.0},
        {"hidden_act": "situ", "beta": 4.0, "linear_beta": float("inf")},
    ),
    "relu2_no_mul": ({}, {"hidden_act": "relu2"}),
}
"""By vLLM's names: what its config says beside, and what that is here."""


def experts_config(gate="silu", ranks=1, rank=0, **more):
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: PLC0415

    said = {"swiglu_limit": None, "swiglu_alpha": None, "has_bias": False}
    sizes = {"tp_size": ranks, "tp_rank": rank, "intermediate_size": INNER}
    sizes["num_logical_experts"] = EXPERTS
    more = GATES.get(gate, ({},))[0] | more
    name = gate.partition(" ")[0]
    return SimpleNamespace(activation=MoEActivation(name), **(said | sizes | more))


def experts_layer(config, expert_map=None):
    layer = nn.Module()
    layer.moe_config, layer.apply_router_weight_on_input = config, False
    layer.expert_map = expert_map
    layer.local_num_experts = EXPERTS if expert_map is None else int((expert_map >= 0).sum())
    return layer


def shards(name, whole, gate):
    """Returns what vLLM calls the parts of each expert's weights, and their codes or scales."""
    if name == "w2" or gate == "relu2":
        return {"w2" if name == "w2" else "w1": whole}
    gates, ups = (whole[:, 0::2], whole[:, 1::2]) if gate == "swiglu_oai" else whole.chunk(2, 1)
    return {"w1": gates, "w3": ups}


def computed(config, weights, x, routing, expert_map=None, apart=False):
    """Returns what the experts of one rank make of x, from loading on: of all, or each apart."""
    from mx_kernels.integrations.vllm.experts import OwnExperts  # noqa: PLC0415

    gate_up, down = weights
    method, layer = OwnExperts(config, gate_up.format), experts_layer(config, expert_map)
    inner = INNER // config.tp_size
    sizes = (layer.local_num_experts, WIDTH, inner)
    method.create_weights(layer, *sizes, torch.bfloat16, weight_loader=print)
    for name, weight in (("w13", gate_up), ("w2", down)):
        for part in ("codes", "scales"):
            whole = getattr(weight, part)
            if not apart:
                own = f"{name}_{part}"
                assert list(layer.load_weights([(own, whole)])) == [own]
                continue
            param = getattr(layer, f"{name}_{part}")
            for shard, rows in shards(name, whole, method.gate["hidden_act"]).items():
                for i, one in enumerate(rows):
                    # vLLM gives them all by name.
                    given = {"param": param, "loaded_weight": one, "weight_name": name}
                    given |= {"shard_id": shard, "expert_id": i, "return_success": True}
                    is_here = expert_map is None or int(expert_map[i]) >= 0
                    assert param.weight_loader(**given) == is_here
    method.process_weights_after_loading(layer)
    assert layer._parameters.keys() == {"w13_weight", "w2_weight"}
    ids, shares = routing
    return method.apply(layer, x, shares, ids, None, None)


def experts_case(format, gate="silu"):
    torch.manual_seed(1)
    sums = INNER if gate == "relu2_no_mul" else 2 * INNER
    shapes = (EXPERTS, sums, WIDTH), (EXPERTS, WIDTH, INNER)
    weights = [mx.quantize(torch.randn(s) / s[-1] ** 0.5, format=format) for s in shapes]
    ids = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(7)])
    x, shares = torch.randn(7, WIDTH), torch.rand(7, 2)
    whole = mx.moe(x, *weights, ids, shares, activations=None, **GATES[gate][1])
    return weights, x, (ids, shares), whole


@claim
def experts_of_every_format_and_gate_are_those_of_moe():
    for gate in GATES:
        for format in FORMATS if gate in {"silu", "swigluoai"} else FORMATS[:1]:
            weights, x, routing, whole = experts_case(format, gate)
            for apart in (False, (gate, format) != ("swigluoai", "fp8_block_2d")):
                got = computed(experts_config(gate), weights, x, routing, apart=apart)
                assert torch.equal(got, whole), (gate, format, apart)


@claim
def parts_of_experts_on_two_ranks_add_up():
    for gate in ("silu", "swigluoai", "relu2_no_mul"):
        for format in ("mxfp4", "mxint8", "fp8_block_2d"):
            weights, x, routing, whole = experts_case(format, gate)
            for apart in (False, (gate, format) != ("swigluoai", "fp8_block_2d")):
                ranks = [experts_config(gate, 2, rank) for rank in range(2)]
                parts = [computed(rank, weights, x, routing, apart=apart) for rank in ranks]
                torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-4)


@claim
def experts_given_to_two_ranks_add_up():
    for places in ([0, 1, -1, -1], [-1, -1, 0, 1]), ([0, -1, 1, -1], [-1, 0, -1, 1]):
        weights, x, routing, whole = experts_case("mxfp4")
        maps = [torch.tensor(place, dtype=torch.int32) for place in places]
        for apart in (False, True):
            parts = [computed(experts_config(), weights, x, routing, m, apart) for m in maps]
            torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=1e-5)


@claim
def experts_that_cannot_be_computed_are_refused():
    from mx_kernels.integrations.vllm.experts import OwnExperts  # noqa: PLC0415

    said = raised(NotImplementedError, OwnExperts, experts_config("gelu"), "mxfp4")
    assert "expected" in said and "SILU" in said, said
    for other in ({"swiglu_alpha": 1.702}, {"swiglu_beta": 1.0}, {"activation_situ_beta": 4.0}):
        said = raised(NotImplementedError, OwnExperts, experts_config("silu", **other), "mxfp4")
        assert "with its own numbers" in said, said
    method, sizes = OwnExperts(experts_config("silu", 2), "fp8_block_2d"), (EXPERTS, WIDTH, 96)
    layer = experts_layer(method.moe)
    said = raised(ValueError, method.create_weights, layer, *sizes, torch.bfloat16)
    assert "multiple of 128" in said and "enable_expert_parallel" in said, said

    method, layer = OwnExperts(experts_config(), "mxfp4"), experts_layer(experts_config())
    method.create_weights(layer, EXPERTS, WIDTH, INNER, torch.bfloat16)
    param = layer.w2_codes
    said = raised(ValueError, param.weight_loader, param, torch.zeros(2, 3, 4, dtype=torch.uint8))
    assert "got [2, 3, 4]" in said, said


@claim
def weights_of_the_router_may_count_on_the_input():
    from mx_kernels.integrations.vllm.experts import OwnExperts  # noqa: PLC0415

    weights, x, (ids, shares), _ = experts_case("mxfp4")
    config = experts_config()
    method, layer = OwnExperts(config, "mxfp4"), experts_layer(config)
    layer.apply_router_weight_on_input = True
    layer.w13_weight, layer.w2_weight = weights
    method.activations = "bf16"
    got = method.apply(layer, x, shares[:, :1], ids[:, :1], None, None)
    ones = torch.ones(len(x), 1)
    rules = {"hidden_act": "silu", "activations": "bf16"}
    expected = mx.moe(x * shares[:, :1], *weights, ids[:, :1], ones, **rules)
    assert torch.equal(got, expected)


@claim
def layers_of_experts_are_chosen_by_the_names_of_their_weights():
    from vllm.model_executor.layers.fused_moe import RoutedExperts  # noqa: PLC0415

    names = ("m.experts.gate_up_proj", "m.experts.down_proj")
    config = config_of(dict.fromkeys(names, "mxint8"), {"m.experts": "mxfp8"})
    layer = bare(RoutedExperts)
    layer.moe_config = experts_config()
    method = config.get_quant_method(layer, "m.experts")
    assert (method.format, method.said) == ("mxint8", "mxfp8")
    assert config.get_quant_method(layer, "m.other") is None
    config.formats[names[1]] = "fp8"
    said = raised(ValueError, config.get_quant_method, layer, "m.experts")
    assert "m.experts.down_proj as fp8" in said and "in one format" in said
    mapped = config.get_checkpoint_weight_mapper().map_name("m.experts.down_proj.codes")
    assert mapped == "m.experts.routed_experts.w2_codes"


@claim
def experts_that_have_a_tensor_each_are_all_there():
    from vllm.model_executor.layers.fused_moe import RoutedExperts  # noqa: PLC0415

    parts = ("gate_proj", "up_proj", "down_proj")
    names = [f"m.experts.{i}.{part}" for i in range(EXPERTS) for part in parts]
    layer = bare(RoutedExperts)
    layer.moe_config = experts_config()
    config = config_of(dict.fromkeys(names, "mxfp4"), None)
    assert config.get_quant_method(layer, "m.experts").format == "mxfp4"
    mapped = config.get_checkpoint_weight_mapper().map_name("m.experts.3.up_proj.weight.scales")
    assert mapped == "m.experts.3.up_proj.scales"
    for name in names:
        config = config_of(dict.fromkeys({*names} - {name}, "mxfp4"), None)
        said = raised(ValueError, config.get_quant_method, layer, "m.experts")
        assert f"3 weights of each of {EXPERTS}" in said, said
        config = config_of(dict.fromkeys(names, "mxfp4") | {name: "mxint8"}, None)
        assert "in one format" in raised(ValueError, config.get_quant_method, layer, "m.experts")
    layer.moe_config = experts_config("swigluoai")
    config = config_of(dict.fromkeys(names, "fp8_block_2d"), None)
    said = raised(ValueError, config.get_quant_method, layer, "m.experts")
    assert "got gates and ups apart in fp8_block_2d" in said, said


# Platforms


@claim
def gpus_get_our_checkpoints_and_keep_kernels_of_vllm():
    """Of CUDA and ROCm: nothing of vLLM's own is replaced there."""
    from vllm import platforms  # noqa: PLC0415
    from vllm.model_executor.kernels.linear import _POSSIBLE_MXFP4_KERNELS  # noqa: PLC0415
    from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: PLC0415

    from mx_kernels.integrations.vllm import register  # noqa: PLC0415
    from mx_kernels.integrations.vllm.config import MXVllmConfig  # noqa: PLC0415
    from mx_kernels.integrations.vllm.experts import GptOssConfig  # noqa: PLC0415
    from mx_kernels.integrations.vllm.linear import MXLinearKernel  # noqa: PLC0415

    here = platforms.current_platform
    kinds = ("CUDA", "ROCM")
    before = {kind: list(_POSSIBLE_MXFP4_KERNELS[platforms.PlatformEnum[kind]]) for kind in kinds}
    for kind in kinds:
        platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)
        try:
            register()
        finally:
            platforms.current_platform = here
        assert _POSSIBLE_MXFP4_KERNELS[platforms.PlatformEnum[kind]] == before[kind]
        assert get_quantization_config("mx_kernels") is MXVllmConfig
        assert get_quantization_config("gpt_oss_mxfp4") is not GptOssConfig
    register()
    register()
    assert get_quantization_config("gpt_oss_mxfp4") is GptOssConfig
    assert _POSSIBLE_MXFP4_KERNELS[platforms.PlatformEnum.CPU].count(MXLinearKernel) == 1
    assert MXVllmConfig.get_min_capability() == 80


@claim
def weights_stay_on_the_device_where_vllm_put_them():
    """Parameters are made where vLLM says; the layout is that of their device."""
    with torch.device("meta"):
        method, layer = made_linear("mxfp4")
        assert layer.weight.codes.is_meta and layer.weight.scales.is_meta
    method.process_weights_after_loading(layer)
    assert layer.weight.is_meta and layer.weight.layout == "plain"
    assert method.activations == "bf16"


def main() -> None:
    """Tries every claim."""
    found = {}
    for name, function in CLAIMS.items():
        try:
            found[name] = function()
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
