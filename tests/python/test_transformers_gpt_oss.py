"""gpt-oss in the published layout of its checkpoint: in 4 bits, from files to tokens.

The reference is what transformers makes of the same files: floats.
"""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers.quantizers import auto
from typer.testing import CliRunner

import mx_kernels as mx
import tensorfiles
from bench.gpt_oss import write_checkpoint
from mx_kernels import checkpoints
from mx_kernels.checkpoints.files import let_go
from mx_kernels.integrations.transformers import from_pretrained, register
from tests.python.models import assert_same_greedy_tokens, assert_same_state
from tests.tiers import deep, tiered

TINY = {
    "experts": 5,
    "active": 2,
    "hidden": 96,
    "inner": 160,
    "heads": 4,
    "kv_heads": 2,
    "head": 24,
    "vocabulary": 160,
    "window": 6,
}
LAYERS = 2
IDS = torch.arange(20).view(2, 10) * 7 + 1

PRODUCTS = 2 * LAYERS
"""Of quantized weights, one after the other."""
HALF_ULP = 2**-9
"""Of bfloat16: what rounding a number changes of it, at most."""
ERROR = PRODUCTS * HALF_ULP
"""Of logits, relative."""


@pytest.fixture(autouse=True)
def _quiet():
    tf.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns the folder of a tiny gpt-oss."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "gpt-oss", LAYERS, **TINY)


def dequantized(folder, **kwargs):
    config = tf.Mxfp4Config(dequantize=True)
    return tf.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, **kwargs)


@torch.no_grad()
def logits_of(model, ids=IDS):
    return model(ids).logits


def test_experts_hold_the_bytes_of_the_file(tiny):
    model = from_pretrained(tiny)
    (file,) = tiny.glob("*.safetensors")
    stored, _ = tensorfiles.read(file)
    for i, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        assert isinstance(experts, mx.MXExperts) and experts.layout == "preshuffled_cpu"
        for name in ("gate_up_proj", "down_proj"):
            there = f"model.layers.{i}.mlp.experts.{name}"
            plain = getattr(experts, name).unshuffle()
            blocks, scales = (stored[f"{there}_{part}"] for part in ("blocks", "scales"))
            assert (plain.codes.numpy() == blocks.reshape(plain.codes.shape)).all()
            assert (plain.scales.numpy() == scales).all()
    ours = [m for m in model.modules() if isinstance(m, mx.MXLinear | mx.MXExperts)]
    assert len(ours) == LAYERS, "only the experts of gpt-oss are quantized"


def test_logits_are_those_of_dequantized_weights_within_the_rounding_of_activations(tiny):
    expected = logits_of(dequantized(tiny, dtype=torch.float32))
    got = logits_of(from_pretrained(tiny, activations="bf16", dtype=torch.float32))
    error = (got - expected).norm() / expected.norm()
    assert 0 < error < PRODUCTS * HALF_ULP
    coarse = logits_of(from_pretrained(tiny, activations="mxfp4", dtype=torch.float32))
    assert (coarse - expected).norm() / expected.norm() > 4 * error


def test_greedy_tokens_are_those_of_dequantized_weights(tiny):
    got = from_pretrained(tiny, activations="bf16", dtype=torch.float32)
    expected = dequantized(tiny, dtype=torch.float32)
    assert_same_greedy_tokens(got, expected, IDS, tokens=8, at_least=8, error=ERROR)


def test_bfloat16_is_no_less_exact_than_with_dequantized_weights(tiny):
    exact = logits_of(dequantized(tiny, dtype=torch.float32))
    theirs, ours = dequantized(tiny), from_pretrained(tiny, activations="bf16")
    assert ours.dtype == theirs.dtype == torch.bfloat16
    errors = [(logits_of(model).float() - exact).norm() for model in (ours, theirs)]
    assert errors[0] < 1.1 * errors[1]


def test_a_row_of_a_padded_batch_generates_what_it_does_alone(tiny):
    model = from_pretrained(tiny, dtype=torch.float32)
    choices = {"max_new_tokens": 6, "do_sample": False}
    alone = [
        model.generate(IDS[:1, 4:], **choices)[0, 6:],
        model.generate(IDS[1:], **choices)[0, 10:],
    ]
    batch = IDS.clone()
    batch[0, :4] = 0
    mask = torch.ones_like(batch)
    mask[0, :4] = 0
    both = model.generate(batch, attention_mask=mask, **choices)[:, 10:]
    assert torch.equal(both, torch.stack(alone))


def test_a_static_cache_generates_the_same_tokens(tiny):
    model = from_pretrained(tiny, dtype=torch.float32)
    choices = {"max_new_tokens": 8, "do_sample": False}
    static = model.generate(IDS, cache_implementation="static", **choices)
    assert torch.equal(static, model.generate(IDS, **choices))


@pytest.mark.parametrize("activations", tiered([None, "bf16"], first=[None]))
def test_a_model_of_gpt_oss_is_one_graph(tiny, activations):
    model = from_pretrained(tiny, activations=activations)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(logits_of(compiled), logits_of(model))


@deep
def test_compiled_steps_over_a_static_cache_generate_the_same_tokens(tiny):
    model = from_pretrained(tiny, dtype=torch.float32, activations="bf16")
    choices = {"max_new_tokens": 8, "do_sample": False}
    config = tf.CompileConfig(fullgraph=True)
    config._compile_all_devices = True
    static = {"cache_implementation": "static", "compile_config": config}
    assert torch.equal(model.generate(IDS, **static, **choices), model.generate(IDS, **choices))


def test_after_register_transformers_itself_keeps_four_bits(tiny, monkeypatch):
    monkeypatch.setitem(auto.AUTO_QUANTIZER_MAPPING, "mxfp4", auto.AUTO_QUANTIZER_MAPPING["mxfp4"])
    register(activations="mxfp8")
    model = tf.AutoModelForCausalLM.from_pretrained(tiny)
    assert model.model.layers[0].mlp.experts.activations == "mxfp8"
    assert_same_state(model, from_pretrained(tiny))
    assert not isinstance(dequantized(tiny).model.layers[0].mlp.experts, mx.MXExperts)


def test_other_loads_of_gpt_oss_stay_what_they_were(tiny):
    from_pretrained(tiny)
    assert auto.AUTO_QUANTIZER_MAPPING["mxfp4"].__module__.startswith("transformers.")


def test_a_rewritten_checkpoint_is_the_same_model(tiny, tmp_path):
    checkpoints.convert(tiny, tmp_path / "ours", max_shard_bytes=60_000)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    assert_same_state(from_pretrained(tmp_path / "ours"), from_pretrained(tiny))


def test_layers_that_the_model_has_not_are_left_out(tiny):
    config = tf.AutoConfig.from_pretrained(tiny)
    config.num_hidden_layers, config.layer_types = 1, config.layer_types[:1]
    (layer,) = from_pretrained(tiny, config=config).model.layers
    assert torch.equal(
        layer.mlp.experts.down_proj.codes,
        from_pretrained(tiny).model.layers[0].mlp.experts.down_proj.codes,
    )


def test_a_model_without_its_head_loads_from_the_same_files(tiny):
    got = from_pretrained(tiny, model_class=tf.AutoModel)
    expected = from_pretrained(tiny).model
    assert_same_state(got, expected)


# The layers that the checkpoint has as floats.


def test_the_rest_is_quantized_and_saved_and_loads_again(tiny, tmp_path):
    model = from_pretrained(tiny, rest="mxint8", activations="bf16")
    ours = {n: m for n, m in model.named_modules() if isinstance(m, mx.MXLinear | mx.MXExperts)}
    formats = {name.rpartition(".")[2]: module.format for name, module in ours.items()}
    linear = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "lm_head"), "mxint8")
    assert formats == linear | {"experts": "mxfp4"} and len(ours) == 5 * LAYERS + 1
    assert {module.activations for module in ours.values()} == {"bf16"}
    got, kept = logits_of(model).float(), logits_of(from_pretrained(tiny, activations="bf16"))
    # Five products one after the other with weights that are off by less than 2 %.
    assert 0 < (got - kept.float()).norm() / kept.float().norm() < 5 * LAYERS * 0.02
    model.save_pretrained(tmp_path / "saved")
    assert_same_state(from_pretrained(tmp_path / "saved"), model)


def test_a_head_that_is_tied_to_the_embedding_is_left_alone(tiny, tmp_path):
    changed_checkpoint(
        tiny, tmp_path / "tied", lambda t: t.pop("lm_head.weight"), tie_word_embeddings=True
    )
    model = from_pretrained(tmp_path / "tied", rest="mxint8")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert isinstance(model.model.layers[0].self_attn.q_proj, mx.MXLinear)
    body = from_pretrained(tiny, rest="mxfp8", model_class=tf.AutoModel)
    assert body.layers[1].self_attn.o_proj.format == "mxfp8"


@pytest.mark.parametrize("rest", ["int8", 8])
def test_a_rest_of_an_unknown_format_gets_a_sentence(tiny, rest):
    with pytest.raises((TypeError, ValueError), match="expected"):
        from_pretrained(tiny, rest=rest)


# What is refused.


def changed_checkpoint(source, target, change, **config):
    """Writes a copy of a checkpoint with other tensors."""
    shutil.copytree(source, target)
    (file,) = target.glob("*.safetensors")
    tensors, metadata = tensorfiles.read(file)
    change(tensors)
    tensorfiles.write(file, tensors, metadata)
    said = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(said | config))


@pytest.mark.parametrize("part", ["_blocks", "_scales", ""])
def test_a_missing_weight_gets_a_sentence(tiny, tmp_path, part):
    name = "model.layers.1.mlp.experts.down_proj"

    def change(tensors):
        for other in ("_blocks", "_scales"):
            if part in ("", other):
                del tensors[name + other]

    changed_checkpoint(tiny, tmp_path / "changed", change)
    with pytest.raises(ValueError, match="down_proj"):
        from_pretrained(tmp_path / "changed")


def test_a_weight_of_another_shape_gets_a_sentence(tiny, tmp_path):
    changed_checkpoint(tiny, tmp_path / "changed", lambda tensors: None, num_local_experts=4)
    with pytest.raises(ValueError, match=r"gate_up_proj: got \[5, 320, 96\], expected \[4, 320"):
        from_pretrained(tmp_path / "changed")


# The example.


def test_the_example_generates_from_text_and_from_tokens(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    words = {f"w{i}": i for i in range(TINY["vocabulary"])}
    tokenizer = tf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0"))
    )
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "model")
    path = Path(__file__).parents[2] / "examples" / "gpt_oss.py"
    app = runpy.run_path(str(path))["app"]
    model = from_pretrained(tiny)
    ids = torch.tensor([[5, 70, 31]])
    new = model.generate(ids, max_new_tokens=4, do_sample=False)[0, 3:].tolist()
    for prompt, said in ((["--prompt", "w5 w70 w31"], "w{}"), (["--ids", "5 70 31"], "{}")):
        run = CliRunner().invoke(app, [str(tmp_path / "model"), *prompt, "--tokens", "4"])
        assert run.exit_code == 0, run.output
        assert " ".join(map(said.format, new)) in run.output
    run = CliRunner().invoke(app, [str(tmp_path), "--ids", "5"])
    assert run.exit_code == 2 and "config.json" in run.output


# Memory.


def test_pages_of_a_file_that_are_let_go_come_back(tmp_path):
    expected = torch.arange(2**16)
    mx.save({"a": expected, "b": expected + 1}, tmp_path / "file.safetensors")
    with checkpoints.files._safe_open()(tmp_path / "file.safetensors", "pt") as file:
        mapped = [file.get_tensor(name) for name in "ab"]
        for t in mapped:
            t.sum()
            let_go(t)
        assert torch.equal(mapped[0], expected) and torch.equal(mapped[1], expected + 1)


def test_memory_that_is_no_file_is_never_let_go():
    numbers = torch.arange(2**20)
    let_go(numbers)
    assert torch.equal(numbers, torch.arange(2**20))


FULL = {"experts": 32, "vocabulary": 512}
PEAK = """
import re, sys
import torch
import mx_kernels as mx
from mx_kernels.integrations.transformers import from_pretrained

def memory(name):
    said = open("/proc/self/status").read()
    return int(re.search(name + r":\\s+(\\d+) kB", said)[1]) * 1024

mx.quantize(torch.ones(1, 32))
before = memory("VmRSS")
model = from_pretrained(sys.argv[1])
print(memory("VmHWM") - before, memory("VmRSS") - before)
"""


@deep
def test_experts_that_are_joined_take_the_result_and_the_largest_weight_once_more(tmp_path):
    """The pages of the files go as they are copied; with them it would be twice more."""
    sizes = {
        "vocab_size": 96, "hidden_size": 1024, "moe_intermediate_size": 1024, "head_dim": 64,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_experts": 32, "architectures": ["Qwen3MoeForCausalLM"],
    }  # fmt: skip
    few = tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**sizes | {"num_experts": 2})).bfloat16()
    tensors = {name: t for name, t in few.state_dict().items() if ".mlp." not in name}
    mlp = "model.layers.0.mlp"
    tensors[f"{mlp}.gate.weight"] = torch.randn(32, 1024).bfloat16()
    for name in (f"{e}.{part}_proj" for e in range(32) for part in ("gate", "up", "down")):
        codes, scales = torch.ones(1024, 1024), torch.full((1024, 32), 120, dtype=torch.uint8)
        tensors[f"{mlp}.experts.{name}.weight"] = codes.to(torch.float8_e4m3fn)
        tensors[f"{mlp}.experts.{name}.weight_scale"] = scales
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = tf.Qwen3MoeConfig(**sizes).to_dict()
    said = {"quantization_config": {"quant_method": "mxfp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    run = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True, check=True
    )
    peak, after = map(int, run.stdout.split())
    largest = 32 * 2048 * (1024 + 32)
    assert after < 1.5 * largest + 4e7
    assert 2.5 * largest < peak < 2.5 * largest + 4e7 < 3.4 * largest


@deep
def test_a_layer_of_full_size_never_takes_the_memory_of_its_floats(tmp_path):
    folder = write_checkpoint(tmp_path / "full", 1, **FULL)
    run = subprocess.run(
        [sys.executable, "-c", PEAK, folder], capture_output=True, text=True, check=True
    )
    peak, after = map(int, run.stdout.split())
    model = from_pretrained(folder, activations="bf16")
    experts = model.model.layers[0].mlp.experts
    packed = experts.gate_up_proj.nbytes + experts.down_proj.nbytes
    others = sum(p.nbytes for p in model.parameters()) - packed
    bfloat16 = 2 * (experts.gate_up_proj.numel() + experts.down_proj.numel())
    # The result, and the largest weight once more while its bytes are reordered.
    largest = experts.gate_up_proj.nbytes
    assert packed < peak < packed + largest + others + 1e8 < 0.6 * bfloat16
    assert after < packed + others + 1e8
    expected = dequantized(folder)
    got, expected = (logits_of(m).float() for m in (model, expected))
    assert (got - expected).norm() / expected.norm() < 2 * PRODUCTS * HALF_ULP
