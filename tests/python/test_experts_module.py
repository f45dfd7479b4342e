"""MXExperts, and how `convert` knows what foreign experts compute."""

import copy
import importlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts

import mx_kernels as mx

EXPERTS, HIDDEN, INNER = 3, 64, 96
IDS = torch.tensor([[0, 2], [2, 1], [1, EXPERTS], [-1, 0], [2, 0]])
WEIGHTS = torch.tensor([[0.5, 0.5], [1.0, 0.25], [0.75, 9.0], [9.0, 1.5], [0.0, 1.0]])
LIMIT, ALPHA = 2.0, 1.5


def silu(gate, up):
    return functional.silu(gate) * up


def swiglu(gate, up):
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * torch.sigmoid(ALPHA * gate)


class Experts(nn.Module):
    """Experts as transformers has them, plainly."""

    def __init__(self, gate=silu, turns=False, transposed=False, bias=False):
        super().__init__()
        torch.manual_seed(8)
        shapes = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
        for name, (n, k) in shapes.items():
            weight = torch.randn(EXPERTS, n, k) / k**0.5
            if transposed:
                weight = weight.transpose(1, 2).contiguous()
            self.register_parameter(name, nn.Parameter(weight))
            if bias:
                self.register_parameter(name + "_bias", nn.Parameter(torch.randn(EXPERTS, n)))
        self.gate, self.turns = gate, turns
        self.limit, self.swiglu_alpha = LIMIT, ALPHA
        self.is_transposed, self.has_bias, self.has_gate = transposed, bias, True
        self.has_post_expert_norm = False

    def _apply_gate(self, sums):
        parts = (sums[..., ::2], sums[..., 1::2]) if self.turns else sums.chunk(2, -1)
        return self.gate(*parts)

    def product(self, x, name, expert):
        weight = getattr(self, name)[expert]
        y = x.bfloat16().float() @ (weight if self.is_transposed else weight.T)
        return y + getattr(self, name + "_bias")[expert] if self.has_bias else y

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for t, (ids, weights) in enumerate(zip(top_k_index, top_k_weights, strict=True)):
            for expert, weight in zip(ids.tolist(), weights, strict=True):
                if 0 <= expert < EXPERTS:
                    sums = self.product(hidden_states[t], "gate_up_proj", expert)
                    hidden = self._apply_gate(sums)
                    out[t] += weight * self.product(hidden, "down_proj", expert)
        return out


def x_of(tokens=5):
    torch.manual_seed(9)
    return torch.randn(tokens, HIDDEN)


def exact(module, names=("gate_up_proj", "down_proj")):
    """Returns the module with weights that MXFP4 holds exactly."""
    with torch.no_grad():
        for name in names:
            weight = getattr(module, name)
            rows = weight.transpose(1, 2) if module.is_transposed else weight
            rows = mx.quantize(rows.contiguous()).dequantize("float32")
            weight.copy_(rows.transpose(1, 2) if module.is_transposed else rows)
    return module


def converted(module, **choices):
    model = mx.convert(nn.ModuleDict({"experts": copy.deepcopy(module)}), **choices)
    return model["experts"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("gate", [silu, swiglu])
def test_experts_of_every_form_compute_what_they_did(gate, turns, transposed, bias):
    module = exact(Experts(gate, turns, transposed, bias))
    got = converted(module, activations="bf16")
    assert isinstance(got, mx.MXExperts)
    assert got.gate_up_proj.shape == (EXPERTS, 2 * INNER, HIDDEN)
    with torch.no_grad():
        expected = module(x_of(), IDS, WEIGHTS)
        torch.testing.assert_close(got(x_of(), IDS, WEIGHTS), expected, rtol=2e-3, atol=2e-3)


def test_ids_of_other_ranks_add_nothing():
    got = converted(Experts())
    nothing = got(x_of(1), torch.tensor([[EXPERTS, -1]]), torch.ones(1, 2))
    assert torch.equal(nothing, torch.zeros(1, HIDDEN))
    with pytest.raises(ValueError, match=f"expert_ids: got {EXPERTS + 1}"):
        got(x_of(1), torch.tensor([[EXPERTS + 1]]), torch.ones(1, 1))


def test_tokens_may_have_any_leading_axes():
    module = converted(Experts())
    x = x_of(6).view(2, 3, HIDDEN)
    ids, weights = IDS[[0, 1, 4, 0, 1, 4]], WEIGHTS[[0, 1, 4, 0, 1, 4]]
    assert torch.equal(module(x, ids, weights).view(6, HIDDEN), module(x_of(6), ids, weights))


def test_experts_that_are_given_rows_of_each_compute_what_they_did():
    """Llama 4's: a token's row is zeros for the experts that it does not go to."""
    config = Llama4TextConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS
    )
    former = Llama4TextExperts(config)
    for p in former.parameters():
        nn.init.normal_(p, std=p.shape[1] ** -0.5)
    ours = mx.convert(nn.ModuleDict({"experts": copy.deepcopy(former)}), activations="bf16")
    experts = ours["experts"]
    assert experts.takes_rows and experts.gate_up_proj.shape == (EXPERTS, 2 * INNER, HIDDEN)
    with torch.no_grad():
        for name in ("gate_up_proj", "down_proj"):
            values = getattr(experts, name).dequantize("float32").transpose(1, 2)
            getattr(former, name).copy_(values)
        rows = torch.randn(EXPERTS, 5, HIDDEN).bfloat16().float()
        rows[0, 2:] = rows[1, :4] = rows[2, 1] = 0
        got, expected = experts(rows.view(-1, HIDDEN)), former(rows.view(-1, HIDDEN))
    assert (got[(rows == 0).all(-1).view(-1)] == 0).all()
    # Hidden numbers are rounded to bfloat16.
    assert (got - expected).norm() < 2**-8 * expected.norm()
    for module, given in ((experts, (rows, IDS, WEIGHTS)), (experts, (rows, IDS))):
        with pytest.raises(TypeError, match="got takes_rows True, expected hidden_states alone"):
            module(*given)
    with pytest.raises(TypeError, match="takes_rows False, expected top_k_index, top_k_weights"):
        mx.convert(nn.ModuleList([Experts()]))[0](rows)


def test_the_report_names_the_class_and_our_shape():
    model = nn.ModuleDict({"experts": Experts(transposed=True)})
    row = mx.conversion_report(mx.convert(model))["experts"]
    assert (row.kind, row.shape) == ("Experts", (EXPERTS, 2 * INNER, HIDDEN))
    assert (row.format, row.activations) == ("mxfp4", model["experts"].activations)


def without(**changes):
    module = Experts()
    for name, value in changes.items():
        setattr(module, name, value)
    return module


def without_form():
    module = Experts()
    del module.is_transposed
    return module


def with_width(hidden, inner):
    module = Experts()
    module.gate_up_proj = nn.Parameter(torch.ones(EXPERTS, 2 * inner, hidden))
    module.down_proj = nn.Parameter(torch.ones(EXPERTS, hidden, inner))
    return module


FIELDS = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), INNER),
    **{"hidden_size": HIDDEN, "moe_latent_size": None},
    **{"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh", "mlp_hidden_act": "relu2"},
    **{"swiglu_limit": LIMIT, "swiglu_alpha": ALPHA},
    **{"mlp_gate_softcap": 1.5, "mlp_up_softcap": 3.0, "_experts_implementation": "eager"},
}
"""What classes of experts ask a config."""
GATES_OF_CLASSES = {
    ("deepseek_v4", "DeepseekV4Experts"): ("silu", {"limit": LIMIT}),
    ("hy_v4", "HYV4Experts"): ("silu", {"limit": LIMIT}),
    ("glm5_next", "Glm5NextTextExperts"): ("silu", {"limit": LIMIT}),
    ("minimax_m3_vl", "MiniMaxM3VLExperts"): ("swiglu_oai", {"limit": LIMIT, "alpha": ALPHA}),
    ("gpt_oss", "GptOssExperts"): ("swiglu_oai", {"limit": LIMIT, "alpha": ALPHA}),
    ("gemma4", "Gemma4TextExperts"): ("gelu_tanh", {}),
    ("inkling2", "Inkling2Experts"): ("situ", {"beta": 1.5, "linear_beta": 3.0}),
    ("nemotron_h", "NemotronHExperts"): ("relu2", {}),
    ("qwen3_moe", "Qwen3MoeExperts"): ("silu", {}),
}


def of_transformers(model, name, **fields):
    """Returns experts of a class of transformers', with weights that MXFP4 holds exactly."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    torch.manual_seed(8)
    experts = getattr(module, name)(SimpleNamespace(**FIELDS | fields))
    with torch.no_grad():
        for own in experts.parameters():
            own.normal_()
    return exact(experts, [name for name, own in experts.named_parameters() if own.ndim == 3])


@pytest.mark.parametrize("model, name", GATES_OF_CLASSES)
def test_gates_of_transformers_classes_are_found_and_computed(model, name):
    module, (hidden_act, numbers) = of_transformers(model, name), GATES_OF_CLASSES[model, name]
    got = converted(module, activations="bf16")
    assert isinstance(got, mx.MXExperts)
    assert (got.hidden_act, {n: getattr(got, n) for n in numbers}) == (hidden_act, numbers)
    assert set(dict(got.named_parameters())) == set(dict(module.named_parameters()))
    x, ids, weights = x_of().bfloat16().float(), IDS.clamp(min=0), WEIGHTS
    with torch.no_grad():
        kept = ids < EXPERTS
        expected = module(x, ids * kept, weights * kept)
        y = got(x, ids, weights * kept)
    assert float((y - expected).norm() / expected.norm()) < 4e-3


KEPT = {
    "gelu": (
        lambda: Experts(lambda gate, up: functional.gelu(gate) * up),
        "Experts: its activation is not known",
    ),
    "another limit": (
        lambda: Experts(lambda gate, up: functional.silu(gate.clamp(max=LIMIT)) * up),
        "Experts: its activation is not known",
    ),
    "up before gate": (
        lambda: Experts(lambda up, gate: functional.silu(gate) * up),
        "Experts: its activation is not known",
    ),
    "gate_up_proj without a gate": (
        lambda: without(has_gate=False),
        "Experts: experts of a form that is not known",
    ),
    "relu without a gate": (
        lambda: of_transformers("nemotron_h", "NemotronHExperts", mlp_hidden_act="relu"),
        "NemotronHExperts: its activation is not known",
    ),
    "a norm": (
        lambda: without(has_post_expert_norm=True),
        "Experts: a norm of each expert is not supported",
    ),
    "unknown": (without_form, "Experts: experts of a form that is not known"),
    "hidden": (lambda: with_width(48, 96), "gate_up_proj: K 48 is no multiple of 32"),
    "inner": (lambda: with_width(64, 40), "down_proj: K 40 is no multiple of 32"),
    "forward": (
        lambda: without(forward=lambda *args: args[0]),
        "its forward was replaced",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_experts_that_are_not_understood_are_kept_with_a_reason(case):
    make, reason = KEPT[case]
    module = make()
    model = nn.ModuleDict({"experts": module, "other": nn.Linear(96, 96)})
    row = mx.conversion_report(mx.convert(model))["experts"]
    assert row.reason == reason
    assert model["experts"] is module


def test_a_state_dict_loads_into_another_layout_and_no_other_format():
    source, target = (converted(Experts(bias=True), device=d) for d in (None, "gfx950"))
    with torch.no_grad():
        target.gate_up_proj.codes.zero_()
    target.load_state_dict(source.state_dict())
    assert target.layout == "preshuffled_cdna4"
    rules = {"scale_rule": source.scale_rule, "activations": source.activations}
    vars(target).update(rules)
    assert torch.equal(target(x_of(), IDS, WEIGHTS), source(x_of(), IDS, WEIGHTS))
    with pytest.raises(RuntimeError, match="MXExperts: got format mxfp4, expected mxfp8"):
        converted(Experts(bias=True), format="mxfp8").load_state_dict(source.state_dict())


def q_of(*shape):
    return mx.quantize(torch.ones(shape))


WRONG = {
    "2-D": ([(64, 32), (32, 32)], {}, r"got \[64, 32\] and \[32, 32\], expected \[E, 2I"),
    "sizes": ([(2, 64, 32), (2, 32, 64)], {}, r"expected \[E, 2I, H\] and \[E, H, I\]"),
    "bias": (
        [(2, 64, 32), (2, 32, 32)],
        {"down_proj_bias": torch.ones(2, 64)},
        r"down_proj_bias: got shape \[2, 64\], expected \[2, 32\]",
    ),
    "hidden_act": (
        [(2, 64, 32), (2, 32, 32)],
        {"hidden_act": "relu"},
        "hidden_act: got 'relu', expected",
    ),
    "mode": (
        [(2, 64, 32), (2, 32, 32)],
        {"activations": "fp9"},
        "activations: got 'fp9', expected",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_parts_get_a_sentence(case):
    shapes, choices, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        mx.MXExperts(*(q_of(*shape) for shape in shapes), **choices)


def test_float_weights_get_a_sentence():
    with pytest.raises(TypeError, match="gate_up_proj: got Tensor, expected an MXTensor"):
        mx.MXExperts(torch.ones(2, 64, 32), q_of(2, 32, 32))


def test_repr_says_what_it_is():
    assert repr(mx.MXExperts(q_of(2, 64, 32), q_of(2, 32, 32), activations="mxfp4")) == (
        "MXExperts(num_experts=2, hidden_size=32, intermediate_size=32, hidden_act=silu, "
        "format=mxfp4, layout=plain, scale_rule=even, activations=mxfp4)"
    )
