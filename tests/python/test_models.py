"""Real architectures, converted: what they compute, and that they live on as before.

The reference of a converted model is the float model with rounded weights: dequantized, put back
where they were, and activations rounded to bfloat16 in front of them.
"""

import copy
import functools
import io
import re
from collections import Counter

import pytest
import torch
import transformers as tf
from torch import nn

import mx_kernels as mx
from mx_kernels.conversion import revert
from mx_kernels.fused import MXMLP
from tests.python.models import FAMILIES, TOKENS, Family, output_of
from tests.tiers import tiered

every_family = pytest.mark.parametrize("name", FAMILIES)


@functools.cache
def float_model(name):
    return FAMILIES[name].build()


@functools.cache
def converted_model(name, activations=None):
    return mx.convert(copy.deepcopy(float_model(name)), activations=activations)


@torch.no_grad()
def run(model, name):
    return output_of(model, FAMILIES[name].inputs)


def relative_error(got, expected):
    return float((got - expected).norm() / expected.norm())


def rounded(x):
    return x.bfloat16().to(x.dtype)


def with_rounded_weights(name):
    """Returns the float model with the numbers that the converted one multiplies by."""
    model, converted = copy.deepcopy(float_model(name)), converted_model(name, "bf16")
    for layer in mx.conversion_report(converted).converted:
        old, new = model.get_submodule(layer.name), converted.get_submodule(layer.name)
        for weight in new.WEIGHTS:
            numbers, place = getattr(new, weight).dequantize("float32"), getattr(old, weight)
            if layer.kind == "Conv1D" or getattr(old, "is_transposed", False):
                numbers = numbers.transpose(-1, -2)
            assert place.shape == numbers.shape
            place.data = numbers
        old.register_forward_pre_hook(lambda module, args: (rounded(args[0]), *args[1:]))
        if isinstance(new, mx.MXExperts):
            gate = old._apply_gate
            old._apply_gate = lambda sums, gate=gate: rounded(gate(sums))
    return model


@every_family
def test_a_converted_model_computes_with_its_rounded_weights(name):
    got = run(converted_model(name, "bf16"), name)
    error = relative_error(got, run(with_rounded_weights(name), name))
    # Sums in another order move some activations over a rounding boundary of bfloat16. One
    # layer whose rows are in another order is an error of tens of percents.
    assert error < 2e-3
    assert relative_error(got, run(float_model(name), name)) > 10 * error


@every_family
def test_a_converted_model_is_close_to_the_float_model(name):
    got, expected = run(converted_model(name), name), run(float_model(name), name)
    assert torch.isfinite(got).all()
    assert torch.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.75


@every_family
def test_the_layers_that_count_are_converted(name):
    family, report = FAMILIES[name], mx.conversion_report(converted_model(name))
    assert (len(report.converted), len(report.kept)) == (family.converted, family.kept)
    for layer in report.converted:
        module = converted_model(name).get_submodule(layer.name)
        assert isinstance(module, mx.MXLinear | mx.MXExperts)
        assert layer.bytes_after < 0.3 * layer.bytes_before


@every_family
def test_a_converted_model_loads_its_own_checkpoint(name):
    source, file = converted_model(name), io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target = FAMILIES[name].build()
    with torch.no_grad():
        for p in target.parameters():
            p.mul_(0.5)
    mx.convert(target)
    assert not torch.equal(run(target, name), run(source, name))
    target.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(target, name), run(source, name))


@every_family
def test_a_copy_computes_the_same_in_its_own_memory(name):
    source = converted_model(name)
    copied = copy.deepcopy(source)
    assert torch.equal(run(copied, name), run(source, name))
    assert str(mx.conversion_report(copied)) == str(mx.conversion_report(source))
    first = mx.conversion_report(source).converted[0].name
    weights = [next(m.get_submodule(first).parameters()) for m in (source, copied)]
    assert weights[0].codes.data_ptr() != weights[1].codes.data_ptr()


@every_family
def test_a_converted_model_runs_in_bfloat16(name):
    model = copy.deepcopy(converted_model(name)).bfloat16()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    inputs = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in FAMILIES[name].inputs.items()
    }
    with torch.no_grad():
        got = output_of(model, inputs)
    # A token that is on the edge may go to another expert.
    assert relative_error(got.float(), run(converted_model(name), name)) < 0.2


GENERATING = [name for name, family in FAMILIES.items() if family.generates]


@pytest.mark.parametrize("name", GENERATING)
def test_a_converted_model_generates_what_its_logits_say(name):
    model, family = converted_model(name), FAMILIES[name]
    choices = {"max_new_tokens": 3, "do_sample": False}
    got = model.generate(**family.inputs, **choices)
    first = run(model, name)[:, -1].argmax(-1)
    assert torch.equal(got[:, -3], first)


@pytest.mark.parametrize("name", tiered(FAMILIES, first=["mixtral"]))
def test_a_converted_model_compiles(name):
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(converted_model(name)), backend="aot_eager")
    torch.testing.assert_close(run(compiled, name), run(converted_model(name), name))


@pytest.mark.parametrize("padded", [False, True])
def test_the_encoder_of_torch_still_takes_padding(padded):
    model = converted_model("torch_encoder", "bf16")
    x = FAMILIES["torch_encoder"].inputs["src"]
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[0, 4:] = padded
    with torch.no_grad():
        got = model(x, src_key_padding_mask=mask)
        expected = with_rounded_weights("torch_encoder")(x, src_key_padding_mask=mask)
    assert relative_error(got[~mask], expected[~mask]) < 2e-3


def test_the_gradient_of_a_converted_model_reaches_what_was_kept():
    model = copy.deepcopy(converted_model("lora")).train()
    model(**FAMILIES["lora"].inputs).logits.square().mean().backward()
    report = mx.conversion_report(model)
    for layer in report.kept:
        weight = model.get_submodule(layer.name).weight
        assert weight.grad.abs().sum() > 0, layer.name
    converted = model.get_submodule(report.converted[0].name)
    assert isinstance(converted, nn.Module) and converted.weight.grad is None


# Norms that give codes.

FUSED = {"llama": (2, 1), "gpt_oss": (2, 0), "qwen3_moe": (1, 0), "lora": (1, 1)}
"""Norms and MLPs that are fused; behind other norms are routers and adapters, which read floats."""


@functools.cache
def fused_model(name, activations=None):
    return mx.convert(copy.deepcopy(float_model(name)), activations=activations, fuse="norms")


@pytest.mark.parametrize("name", FAMILIES)
def test_norms_are_fused_where_converted_layers_alone_read_them(name):
    report = mx.conversion_report(fused_model(name))
    fused_norms = [norm for norm in report.norms if norm.is_fused]
    count = len(fused_norms), sum(mlp.is_fused for mlp in report.mlps)
    assert count == FUSED.get(name, (0, 0))
    for norm in fused_norms:
        module = fused_model(name).get_submodule(norm.name)
        assert module.format == norm.format == "mxint8"
        assert f"gives mxint8 to {norm.readers[0]}" in str(report)
    for norm in report.norms:
        assert norm.is_fused or re.search("reads floats|LoraLinear", norm.reason), norm


@pytest.mark.parametrize("activations", ["mxint8", "mxfp4", "fp8"])
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_model_computes_what_the_converted_one_does(name, activations):
    """Codes are those of two steps but for ties: another order of float32 sums."""
    fused = copy.deepcopy(fused_model(name, activations))
    plain = converted_model(name, activations)
    assert relative_error(run(fused, name), run(plain, name)) < 1e-2
    with torch.enable_grad():
        for p in fused.parameters():
            p.requires_grad_(p.is_floating_point() and not isinstance(p, mx.MXTensor))
        kept = output_of(fused, FAMILIES[name].inputs)
        assert torch.equal(kept.detach(), run(plain, name)), "floats, where a gradient is wanted"
        kept.square().mean().backward()
        norm = fused.get_submodule(mx.conversion_report(fused).fused[0].name)
        assert norm.weight.grad.abs().sum() > 0


def test_a_fused_model_lives_on_as_a_converted_one():
    fused, plain = copy.deepcopy(fused_model("llama")), copy.deepcopy(converted_model("llama"))
    assert list(fused.state_dict()) == list(plain.state_dict())
    fused.load_state_dict(plain.state_dict())
    expected = run(fused, "llama")
    assert relative_error(run(copy.deepcopy(fused).bfloat16(), "llama").float(), expected) < 0.2
    torch._dynamo.reset()
    compiled = torch.compile(fused, backend="aot_eager")
    torch.testing.assert_close(run(compiled, "llama"), expected)
    again = mx.convert(fused, include="lm_head", fuse="norms")
    assert len(mx.conversion_report(again).fused) == 3
    revert(plain := copy.deepcopy(fused_model("llama")), float_model("llama"), torch.float32)
    assert not [name for name, module in plain.named_modules() if "MX" in type(module).__name__]
    assert torch.isfinite(run(plain, "llama")).all()


def test_norms_that_others_read_stay():
    def reasons(change=lambda model: None, **options):
        model = copy.deepcopy(float_model("llama"))
        change(model)
        report = mx.conversion_report(mx.convert(model, fuse="norms", **options))
        return [norm.reason for norm in report.norms]

    def hook(model):
        model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: None)

    def forward(model):
        mlp = model.model.layers[0].mlp
        mlp.forward = functools.partial(type(mlp).forward, mlp)

    assert reasons() == [None, None]
    assert reasons(activations="bf16") == ["activations stay floats"] * 2
    assert reasons(keep="k_proj") == ["self_attn.k_proj is a Linear", None]
    assert reasons(activations={"up_proj": "mxfp8"}) == [None, "its readers differ in activations"]
    assert reasons(hook)[0] == "a LlamaRMSNorm with hooks, which read floats"
    assert reasons(forward)[1] == "mlp is a LlamaMLP, which reads floats"
    with pytest.raises(ValueError, match="fuse: got 'all', expected None or 'norms'"):
        mx.convert(copy.deepcopy(float_model("llama")), fuse="all")


# MLPs of one product.

SIZES = {
    "vocab_size": 96, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
DENSE = {
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, {"mlp_bias": True}),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, {}),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, {"intermediate_size": 256}),
    "gemma2": (tf.Gemma2Config, tf.Gemma2ForCausalLM, {}),
    "gemma3": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, {"intermediate_size": 128}),
}
"""A bias; widths that fill the tiles of a layout, and 160, which does not."""


def dense_model(name, dtype="float32"):
    config, model, sizes = DENSE[name]
    return Family(
        lambda: model(config(**{**SIZES, "intermediate_size": 160, **sizes})), {}, 0, 0
    ).build().to(getattr(torch, dtype))  # fmt: skip


def generated(model):
    return model.generate(TOKENS, max_new_tokens=6, do_sample=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activations", ["bf16", "mxint8", "fp8"])
@pytest.mark.parametrize("name", DENSE)
def test_an_mlp_of_one_product_has_the_bits_of_three_layers(name, activations, dtype):
    def converted(**options):
        model = dense_model(name, dtype)
        for module in model.modules():
            # Norms with hooks stay, so MLPs alone differ.
            if "RMSNorm" in type(module).__name__:
                module.register_forward_hook(lambda *_: None)
        return mx.convert(model, activations=activations, **options)

    plain, fused = converted(), converted(fuse="norms")
    report = mx.conversion_report(fused)
    assert [place.kind for place in report.fused] == ["mlp"] * 2
    assert f"one product of {activations} for gate_proj and up_proj" in str(report)
    assert "kept: an expression of" in str(report), "sums with a residual"
    with torch.no_grad():
        assert torch.equal(fused(TOKENS).logits, plain(TOKENS).logits)


@pytest.mark.parametrize("name", DENSE)
def test_norms_and_mlps_of_dense_models_are_fused(name):
    plain = mx.convert(dense_model(name))
    fused = mx.convert(copy.deepcopy(plain), fuse="norms")
    report = mx.conversion_report(fused)
    kinds = Counter(place.kind for place in report.fused)
    assert kinds == {"norm": 4, "mlp": 2}, str(report)
    with torch.no_grad():
        got, expected = fused(TOKENS).logits, plain(TOKENS).logits
    assert relative_error(got, expected) < 1e-2
    assert torch.equal(generated(fused), generated(plain))
    norm = fused.model.layers[0].input_layernorm
    x = torch.randn(4, 96)
    # Its floats are those of transformers, and its codes theirs but for ties.
    with torch.no_grad():
        floats = plain.model.layers[0].input_layernorm(x)
        q, codes = norm(x), mx.quantize(floats, format="mxint8").codes
    assert (q.codes != codes).float().mean() < 0.01
    assert torch.equal(norm(x.requires_grad_()), floats)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_joined_mlp_is_saved_and_loaded_as_three_layers(name, tmp_path):
    plain = mx.convert(dense_model(name))
    fused = mx.convert(copy.deepcopy(plain), fuse="norms")
    state, expected = fused.state_dict(), plain.state_dict()
    assert list(state) == list(expected)
    for key, entry in expected.items():
        parts = [
            [t.unshuffle().codes, t.unshuffle().scales] if isinstance(t, mx.MXTensor) else [t]
            for t in (state[key], entry)
        ]
        assert all(map(torch.equal, *parts))
    mx.save(state, tmp_path / "weights")
    loaded = mx.load(tmp_path / "weights")
    with torch.no_grad():
        logits = fused(TOKENS).logits
        for empty in (mx.convert(dense_model(name)), mx.convert(dense_model(name), fuse="norms")):
            for p in empty.parameters():
                p.zero_() if not isinstance(p, mx.MXTensor) else None
            empty.load_state_dict(loaded)
            assert relative_error(empty(TOKENS).logits, logits) < 1e-2
        assert torch.equal(empty(TOKENS).logits, logits)
        fused.save_pretrained(tmp_path / "model")
        again = type(fused).from_pretrained(tmp_path / "model")
        assert torch.equal(again(TOKENS).logits, plain(TOKENS).logits)
        again = mx.convert(again, fuse="norms")
        assert torch.equal(again(TOKENS).logits, logits)
        assert torch.equal(copy.deepcopy(again)(TOKENS).logits, logits)
    with pytest.raises(RuntimeError, match="got MXTensor and Tensor, expected MXTensors"):
        fused.load_state_dict(state | {"model.layers.0.mlp.up_proj.weight": torch.ones(2, 32)})


def test_the_gradient_of_a_joined_mlp_is_that_of_its_layers():
    plain = mx.convert(dense_model("llama"))
    fused = mx.convert(copy.deepcopy(plain), fuse="norms")
    grads = []
    for model in (plain, fused):
        x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)).requires_grad_()
        mlp = model.model.layers[0].mlp
        mlp(x).square().sum().backward()
        halves = {"gate_proj": 0, "up_proj": 1}
        biases = [
            mlp.gate_up_proj.bias.grad.chunk(2)[half]
            if model is fused
            else getattr(mlp, name).bias.grad
            for name, half in halves.items()
        ]
        grads.append([x.grad, *biases, mlp.down_proj.bias.grad])
    for got, expected in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.abs().max() > 1e-3


def test_mlps_that_cannot_be_joined_stay():
    def reasons(change=lambda model: None, **options):
        model = dense_model("llama")
        change(model)
        report = mx.conversion_report(mx.convert(model, fuse="norms", **options))
        return report.mlps[0].reason

    def hook(model):
        model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)

    def adapter(model):
        model.model.layers[0].mlp.adapter = nn.Linear(96, 96)

    assert reasons() is None
    assert reasons(keep="up_proj") == "up_proj is a Linear"
    differ = "gate_proj and up_proj differ in format, activations, shape or bias"
    assert reasons(activations={"up_proj": "bf16"}) == differ
    assert reasons(hook) == "up_proj has hooks"
    assert reasons(adapter) == "it also holds adapter"
    assert reasons(format="fp8_block") == "rows of gate_proj fill no blocks of 128 rows"
    gate_proj, up_proj = (mx.MXLinear(mx.quantize(torch.ones(n, 32))) for n in (8, 16))
    with pytest.raises(
        ValueError, match="MXMLP: got layers of two kinds: gate_proj and up_proj differ"
    ):
        MXMLP(gate_proj, up_proj, nn.Identity(), torch.relu)
