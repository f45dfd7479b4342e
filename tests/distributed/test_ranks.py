"""Layers over ranks of gloo against the same layers whole, on two ranks and, deep, on four.

Columns and experts are equal to the bit, since no sum is cut. Where sums are cut, results stay
within the bound of a sum in any order. Each number of ranks runs `programs.products` once.
"""

import json
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch
from torch import nn

import cases
import mx_kernels as mx
import oracle
from cases import sums_of, values_of
from mx_kernels._core.facts import facts
from mx_kernels.integrations.distributed import (
    Colwise,
    Cut,
    ExpertParallel,
    Experts,
    Rowwise,
    bounds,
)
from mx_kernels.integrations.distributed.cuts import sizes
from mx_kernels.integrations.distributed.styles import expert_cuts
from oracle import assert_matmul
from tests.distributed import ranks
from tests.distributed.models import (
    EXPERTS,
    FORMATS,
    INNER,
    LAYOUTS_HERE,
    TOKENS,
    WIDE,
    WIDTH,
    experts,
    mlp,
    of_format,
    routed,
    tokens,
    weights,
)
from tests.tiers import tiered

pytestmark = pytest.mark.filterwarnings("ignore:MX(Linear|Experts). weights in layout")
BLOCK = 32


@pytest.fixture(scope="module", params=tiered([2, 4], first=[2]))
def found(request, tmp_path_factory):
    """Returns what each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    mx.save(whole_model().state_dict(), folder / "whole")
    found = ranks.run("products", request.param, folder)
    return [one | {"folder": folder} for one in found]


def whole_model():
    return nn.ModuleDict({"mlp": mlp(), "experts": experts(), "norm": nn.LayerNorm(WIDTH)})


def of_layouts(names):
    return pytest.mark.parametrize(
        "name", [f"{layout}/{n}" for layout in LAYOUTS_HERE for n in names]
    )


# Tensor parallel


@of_layouts(["whole"])
def test_columns_over_ranks_are_those_of_the_whole_to_the_bit(found, name):
    expected = mlp(name.partition("/")[0])[0](tokens())
    parts = [one[f"columns/{name.replace('whole', 'part')}"] for one in found]
    assert [p.shape[1] for p in parts] == sizes(INNER, len(found), BLOCK)
    assert torch.equal(torch.cat(parts, 1), expected)
    for one in found:
        assert torch.equal(one[f"columns/{name}"], expected)


def test_a_linear_layer_with_an_mxtensor_is_cut_the_same(found):
    torch.manual_seed(1)
    linear = nn.Linear(WIDTH, INNER)
    linear.weight = nn.Parameter(mx.quantize(linear.weight.detach()), requires_grad=False)
    for one in found:
        assert torch.equal(one["columns/linear"], linear(tokens()))


def test_every_rank_holds_its_part_in_its_layout(found):
    for layout in LAYOUTS_HERE:
        parts = [one[f"columns/{layout}/weight"] for one in found]
        assert {part.layout for part in parts} == {layout}
        whole = mlp()[0].weight.detach()
        together = Cut(0, BLOCK).whole(parts)
        assert torch.equal(together.codes, whole.codes)


@of_layouts(["torch.float32", "torch.bfloat16"])
def test_rows_over_ranks_add_up_within_the_bound_with_one_bias(found, name):
    layout, _, dtype = name.partition("/")
    dtype = getattr(torch, dtype.removeprefix("torch."))
    first, relu, second = mlp(layout, dtype)
    hidden = relu(first(tokens(dtype=dtype)))
    check_sum(found, f"rows/{name}", hidden, second)


def check_sum(found, name, hidden, layer):
    """Claims the sum of the ranks' products, each rounded to the dtype of the result."""
    a = oracle.dequantize(*oracle.quantize(values_of(hidden)))
    weight = layer.weight.detach()
    b, bias = values_of(weight.dequantize("float32")), values_of(layer.bias.detach())
    got = [one[name] for one in found]
    assert all(torch.equal(got[0], other) for other in got)
    if hidden.dtype == torch.float32:
        assert_matmul(values_of(got[0]), a, b, "float32", bias)
        return
    # Each part, and each of their sums, is rounded to bfloat16: half a unit of 8 bits.
    at = bounds(INNER, len(found), BLOCK)
    parts = [a[:, s:e] @ b[:, s:e].T for s, e in pairwise(at)]
    parts[0] = parts[0] + bias
    bound = len(parts) * 2.0**-8 * sum(abs(part) for part in parts) + 1e-6
    assert (abs(values_of(got[0]) - sum(parts)) <= bound).all()


def test_whole_activations_are_cut_where_the_weights_are(found):
    torch.manual_seed(5)
    check_sum(found, "rows/whole input", torch.randn(TOKENS, INNER), mlp()[2])
    assert [bool(one["rows/has bias"]) for one in found] == [True] + [False] * (len(found) - 1)


def test_tokens_over_ranks_stay_where_they_are(found):
    """Sequence parallel: gathered before, scattered behind."""
    got = torch.cat([one["sequences/tokens"] for one in found])
    torch.testing.assert_close(got, mlp()(tokens(12)), rtol=1e-5, atol=1e-5)


@of_layouts(["swiglu_oai", "silu", "relu2"])
def test_parts_of_experts_add_up(found, name):
    layout, _, hidden_act = name.partition("/")
    expected = experts(hidden_act, layout)(tokens(), *routed())
    for one in found:
        torch.testing.assert_close(one[f"layers/{name}"], expected, rtol=1e-4, atol=1e-4)
    shapes = [tuple(one[f"layers/{name}/shape"]) for one in found]
    rows = [sums_of(hidden_act, n) for n in sizes(INNER, len(found), BLOCK)]
    assert shapes == [(EXPERTS, n, WIDTH) for n in rows]


def test_gradients_are_those_of_the_whole(found):
    x = tokens().requires_grad_()
    mlp()(x).square().sum().backward()
    for one in found:
        torch.testing.assert_close(one["gradients/x"], x.grad, rtol=1e-4, atol=1e-4)


@of_layouts(["0", "None"])
def test_styles_of_torch_compute_what_the_whole_does(found, name):
    whole, x = mlp(name.partition("/")[0], inner=256), tokens().requires_grad_()
    whole[2].bias.requires_grad_()
    y = whole(x)
    y.square().sum().backward()
    expected = {"": y.detach(), "/x": x.grad, "/bias": whole[2].bias.grad}
    for one in found:
        assert one[f"styles_of_torch/{name}/shape"].tolist() == [256 // len(found), WIDTH]
        for what, t in expected.items():
            got = one[f"styles_of_torch/{name}{what}"]
            torch.testing.assert_close(got, t, rtol=1e-4, atol=1e-4)
        assert one["styles_of_torch/refusal"]


# Checkpoints


def test_a_checkpoint_is_read_in_parts_and_saved_whole(found):
    model = whole_model()
    for one in found:
        expected = model["mlp"](tokens())
        torch.testing.assert_close(one["files/y"], expected, rtol=1e-5, atol=1e-5)
        expected = model["experts"](tokens(), *routed())
        torch.testing.assert_close(one["files/z"], expected, rtol=1e-4, atol=1e-4)
    again, before = (mx.load(found[0]["folder"] / name) for name in ("again", "whole"))
    assert again.keys() == before.keys()
    for name, tensor in before.items():
        if isinstance(tensor, mx.MXTensor):
            assert torch.equal(again[name].codes, tensor.codes), name
            assert torch.equal(again[name].scales, tensor.scales), name
        else:
            assert torch.equal(again[name], tensor), name


def test_no_rank_holds_more_than_its_part(found):
    whole = sum(p.nbytes for p in whole_model().parameters())
    share = sizes(INNER, len(found), BLOCK)[0] / INNER
    assert all(one["files/held"] < 1.05 * share * whole for one in found)


def test_fully_shard_gathers_the_bytes_of_rows(found):
    torch.manual_seed(128)
    first = weights(128, WIDTH)
    torch.manual_seed(WIDTH)
    second = weights(WIDTH, 128)
    expected = nn.Sequential(mx.MXLinear(first), nn.ReLU(), mx.MXLinear(second))(tokens())
    for one in found:
        assert torch.equal(one["replicated/y"], expected)
        assert one["replicated/rows"] == 128 // len(found)


# Expert parallel


@of_layouts(["mxfp4", "mxint8", "bf16"])
def test_experts_over_ranks_give_what_one_rank_gives(found, name):
    """Each rank has its own tokens; only the order in which experts are added up differs."""
    layout, _, activations = name.partition("/")
    whole = experts(layout=layout, activations=activations)
    for rank, one in enumerate(found):
        x, chosen = tokens(TOKENS + rank, seed=rank), routed(TOKENS + rank, seed=rank)
        expected = whole(x, *chosen)
        torch.testing.assert_close(one[f"over_experts/{name}"], expected, rtol=1e-5, atol=1e-5)
        # Rows that fill what a rank sends change nothing.
        assert torch.equal(one[f"over_experts/{name}/told"], one[f"over_experts/{name}"])


def test_all_tokens_can_go_to_one_rank(found):
    x, (ids, weights) = tokens(4), routed(4)
    expected = experts()(x, torch.full_like(ids, 0), weights)
    torch.testing.assert_close(found[0]["over_experts/all to one"], expected, rtol=1e-5, atol=1e-5)
    for one in found[1:]:
        assert one["over_experts/all to one"].shape == (0, WIDTH)


def test_tokens_travel_in_the_bytes_of_their_format(found):
    """A token is a row: codes, scales, its ids and weights; all ranks send equally many."""
    slots, most = 3 * (4 + 4), TOKENS + len(found) - 1
    for one in found:
        assert one["over_experts/refusal"]
        for name, bits in (("mxfp4", 4.25), ("mxint8", 8.25), ("bf16", 32)):
            row = WIDTH * bits / 8 + slots
            assert one[f"over_experts/plain/{name}/bytes"] == most * row, name
            assert one[f"over_experts/plain/{name}/told/bytes"] == (most + 1) * row, name


@pytest.mark.parametrize("scale_rule", ["even", "floor", "ceil", "rceil"])
@pytest.mark.parametrize("format", cases.FORMATS)
def test_quantizing_what_was_quantized_changes_nothing(format, scale_rule):
    """Why experts multiply what came over the wire as if it were the token itself."""
    torch.manual_seed(6)
    x = torch.randn(512, 64) * torch.exp2(torch.randint(-8, 8, (512, 64)))
    once = mx.quantize(x, format=format, scale_rule=scale_rule).dequantize("float32")
    twice = mx.quantize(once, format=format, scale_rule=scale_rule).dequantize("float32")
    assert torch.equal(once, twice)


# Weights of other blocks


@pytest.mark.parametrize("format", FORMATS)
def test_weights_of_every_format_are_cut_and_add_up(found, format):
    first, relu, second = of_format(mlp, format)
    hidden, at = relu(first(tokens())), bounds(WIDE, len(found), facts().formats[format].cut)
    columns = torch.cat([one[f"formats/{format}/columns"] for one in found], 1)
    assert torch.equal(columns, first(tokens()))
    # Where a row has one scale, each rank's part of the activations has its own.
    weight, rule = second.weight.detach(), {"activations": FORMATS[format]}
    parts = [
        mx.linear(hidden[:, s:e].contiguous(), weight[:, s:e], **rule) for s, e in pairwise(at)
    ]
    expected = sum(part.double() for part in parts) + second.bias.detach()
    for one in found:
        torch.testing.assert_close(
            one[f"formats/{format}/rows"].double(), expected, rtol=1e-5, atol=1e-5
        )


def parts_of(whole, ranks):
    """Yields experts with the parts of each rank; the bias of the sum counts once."""
    cuts, weights = expert_cuts(whole), dict(whole.named_parameters())
    for rank in range(ranks):
        own = {name: cut.part(weights[name].detach(), ranks, rank) for name, cut in cuts.items()}
        own["down_proj_bias"] = weights["down_proj_bias"].detach() if rank == 0 else None
        yield mx.MXExperts(**own, hidden_act=whole.hidden_act, activations=whole.activations)


@pytest.mark.parametrize("format", FORMATS)
def test_experts_of_every_format_are_cut_and_given_out(found, format):
    whole = of_format(experts, format)
    expected = whole(tokens(), *routed())
    # Where a row has one scale, hidden numbers are quantized by parts of it.
    parts = expected
    if format in cases.ROW_FORMATS:
        parts = sum(part(tokens(), *routed()) for part in parts_of(whole, len(found)))
    for one in found:
        torch.testing.assert_close(one[f"formats/{format}/experts"], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one[f"formats/{format}/parts"], parts, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", ["parts", "experts"])
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_gathered_of_every_format_is_what_was_cut(found, format, style):
    again = mx.load(found[0]["folder"] / f"{format} {style}", preshuffle=False)
    for name, weight in of_format(experts, format).named_parameters():
        if not isinstance(weight, mx.MXTensor):
            assert torch.equal(again[name], weight)
            continue
        assert again[name].format == format
        assert torch.equal(again[name].codes, weight.codes), name
        assert torch.equal(again[name].scales, weight.scales), name


@pytest.mark.parametrize("format", FORMATS)
def test_fully_shard_takes_formats_whose_blocks_lie_in_rows(found, format):
    for one in found:
        if format == "fp8_block_2d":
            assert one[f"formats/{format}/refused"]
        else:
            expected = of_format(mlp, format)(tokens())
            assert torch.equal(one[f"formats/{format}/replicated"], expected)


# What goes wrong


@pytest.mark.parametrize("tokens", [0, -1, 2.0, True, "8"])
def test_ranks_are_told_a_number_of_tokens(tokens):
    with pytest.raises(ValueError, match=f"tokens: got {tokens!r}, expected a number from 1 on"):
        ExpertParallel(tokens=tokens)


@pytest.mark.parametrize("wire", ["fp8_block_2d", "mxint16", "int4", None, "fp8"])
def test_tokens_travel_only_in_formats_whose_blocks_lie_in_a_row(wire):
    if wire in (None, "fp8"):
        assert ExpertParallel(wire=wire).wire == wire
        return
    with pytest.raises(ValueError, match=f"wire: got '{wire}', expected 'mxfp4' or"):
        ExpertParallel(wire=wire)


@pytest.mark.parametrize(
    "style, module, error",
    [
        (Colwise(), nn.Linear(64, 64), "expected an MXLinear"),
        (Rowwise(), nn.LayerNorm(64), "expected an MXLinear"),
        (Experts(), nn.Linear(64, 64), "expected an MXExperts"),
        (ExpertParallel(), nn.Linear(64, 64), "expected an MXExperts"),
    ],
)
def test_layers_that_cannot_be_cut_are_refused(style, module, error):
    with pytest.raises(TypeError, match=error):
        style._apply(module, None)


def test_rows_that_weights_multiply_first_do_not_travel_in_codes():
    module = experts()
    module.apply_router_weight_on_input = True
    with pytest.raises(ValueError, match="apply_router_weight_on_input and wire 'mxfp4'"):
        ExpertParallel()._apply(module, None)


@pytest.mark.deep
@pytest.mark.parametrize("count", [3, 4, 8])
def test_the_bench_of_ranks_runs_on_any_number(tmp_path, count):
    results, run = tmp_path / "results.json", ("-m", "torch.distributed.run")
    command = (*run, "--nproc-per-node", str(count), "-m", "bench.scaling", str(results), "--tiny")
    done = subprocess.run(
        [sys.executable, *command], cwd=ranks.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(results.read_text())
    assert found["ranks"] == count
    # Parts of sums are rounded before they are added, and by activations of 4 bits afterwards.
    assert found["llama-70b"]["error"] < 0.1 and found["gpt-oss-120b"]["error"] < 0.01
    for name in ("mxfp4", "bf16"):
        assert found[f"experts over ranks, {name}"].keys() == {"1", "16", "128"}


@pytest.mark.deep
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("program", ["left_alone", "left_alone_with_experts"])
def test_a_rank_that_dies_gives_all_others_an_error_in_time(tmp_path, program, count):
    begin = time.monotonic()
    *others, dead = ranks.finish(ranks.start(program, count, tmp_path))
    assert time.monotonic() - begin < ranks.PATIENCE_SECONDS
    assert dead[0] == 3
    for code, said in others:
        assert code == 1 and ("RuntimeError" in said or "DistBackendError" in said), said
