"""Models of transformers: quantized while they load, saved, and loaded again to the bit.

Every model goes through files as users have them, a tiny one of each family.
"""

import functools
import shutil
import subprocess
import sys
from typing import ClassVar

import pytest
import torch
import transformers as tf
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming

import mx_kernels as mx
from mx_kernels import checkpoints
from mx_kernels.conversion import convert_skeleton
from mx_kernels.integrations.transformers import MXConfig, from_pretrained, parallel
from tests.python.models import FAMILIES, assert_same_state, output_of
from tests.tiers import tiered

FIRST = ("llama", "gpt_oss", "mixtral", "qwen3_moe")
OF_TRANSFORMERS = [name for name in FAMILIES if name not in ("lora", "torch_encoder")]
every_family = pytest.mark.parametrize("name", tiered(OF_TRANSFORMERS, first=FIRST))


@pytest.fixture(autouse=True)
def _quiet():
    tf.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    """Returns a function: the folder of a family's float model."""

    @functools.cache
    def folder(name):
        path = tmp_path_factory.mktemp(name)
        FAMILIES[name].build().save_pretrained(path)
        return path

    return folder


def class_of(name):
    return type(FAMILIES[name].build())


def is_ours(module):
    return isinstance(module, mx.MXLinear | mx.MXExperts)


@torch.no_grad()
def run(model, name):
    return output_of(model, FAMILIES[name].inputs)


@pytest.mark.parametrize("name", tiered(OF_TRANSFORMERS, first=(*FIRST, "gpt2")))
def test_quantizing_while_loading_is_what_convert_does(floats, name):
    kind = class_of(name)
    got = kind.from_pretrained(floats(name), quantization_config=MXConfig())
    expected = mx.convert(kind.from_pretrained(floats(name)))
    assert str(mx.conversion_report(got)) == str(mx.conversion_report(expected))
    assert_same_state(got, expected)
    assert torch.equal(run(got, name), run(expected, name))


@every_family
def test_a_saved_model_is_the_same_when_loaded(floats, name, tmp_path):
    kind = class_of(name)
    model = kind.from_pretrained(floats(name), quantization_config=MXConfig())
    held = (*model.parameters(), *model.buffers())
    assert model.get_memory_footprint() == pytest.approx(sum(t.nbytes for t in held))
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = kind.from_pretrained(tmp_path)
    assert_same_state(again, model)
    assert torch.equal(run(again, name), run(model, name))


@every_family
def test_what_convert_returned_is_saved_and_loaded(floats, name, tmp_path):
    model = mx.convert(FAMILIES[name].build(), activations="bf16")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert_same_state(again, model)
    assert torch.equal(run(again, name), run(model, name))


@pytest.mark.parametrize("format", tiered(("mxfp8", "mxfp8_e5m2", "mxint8"), first=("mxint8",)))
def test_every_format_is_saved_and_loaded(floats, format, tmp_path):
    config = MXConfig(format=format, scale_rule="ceil", activations="mxfp8")
    kind = class_of("mixtral")
    model = kind.from_pretrained(floats("mixtral"), quantization_config=config)
    model.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path)
    experts = again.model.layers[0].mlp.experts
    assert (experts.format, experts.scale_rule, experts.activations) == (format, "ceil", "mxfp8")
    assert torch.equal(run(again, "mixtral"), run(model, "mixtral"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("format", tiered(("fp8", "fp8_block"), first=("fp8",)))
def test_scales_that_are_floats_are_no_floats_of_the_model(floats, format, dtype, tmp_path):
    kind, config = class_of("mixtral"), MXConfig(format=format)
    model = kind.from_pretrained(floats("mixtral"), quantization_config=config, dtype=dtype)
    model.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path, dtype=dtype)
    assert again.model.layers[0].mlp.experts.down_proj.scales.dtype == torch.float32
    assert_same_state(again, model)


def test_names_keep_and_include_layers_and_choose_their_activations(floats, tmp_path):
    config = MXConfig(
        activations={"mlp": "bf16", "q_proj": "mxfp4"},
        modules_to_not_convert="v_proj",
        include=["lm_head"],
    )
    kind = class_of("llama")
    model = kind.from_pretrained(floats("llama"), quantization_config=config)
    model.save_pretrained(tmp_path)
    for loaded in (model, kind.from_pretrained(tmp_path)):
        layer = loaded.model.layers[0]
        assert layer.mlp.up_proj.activations == "bf16"
        assert layer.self_attn.q_proj.activations == "mxfp4"
        assert layer.self_attn.k_proj.activations == "mxint8"
        assert type(layer.self_attn.v_proj) is torch.nn.Linear
        assert isinstance(loaded.lm_head, mx.MXLinear)
    assert torch.equal(run(model, "llama"), run(kind.from_pretrained(tmp_path), "llama"))


def test_activations_of_a_saved_model_can_be_chosen_anew(floats, tmp_path):
    mx.convert(FAMILIES["llama"].build()).save_pretrained(tmp_path)
    assert from_pretrained(tmp_path).model.layers[0].mlp.up_proj.activations == "mxint8"
    chosen = from_pretrained(tmp_path, activations="mxfp8")
    assert chosen.model.layers[0].mlp.up_proj.activations == "mxfp8"


class Net(tf.PreTrainedModel):
    """A model whose modules are called as parts of weights are."""

    config_class = tf.PreTrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.net = torch.nn.ModuleDict({"codes": torch.nn.Linear(64, 64)})
        self.net["x_scales"] = torch.nn.Linear(64, 64)
        self.post_init()


def test_experts_are_converted_for_a_gpu_too():
    reports = {}
    for device in ("cpu", "cuda"):
        with torch.device("meta"):
            model = FAMILIES["mixtral"].make()
        choices = {"format": "mxfp4", "scale_rule": "even", "activations": "bf16"}
        convert_skeleton(model, keep=(), include=(), device=device, **choices)
        reports[device] = mx.conversion_report(model)["model.layers.0.mlp.experts"].reason
    assert reports == {"cpu": None, "cuda": None}


def test_names_of_modules_are_not_mistaken_for_parts(tmp_path):
    model = mx.convert(Net(tf.PreTrainedConfig()))
    model.save_pretrained(tmp_path)
    assert_same_state(Net.from_pretrained(tmp_path), model)


def laguna():
    """Returns a model whose class renames `shared_expert` to `shared_experts`, and has both."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    kinds = {"layer_types": ["full_attention"] * 2, "mlp_layer_types": ["dense", "sparse"]}
    config = tf.CONFIG_MAPPING["laguna"](
        **sizes,
        **heads,
        **experts,
        **kinds,
        shared_expert_intermediate_size=32,
        intermediate_size=96,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tf.AutoModelForCausalLM.from_config(config)


class Turns(Net):
    """A model whose class has renamings that make one of its names another of them."""

    config_class = type("TurnsConfig", (tf.PreTrainedConfig,), {"model_type": "mx_turns"})

    def __init__(self, config):
        super().__init__(config)
        self.net = torch.nn.ModuleDict({name: torch.nn.Linear(64, 64) for name in ("a", "b")})
        self.norms = torch.nn.ModuleDict({name: torch.nn.LayerNorm(64) for name in ("a", "b")})
        self.post_init()


def turns():
    changes = [WeightRenaming(r"\.a\.", ".b."), WeightRenaming(r"\.b\.", ".a.")]
    register_checkpoint_conversion_mapping("mx_turns", changes, overwrite=True)
    return Turns(Turns.config_class())


@pytest.mark.parametrize("build", [laguna, turns])
def test_renamings_of_a_class_leave_a_saved_model_alone(build, tmp_path):
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    model = mx.convert(model)
    model.save_pretrained(tmp_path)
    assert_same_state(type(model).from_pretrained(tmp_path), model)


def without(state, name):
    return {n: t for n, t in state.items() if n != name}


def elsewhere(state, name):
    return without(state, name) | {f"{name}s": state[name]}


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_a_saved_model_without_one_of_its_tensors_is_refused(name, tmp_path):
    mx.convert(FAMILIES["llama"].build()).save_pretrained(tmp_path / "whole")
    state = mx.load(tmp_path / "whole")
    for number, change in enumerate((without, elsewhere)):
        folder = tmp_path / str(number)
        mx.save(change(state, name), folder)
        shutil.copy(tmp_path / "whole" / "config.json", folder)
        with pytest.raises(ValueError, match=f"{name}s?: got (no such tensor|quantized weights)"):
            from_pretrained(folder)


def test_a_base_is_loaded_from_the_folder_of_a_model_with_a_head(tmp_path):
    model = mx.convert(FAMILIES["llama"].build(), include="lm_head")
    model.save_pretrained(tmp_path / "head")
    assert isinstance(model.lm_head, mx.MXLinear)
    base = tf.AutoModel.from_pretrained(tmp_path / "head")
    assert_same_state(base, model.model)
    base.save_pretrained(tmp_path / "base")
    assert_same_state(tf.AutoModel.from_pretrained(tmp_path / "base"), model.model)


def test_a_head_that_was_an_embedding_is_quantized_for_itself(tmp_path):
    config = FAMILIES["llama"].build().config
    config.tie_word_embeddings = True
    model = tf.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "floats")
    asked = {"quantization_config": MXConfig(include="lm_head")}
    with pytest.raises(ValueError, match=r"include: got lm_head\.weight, whose weight is"):
        tf.LlamaForCausalLM.from_pretrained(tmp_path / "floats", **asked)
    table = model.model.embed_tokens.weight.clone()
    model = mx.convert(model, include="lm_head")
    model.save_pretrained(tmp_path / "saved")
    again = tf.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert_same_state(again, model)
    assert isinstance(again.lm_head, mx.MXLinear)
    assert torch.equal(again.model.embed_tokens.weight, table)


class Tied(Net):
    _tied_weights_keys: ClassVar = {"net.x_scales.weight": "net.codes.weight"}


def test_a_weight_of_several_layers_is_saved_once_and_loaded_as_one(tmp_path):
    model = Tied(tf.PreTrainedConfig(tie_word_embeddings=True))
    model.tie_weights()
    model = mx.convert(model)
    model.save_pretrained(tmp_path / "once")
    assert set(mx.load(tmp_path / "once")) == set(model.state_dict()) - {"net.x_scales.weight"}
    again = Tied.from_pretrained(tmp_path / "once")
    assert_same_state(again, model)
    first, second = again.net.values()
    assert first.weight is second.weight
    mx.save(model.state_dict(), tmp_path / "twice")
    shutil.copy(tmp_path / "once" / "config.json", tmp_path / "twice")
    assert_same_state(Tied.from_pretrained(tmp_path / "twice"), model)


STRANGER = """
import sys, transformers
for folder in sys.argv[1:]:
    for kind in (transformers.AutoModel, transformers.LlamaForCausalLM):
        try:
            print("loaded", kind.from_pretrained(folder))
        except ValueError as error:
            print(error)
"""


def test_a_program_that_does_not_import_us_gets_an_error_and_no_random_weights(tmp_path):
    FAMILIES["llama"].build().save_pretrained(tmp_path / "floats")
    checkpoints.convert(tmp_path / "floats", tmp_path / "converted")
    mx.convert(FAMILIES["llama"].build()).save_pretrained(tmp_path / "saved")
    folders = [tmp_path / "converted", tmp_path / "saved"]
    command = [sys.executable, "-c", STRANGER, *map(str, folders)]
    got = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert got.count("import mx_kernels.transformers before they load") == 4, got
    assert "loaded" not in got
    for folder in folders:
        assert isinstance(from_pretrained(folder).model.layers[0].mlp.up_proj, mx.MXLinear)


def test_what_transformers_loads_by_itself_says_nothing_of_us(tmp_path):
    mx.convert(FAMILIES["llama"].build()).save_pretrained(tmp_path / "saved")
    checkpoints.convert(tmp_path / "saved", tmp_path / "quark", to="quark")
    assert "mx_kernels" in (tmp_path / "saved" / "config.json").read_text()
    assert "mx_kernels" not in (tmp_path / "quark" / "config.json").read_text()


def test_what_convert_did_twice_is_saved(tmp_path):
    model = mx.convert(
        FAMILIES["llama"].build(), keep="mlp", scale_rule="ceil", activations="mxfp8"
    )
    model = mx.convert(model, format="mxfp8", scale_rule="floor", activations="mxint8")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for loaded in (model, again):
        layer = loaded.model.layers[0]
        first, second = layer.self_attn.q_proj, layer.mlp.up_proj
        assert (first.format, first.scale_rule, first.activations) == ("mxfp4", "ceil", "mxfp8")
        assert (second.format, second.scale_rule, second.activations) == (
            "mxfp8",
            "floor",
            "mxint8",
        )
    assert torch.equal(run(again, "llama"), run(model, "llama"))


def on_disk(layers):
    """Returns a device map of a decoder that has one of its layers on disk."""
    parts = ("embed_tokens", "norm", "rotary_emb", *(f"layers.{i}" for i in range(layers)))
    return {f"model.{part}": "cpu" for part in parts} | {"lm_head": "cpu", "model.layers.0": "disk"}


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt_oss"])
def test_layers_on_disk_compute_what_they_do_in_memory(floats, name, tmp_path):
    kind, asked = class_of(name), {"quantization_config": MXConfig()}
    model = kind.from_pretrained(floats(name), **asked)
    model.save_pretrained(tmp_path / "saved")
    places = {"device_map": on_disk(model.config.num_hidden_layers)}
    for count, (path, how) in enumerate(((floats(name), asked), (tmp_path / "saved", {}))):
        folder = {"offload_folder": tmp_path / str(count)}
        got = kind.from_pretrained(path, **how, **places, **folder)
        assert got.model.layers[0].self_attn.q_proj.weight.is_meta
        assert torch.equal(run(got, name), run(model, name))
        with pytest.raises(ValueError, match="meta"):
            got.save_pretrained(tmp_path / "again")


@every_family
def test_a_dequantized_model_is_one_of_floats_again(floats, name, tmp_path):
    kind = class_of(name)
    model = mx.convert(kind.from_pretrained(floats(name)), activations="bf16")
    expected = run(model, name)
    model = model.dequantize()
    assert not any(map(is_ours, model.modules()))
    # Ours rounds activations to bfloat16; an order or a bias that is wrong is an error of 1.
    assert (run(model, name) - expected).norm() < 0.03 * expected.norm()
    model.save_pretrained(tmp_path)
    assert "mx_kernels" not in (tmp_path / "config.json").read_text()
    assert_same_state(kind.from_pretrained(tmp_path), model)


def test_load_reads_what_save_pretrained_writes(floats, tmp_path):
    model = mx.convert(FAMILIES["mixtral"].build())
    model.save_pretrained(tmp_path)
    loaded = mx.load(tmp_path)
    state = model.state_dict()
    assert set(loaded) == set(state)
    for name, t in loaded.items():
        assert type(t) is type(state[name]) or isinstance(state[name], torch.nn.Parameter), name
        same = (t.codes, state[name].codes) if isinstance(t, mx.MXTensor) else (t, state[name])
        assert torch.equal(*same)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_both_attentions_of_torch_compute_the_same(floats, name):
    kinds = {}
    for kind in ("eager", "sdpa"):
        config = MXConfig(activations="bf16")
        model = tf.AutoModelForCausalLM.from_pretrained(
            floats(name), quantization_config=config, attn_implementation=kind
        )
        assert model.config._attn_implementation == kind
        kinds[kind] = run(model, name)
    torch.testing.assert_close(kinds["eager"], kinds["sdpa"], rtol=1e-3, atol=1e-3)


def test_styles_of_a_plan_that_nobody_asked_for_do_not_matter(tmp_path):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 16}
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    tf.MiniCPM3ForCausalLM(tf.MiniCPM3Config(**sizes, **heads, **ranks)).save_pretrained(tmp_path)
    load = functools.partial(tf.MiniCPM3ForCausalLM.from_pretrained, tmp_path)
    model = load(quantization_config=MXConfig())
    assert_same_state(model, mx.convert(load()))
    plan = {"model.layers.*.self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj"}
    model.config.distributed_config = tf.DistributedConfig(tp_plan="auto", tp_size=2)
    with pytest.raises(ValueError, match="got the style 'mla_kv_a_proj', expected colwise or"):
        parallel.take(model, dict(plan))


@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "v_proj"]])
def test_adapters_of_peft_learn_beside_our_layers_and_are_not_merged_into_them(
    floats, target, tmp_path
):
    import peft  # noqa: PLC0415  it takes a while

    torch.manual_seed(0)
    load = functools.partial(
        tf.AutoModelForCausalLM.from_pretrained, floats("llama"), quantization_config=MXConfig()
    )
    base = load()
    assert base.hf_quantizer.is_trainable
    before, ours = run(base, "llama"), {n for n, m in base.named_modules() if is_ours(m)}
    config = peft.LoraConfig(r=4, target_modules=target, init_lora_weights=False)
    model = peft.get_peft_model(base, config)
    adapted = {n for n, m in base.named_modules() if "base_layer" in m._modules}
    assert adapted == (
        ours if target == "all-linear" else {n for n in ours if n[-6:] in ("q_proj", "v_proj")}
    )
    model(**FAMILIES["llama"].inputs).logits.square().mean().backward()
    learning = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert len(learning) == 2 * len(adapted)
    assert all("lora_" in name and grad.abs().max() > 0 for name, grad in learning.items())
    after = run(model, "llama")
    assert not torch.equal(after, before)
    with model.disable_adapter():
        assert torch.equal(run(model, "llama"), before)
    model.save_pretrained(tmp_path)
    assert torch.equal(run(peft.PeftModel.from_pretrained(load(), tmp_path), "llama"), after)
    with pytest.raises(NotImplementedError, match="got an MXTensor, expected floats"):
        model.merge_and_unload()


# What is refused.

WRONG = {
    "format": ({"format": "fp4"}, "format: got 'fp4', expected mxfp4"),
    "activations": ({"activations": "int8"}, "activations: got 'int8', expected"),
    "a choice": ({"activations": {"mlp": "int8"}}, "activations: got 'int8', expected"),
    "a function": ({"activations": str}, "activations: got type, expected a name, or a mapping"),
    "scale_rule": ({"scale_rule": "up"}, "scale_rule: got 'up', expected"),
    "names": ({"modules_to_not_convert": 3}, "modules_to_not_convert: got 3, expected names"),
    "include": ({"include": [3]}, r"include: got \[3\], expected names"),
    "method": ({"quant_method": "awq"}, "quant_method: got 'awq', expected 'mx_kernels'"),
    "unknown": ({"bits": 4}, "unexpected keyword argument 'bits'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_gets_a_sentence(case):
    choices, message = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=message):
        MXConfig(**choices)


def test_a_name_that_fits_nothing_gets_a_sentence(floats):
    config = MXConfig(modules_to_not_convert="nothing")
    with pytest.raises(ValueError, match="modules_to_not_convert: got 'nothing', which fits no"):
        class_of("llama").from_pretrained(floats("llama"), quantization_config=config)


def test_floats_are_no_checkpoint_of_ours(floats):
    with pytest.raises(ValueError, match="got no quantization_config, expected quantized weights"):
        from_pretrained(floats("llama"))
    with pytest.raises(ValueError, match="quantization_config: got one, expected none"):
        from_pretrained(floats("llama"), quantization_config=MXConfig())
