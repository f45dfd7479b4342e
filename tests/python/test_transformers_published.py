"""Models whose checkpoints others have quantized: the tokens are those of the dequantized model.

Each is shaped like one that is published, with a tensor for each expert, and loaded as it is.
"""

import json
import re

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear

import mx_kernels as mx
from mx_kernels import checkpoints
from mx_kernels.conversion import row_orders
from mx_kernels.integrations.transformers import from_pretrained
from tests.python import published
from tests.python.models import NO_SPECIAL_TOKENS, assert_same_greedy_tokens, decoder
from tests.tiers import tiered

# Every expert has every token: where two are nearly as good, rounding would choose.
MOE = {"num_hidden_layers": 2, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
MLA = {
    "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8,
    "v_head_dim": 32, "num_key_value_heads": 4,
}  # fmt: skip
GROUPS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}


def family(config, model, **sizes):
    return lambda: decoder(config, model, 0, 0, **sizes).build()


def deepseek_v4():
    sizes = {
        "vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "head_dim": 64, "q_lora_rank": 64, "moe_intermediate_size": 96, "num_experts_per_tok": 4,
        "n_routed_experts": 4, "o_groups": 2, "o_lora_rank": 32, "hc_mult": 2, "index_n_heads": 2,
        "index_head_dim": 32, "index_topk": 64, "sliding_window": 8, "swiglu_limit": 1.5,
        "mlp_layer_types": ["moe", "moe"],
        "layer_types": ["compressed_sparse_attention", "sliding_attention"],
        "max_position_embeddings": 128, "qk_rope_head_dim": 16,
    }  # fmt: skip
    torch.manual_seed(3)
    model = tf.DeepseekV4ForCausalLM(tf.DeepseekV4Config(**sizes, **NO_SPECIAL_TOKENS)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=p.shape[-1] ** -0.5)
    return model


class Situ(nn.Module):
    """The MLP of an expert of Kimi-K3, whose gate and up are bounded smoothly."""

    def __init__(self, width, inner, beta=4.0, linear_beta=25.0):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)
        self.beta, self.linear_beta = beta, linear_beta

    def forward(self, x):
        gate, up = self.w1(x), self.w3(x)
        soft = self.beta * torch.tanh(gate / self.beta) * gate.sigmoid()
        return self.w2(soft * self.linear_beta * torch.tanh(up / self.linear_beta))


class LatentMoE(nn.Module):
    """Experts as modules of their own, fewer numbers wide than a token, which is made so wide."""

    def __init__(self, config, width=64):
        super().__init__()
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = kimi_linear.KimiLinearTopkRouter(config)
        self.routed_down_proj = nn.Linear(hidden, width, bias=False)
        self.routed_up_proj = nn.Linear(width, hidden, bias=False)
        self.experts = nn.ModuleList(Situ(width, inner) for _ in range(config.num_experts))
        self.shared_experts = kimi_linear.KimiLinearMLP(config, intermediate_size=inner)

    def forward(self, x):
        _, shares, ids = self.gate(x)
        tokens = self.routed_down_proj(x.flatten(0, -2))
        of_each = [(shares * (ids == e)).sum(-1, keepdim=True) for e in range(len(self.experts))]
        sums = sum(share * f(tokens) for share, f in zip(of_each, self.experts, strict=True))
        return self.routed_up_proj(sums).view(x.shape) + self.shared_experts(x)


class KimiK3Config(tf.KimiLinearConfig):
    model_type = "kimi_k3_of_a_test"


class KimiK3(kimi_linear.KimiLinearPreTrainedModel, tf.GenerationMixin):
    """A class that comes with its checkpoint: transformers has no conversions for its names."""

    config_class = KimiK3Config
    _tied_weights_keys = {}  # noqa: RUF012  as transformers has it

    def __init__(self, config):
        super().__init__(config)
        self.language_model = tf.KimiLinearForCausalLM(config)
        for layer in self.language_model.model.layers:
            if isinstance(layer.mlp, kimi_linear.KimiLinearMoE):
                layer.mlp = LatentMoE(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.language_model.model.embed_tokens

    def get_output_embeddings(self):
        return self.language_model.lm_head

    def forward(self, *args, **kwargs):
        return self.language_model(*args, **kwargs)


tf.AutoConfig.register(KimiK3Config.model_type, KimiK3Config)
tf.AutoModelForCausalLM.register(KimiK3Config, KimiK3)


def is_kept(name):
    return re.search(r"lm_head|embed|\.gate\.weight$|norm|conv|^head|hc_|ape|scorer|A_log", name)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
PACKED = {
    "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
    }}},
}  # fmt: skip
MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK = {"quant_method": "quark", "global_quant_config": {"weight": MXFP4}, "exclude": ["lm_head"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
    "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
}}  # fmt: skip
CASES = {
    "Qwen3-MoE FP8": (
        family(tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM, num_experts=4, **MOE),
        published.deepseek, FP8,
    ),
    "GLM-4.7": (
        family(tf.Glm4MoeConfig, tf.Glm4MoeForCausalLM, n_shared_experts=1, **GROUPS, **MOE),
        published.packed, PACKED,
    ),
    "Kimi Linear": (
        family(tf.KimiLinearConfig, tf.KimiLinearForCausalLM, **MLA, **MOE, num_experts=4,
               layer_types=["linear_attention", "full_attention"]),
        published.packed, PACKED,
    ),
    "Kimi-K3": (
        family(KimiK3Config, KimiK3, **MLA, **MOE, num_experts=4,
               layer_types=["linear_attention", "full_attention"]),
        published.packed,
        PACKED | {"ignore": [r"re:.*(self_attn|shared_experts|routed_|mlp\.(gate|up|down)).*"]},
    ),
    "DeepSeek-V4": (
        deepseek_v4, published.deepseek_v4,
        FP8 | {"fmt": "e4m3", "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
    ),
    "Mixtral by Quark": (
        family(tf.MixtralConfig, tf.MixtralForCausalLM, num_local_experts=4,
               num_experts_per_tok=4),
        published.quark, QUARK,
    ),
    "Qwen3-MoE by ModelOpt": (
        family(tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM, num_experts=4, **MOE),
        published.modelopt, MODELOPT,
    ),
    "Qwen3-MoE NVFP4": (
        family(tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM, num_experts=4, **MOE),
        published.nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
    "MiniMax-M3 MXFP8": (
        family(tf.MiniMaxM3VLTextConfig, tf.MiniMaxM3VLForCausalLM, num_local_experts=4,
               num_experts_per_tok=4, dense_intermediate_size=96, shared_intermediate_size=64,
               num_hidden_layers=2, rotary_dim=24, index_n_heads=2, index_head_dim=24,
               mlp_layer_types=["dense", "sparse"], layer_types=["full_attention"] * 2),
        published.mxfp8, {"quant_method": "mxfp8"},
    ),
    "Nemotron-H by ModelOpt": (
        family(tf.NemotronHConfig, tf.NemotronHForCausalLM, n_routed_experts=4,
               num_experts_per_tok=4, moe_intermediate_size=64, ssm_state_size=16,
               moe_shared_expert_intermediate_size=64, mamba_num_heads=4, mamba_head_dim=48,
               n_groups=2, chunk_size=8, num_hidden_layers=3,
               layers_block_type=["mamba", "moe", "attention"]),
        published.modelopt, MODELOPT,
    ),
    "Llama 4 by llm-compressor": (
        family(tf.Llama4TextConfig, tf.Llama4ForCausalLM, intermediate_size_mlp=96,
               num_hidden_layers=2, num_local_experts=4, interleave_moe_layer_step=1),
        published.apart(published.channels),
        PACKED | {"format": "float-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
                                               "strategy": "channel"}}}},
    ),
    "Llama 4 by FBGEMM": (
        family(tf.Llama4TextConfig, tf.Llama4ForCausalLM, intermediate_size_mlp=96,
               num_hidden_layers=2, num_local_experts=4, interleave_moe_layer_step=1),
        published.channels, {"quant_method": "fbgemm_fp8"},
    ),
    "gpt-oss, its experts apart": (
        family(tf.GptOssConfig, tf.GptOssForCausalLM, num_local_experts=4, num_experts_per_tok=4,
               num_hidden_layers=2),
        published.apart(published.packed, are_turns=True), PACKED,
    ),
    "Llama FP8": (family(tf.LlamaConfig, tf.LlamaForCausalLM), published.deepseek, FP8),
}  # fmt: skip
FIRST = ("Qwen3-MoE FP8", "DeepSeek-V4", "MiniMax-M3 MXFP8", "Llama 4 by FBGEMM")
ERROR = 2**-6
"""Of logits, relative: some ten products one after the other, of activations of 2**-9."""
IDS = torch.arange(96).view(8, 12) * 5 % 89 + 3


@pytest.fixture(autouse=True)
def _quiet():
    tf.utils.logging.disable_progress_bar()


def is_turned(model, name):
    """Says whether experts are [E, K, N] in a model of floats."""
    return "experts" in name and model.config.model_type in ("gpt_oss", "llama4_text")


def write(folder, case):
    build, style, said = CASES[case]
    # Of Kimi-K3 the experts alone are quantized.
    has = re.compile(r"\.experts\." if case == "Kimi-K3" else "").search
    return published.publish(
        folder, build(), style, lambda name: bool(has(name)) and not is_kept(name), said
    )


@torch.no_grad()
@pytest.mark.parametrize("case", tiered(CASES, first=FIRST))
@pytest.mark.filterwarnings("ignore:.*become floats")
def test_a_published_checkpoint_generates_the_tokens_of_its_numbers(tmp_path, case):
    there, floats = write(tmp_path, case)
    got = from_pretrained(there, activations="bf16", dtype=torch.float32)
    kind = type(got)
    expected = kind.from_pretrained(floats, dtype=torch.float32)
    orders = row_orders(type(got)(expected.config).to("meta"), dict(got.named_parameters()))
    for name, p in got.named_parameters():
        wanted = expected.get_parameter(name)
        if wanted.ndim == 3 and is_turned(expected, name):
            wanted = wanted.transpose(1, 2)
        wanted = orders.get(name, lambda t: t)(wanted)
        assert torch.equal(plain(p), wanted), name
    ours = [m for m in got.modules() if isinstance(m, mx.MXLinear | mx.MXExperts)]
    sparse = [m for m in expected.modules() if "Experts" in type(m).__name__]
    assert len([m for m in ours if isinstance(m, mx.MXExperts)]) == len(sparse)
    logits = got(IDS).logits, expected(IDS).logits
    # Activations are bfloat16.
    error = (logits[0] - logits[1]).norm() / logits[1].norm()
    assert 0 < error < ERROR
    assert_same_greedy_tokens(got, expected, IDS, tokens=8, at_least=4, error=ERROR)
    # And what is saved is ours.
    got.save_pretrained(tmp_path / "ours")
    again = kind.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert torch.equal(again(IDS).logits, logits[0])


def test_a_weight_that_no_layer_of_ours_has_becomes_floats(tmp_path):
    there, floats = write(tmp_path, "DeepSeek-V4")
    with pytest.warns(UserWarning, match=r"attn.wo_a.weight \[64, 128\] of fp8_.* floats"):
        got = from_pretrained(there)
    wanted = load_file(floats / "model.safetensors")["model.layers.0.attn.wo_a.weight"]
    o_a = got.model.layers[0].self_attn.o_a_proj
    assert type(o_a).__name__ == "DeepseekV4GroupedLinear"
    assert torch.equal(o_a.weight, wanted.to(o_a.weight.dtype))


def lost(tensors):
    return {n: t for n, t in tensors.items() if ".0.mlp.experts.3.up_proj" not in n}


def mixed(tensors):
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    rest = {n: t for n, t in tensors.items() if not n.startswith(name)}
    q = mx.quantize(torch.ones(96, 96), format="mxfp8")
    return rest | {name: q.codes.view(torch.float8_e4m3fn), f"{name}_scale": q.scales}


@pytest.mark.parametrize("change", [lost, mixed])
def test_experts_that_do_not_fit_together_are_refused(tmp_path, change):
    there, _ = write(tmp_path, "GLM-4.7")
    # The first layer is dense.
    tensors = {n.replace(".1.mlp.experts", ".0.mlp.experts"): t
               for n, t in load_file(there / "model.safetensors").items()}  # fmt: skip
    changed = {n.replace(".0.mlp.experts", ".1.mlp.experts"): t for n, t in change(tensors).items()}
    save_file(changed, there / "model.safetensors")
    said = r"layers.1.mlp.experts.gate_up_proj: got \d parts .*, expected those of all experts"
    with pytest.raises(ValueError, match=said):
        from_pretrained(there)


def test_experts_are_read_from_the_file_that_the_index_names(tmp_path):
    there, _ = write(tmp_path, "GLM-4.7")
    expected = from_pretrained(there).state_dict()
    tensors = load_file(there / "model.safetensors")
    (there / "model.safetensors").unlink()
    names = sorted(tensors)
    stale = {n: torch.zeros_like(tensors[n]) for n in names if "experts.1.down" in n}
    halves = {"a.safetensors": dict(tensors), "b.safetensors": stale}
    index = {n: "a.safetensors" for n in names}
    for n in [n for n in names if "o_proj" in n]:
        halves["b.safetensors"][n], index[n] = halves["a.safetensors"].pop(n), "b.safetensors"
    norm = next(n for n in names if "norm" in n)
    halves["b.safetensors"][norm] = torch.zeros_like(tensors[norm])
    for file, of_file in halves.items():
        save_file(of_file, there / file, metadata={"format": "pt"})
    (there / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    got = from_pretrained(there).state_dict()
    for name, t in expected.items():
        assert torch.equal(plain(got[name]), plain(t)), name


def plain(t):
    return t.dequantize("float32") if isinstance(t, mx.MXTensor) else t


def test_convert_joins_nothing_and_its_result_is_loaded(tmp_path):
    there, _ = write(tmp_path, "Mixtral by Quark")
    checkpoints.convert(there, tmp_path / "ours")
    for name, t in from_pretrained(there).state_dict().items():
        assert torch.equal(plain(from_pretrained(tmp_path / "ours").state_dict()[name]), plain(t))
