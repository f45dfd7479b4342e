"""`explain` answers from the dispatch's own tables, for every shape."""

import itertools

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import every_pair
from mx_kernels._core import levels
from mx_kernels._core.native import gpu_plans, source_folder
from tests.cdna4.support import CONTEST
from tests.hip.kinds import KINDS

DECODE, PREFILL = "cdna4/streaming/kernel.mojo", "cdna4/ping_pong/kernel.mojo"
MIDDLE = "cdna4/interleaved/kernel.mojo"
CLEARED_BYTES = (1 << 24) + (1 << 16)
"""What launches find zero (launch/workspace.mojo)."""
EXTREMES = itertools.product(
    (1, 16, 17, 65, 4096), (1, 17, 4096, 4097, 70000), (32, 512, 544, 7200)
)


@pytest.mark.parametrize("op", [mx.linear, mx.matmul])
@pytest.mark.parametrize("m, n, k", [*CONTEST, *EXTREMES])
def test_the_grid_covers_the_product(m, n, k, op):
    found = mx.explain(m, n, k, device="gfx950", op=op)
    x, y, z = found.grid
    is_prefill, is_middle = found.kernel == PREFILL, found.kernel == MIDDLE
    assert is_prefill or is_middle or found.kernel == DECODE
    if is_prefill or is_middle:
        tiles = -(-m // found.tile[0]) * -(-n // found.tile[1])
        assert x == -(-tiles // 8) * 8 and y == 1
        assert is_prefill or z * found.chunks_per_wave * found.chunk_k >= k
    else:
        assert x * found.tile[1] >= n
        assert y * found.tile[0] >= m
        assert z * found.waves // found.sharers * found.chunks_per_wave * found.chunk_k >= k
        assert found.chunks_per_wave % found.depth == 0
    assert z == found.splits
    assert found.k_tail == (k % found.chunk_k != 0)
    assert found.threads == 64 * found.waves <= 1024
    meets = found.splits > 1 or is_prefill
    assert (found.counter_bytes > 0) == meets
    assert (found.workspace_bytes > 0) == (meets or found.quantizes_first)
    assert found.counter_bytes <= min(found.workspace_bytes, CLEARED_BYTES)
    assert found.reason


@pytest.mark.parametrize("m, n, k", CONTEST)
def test_the_contest_shapes_occupy_the_compute_units(m, n, k):
    for op in (mx.linear, mx.matmul):
        found = mx.explain(m, n, k, device="gfx950", op=op)
        assert 64 <= np.prod(found.grid) <= 512


def test_codes_of_hundreds_of_rows_have_kernels_of_their_own():
    found = mx.explain(320, 7168, 8192, device="gfx950", op=mx.matmul)
    assert found.kernel == MIDDLE and found.cut == "middle160x128s2" and not found.quantizes_first


@pytest.mark.parametrize("m, n, k", [(1024, 2880, 2880), (512, 6912, 1152), (2048, 2560, 2880)])
def test_a_k_that_ends_within_a_step_has_them_too(m, n, k):
    for op in (mx.matmul, mx.linear):
        found = mx.explain(m, n, k, device="gfx950", op=op)
        assert found.kernel == MIDDLE and found.k_tail and found.chunk_k == 256


def test_all_tiles_that_share_k_find_room_to_add_up():
    """As many as there are compute units for, of weights from narrow to wide."""
    counted = [
        mx.explain(m, n, k, device="gfx950", op=mx.matmul, activations=kind, format=kind)
        for kind in ("mxfp4", "mxfp8")
        for m in range(64, 8193, 64)
        for n in (1, 200, 576, 1024)
        for k in (1536, 7168, 16384)
    ]
    assert max(found.counter_bytes for found in counted) <= CLEARED_BYTES
    assert any(found.splits > 1 and found.tile[0] > 32 for found in counted)


@pytest.mark.parametrize("m, n, k", [(320, 7168, 8192), (512, 4096, 4096), (96, 4096, 14336)])
def test_floats_of_hundreds_of_rows_become_codes_in_a_launch_before(m, n, k):
    codes, floats = (mx.explain(m, n, k, device="gfx950", op=op) for op in (mx.matmul, mx.linear))
    assert floats.quantizes_first and floats.kernel == MIDDLE and floats.cut == codes.cut
    assert "floats encoded in a launch before, then cdna4/interleaved/kernel.mojo" in str(floats)
    assert floats.counter_bytes == codes.counter_bytes
    assert floats.workspace_bytes - codes.workspace_bytes >= m * k // 2 + m * k // 32


@pytest.mark.parametrize(
    "shape", [*CONTEST, (128, 4096, 4096), (8192, 8192, 8192), (128, 2880, 2880)]
)
def test_few_rows_and_very_many_are_encoded_on_the_way(shape):
    assert not mx.explain(*shape, device="gfx950").quantizes_first


@pytest.mark.parametrize("op", [mx.linear, mx.matmul])
def test_large_tiles_are_for_many_rows(op):
    few, many = (mx.explain(m, 8192, 8192, device="gfx950", op=op) for m in (16, 8192))
    assert few.kernel == DECODE and few.cut.startswith("m1n")
    assert many.cut == "prefill256" and many.kernel == PREFILL
    assert "steps of 256, 1024 x 1 x 1 workgroups" in str(many)


@pytest.mark.parametrize("left, right", [("mxfp8", "mxfp4"), ("mxfp8", "mxfp8")])
@pytest.mark.parametrize("op", [mx.linear, mx.matmul])
def test_large_tiles_are_for_many_rows_of_eight_bits_too(op, left, right):
    few, low, many = (
        mx.explain(m, 4096, 4096, device="gfx950", op=op, activations=left, format=right)
        for m in (16, 1024, 8192)
    )
    assert few.kernel == DECODE and many.cut == "prefill256"
    assert low.cut == ("prefill128" if op is mx.linear else "middle128x128")
    codes = 8192 * 4096 if op is mx.linear else 0
    assert many.workspace_bytes == many.counter_bytes + 8192 * 4096 // 32 + codes


def test_the_answer_is_a_sentence():
    text = str(mx.explain(16, 2112, 7168, device="gfx950", activations="mxfp4"))
    assert text.startswith(
        f"16 x 2112 x 7168 of mxfp4 x mxfp4 on gfx950: {DECODE}, few tiles: K is"
    )
    assert "K split 7 ways" in text


def test_the_cpu_explains_its_level_and_what_it_multiplies():
    codes, floats = (mx.explain(1, 64, 96, activations=name) for name in ("mxfp4", "bf16"))
    assert codes.level == floats.level == levels.pick().name
    assert codes.kernel == "cpu/bytes/kernel.mojo" and "integer dot product" in codes.reason
    assert floats.kernel != codes.kernel
    assert codes.tile[0] == 1 and codes.level in str(codes)


@every_pair
def test_the_cpu_explains_every_pair(pair):
    left, right = pair
    for op in (mx.linear, mx.matmul):
        found = mx.explain(4, 64, 96, op=op, activations=left, format=right)
        assert (found.activations, found.format) == (left, right)
        assert f"{left} x {right} on cpu" in str(found)
    assert mx.explain(4, 64, 96, activations="bf16", format=right).kernel


@pytest.mark.parametrize(
    "left, right", [("fp8", "fp8"), ("fp8_e5m2", "fp8_e5m2"), ("fp8_block", "fp8_block_2d")]
)
def test_gfx950_multiplies_floats_like_codes_of_formats_with_float_scales(left, right):
    formats = {"device": "gfx950", "activations": left, "format": right}
    for m, kernel in ((16, "streaming"), (8192, "ping_pong")):
        linear = mx.explain(m, 8192, 8192, **formats)
        matmul = mx.explain(m, 8192, 8192, op=mx.matmul, **formats)
        assert (linear.kernel, linear.tile, linear.grid) == (
            matmul.kernel,
            matmul.tile,
            matmul.grid,
        )
        assert linear.kernel == f"cdna4/{kernel}/kernel.mojo"
        assert linear.workspace_bytes - matmul.workspace_bytes >= m * 8192, "room for codes"


@pytest.mark.parametrize(
    "activations, format",
    [
        ("bf16", "mxfp4"),
        ("bf16", "nvfp4"),
        ("mxfp6", "mxfp4"),
        ("mxfp8", "mxfp4"),
        ("mxfp8_e5m2", "mxfp4"),
    ],
)
def test_gfx950_explains_activations_of_more_than_four_bits(activations, format):
    formats = {"device": "gfx950", "activations": activations, "format": format}
    few, more, many = (mx.explain(m, 4096, 4096, **formats) for m in (1, 128, 4096))
    for found, kernel in ((few, DECODE), (more, DECODE), (many, PREFILL)):
        assert f"{activations} x {format} on gfx950: {kernel}" in str(found)
    # Of six-bit codes the second tile has more columns, not more rows.
    assert few.tile < more.tile and more.tile[0] < many.tile[0]
    assert few.tile[0] < more.tile[0] or activations == "mxfp6"
    assert (many.workspace_bytes > 0) == (activations != "bf16")
    assert mx.explain(1, 512, 4096, **formats).splits > 1
    assert mx.explain(1, 512, 512, **formats).splits == 1


@pytest.mark.parametrize(
    "activations, shape, cut",
    [
        ("mxfp8", (48, 4096, 4096), "m1n4w8"),
        ("mxfp8", (256, 4096, 4096), "m2n4w8"),
        ("mxfp8", (1024, 4096, 4096), "prefill128"),
        ("bf16", (32, 512, 4096), "m1n4w8s4"),
        ("bf16", (1024, 2112, 7168), "m4n8w4d2h4"),
        ("bf16", (2048, 4096, 4096), "prefill128"),
    ],
)
def test_gfx950_takes_the_plan_that_is_fastest_on_the_model_for_wide_floats(
    activations, shape, cut
):
    assert mx.explain(*shape, device="gfx950", activations=activations).cut == cut


def test_gfx950_refuses_other_activations_by_nvfp4_weights():
    for op, left in ((mx.linear, "nvfp4"), (mx.linear, "mxfp6"), (mx.matmul, "nvfp4")):
        with pytest.raises(ValueError, match=f"{left}' x weights 'nvfp4', for which gfx950 has no"):
            mx.explain(4, 64, 96, device="gfx950", op=op, activations=left, format="nvfp4")


def test_gfx950_explains_codes_that_lie_by_columns():
    asked = {"op": mx.matmul, "activations": "fp8_block", "format": "fp8_block_2d"}
    few, many = (
        mx.explain(m, 4096, 4096, device="gfx950", by_columns=True, **asked) for m in (64, 8192)
    )
    assert (few.kernel, few.cut, many.kernel, many.cut) == (
        PREFILL, "prefill128", PREFILL, "prefill256",
    )  # fmt: skip
    with pytest.raises(ValueError, match="by_columns: got True with op='matmul', device='cpu'"):
        mx.explain(64, 4096, 4096, device="cpu", by_columns=True, **asked)
    with pytest.raises(ValueError, match="got activations 'fp8' x weights 'fp8', for which gfx950"):
        asked = {"op": mx.matmul, "activations": "fp8", "format": "fp8"}
        mx.explain(64, 4096, 4096, device="gfx950", by_columns=True, **asked)


def explained(tokens, op=mx.moe, **question):
    """Asks about a layer of gpt-oss-20b, or about its first product."""
    n, slots = (2880, 4) if op is mx.moe else (5760, 0)
    named = {"op": op, "experts": 32, "slots": slots, "activations": "mxfp4"}
    question = {"device": "gfx950", **named, **question}
    return mx.explain(tokens, n, 2880, **question)


@pytest.mark.parametrize("activations", ["mxfp4", "mxfp8", "bf16"])
def test_a_layer_of_experts_is_explained_launch_by_launch(activations):
    few, many = (explained(tokens, activations=activations) for tokens in (1, 4096))
    names = ["route", "gate_up", "down", "add"]
    assert [launch.name for launch in few.launches] == names
    assert "few groups" in few.launches[1].reason and few.launches[1].cut == "m1n4w8"
    hidden_bytes = 2880 * 2
    if activations != "bf16":
        names = ["route", "encode", "order", "gate_up", "down", "add"]
        hidden_bytes = 2880 // 2 if activations == "mxfp4" else 2880
    assert [launch.name for launch in many.launches] == names
    for launch in many.launches:
        if launch.cut:
            rows, columns = launch.tile
            n = 5760 if launch.name == "gate_up" else 2880
            covers = np.prod(launch.grid) * rows * columns >= 4096 * 4 * n
            # Where workgroups go from tile to tile there are as many as compute units.
            assert covers if activations == "bf16" else np.prod(launch.grid) == 256
        assert str(launch) in str(many) and launch.reason
    assert many.workspace_bytes > 4096 * 4 * (2880 * 4 + hidden_bytes) > few.workspace_bytes > 0


@pytest.mark.parametrize("activations", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("tokens, cut", [(1024, "middle160x"), (2048, "prefill256x256")])
def test_rows_of_experts_are_ordered_where_most_groups_have_hundreds(tokens, cut, activations):
    found = explained(tokens, activations=activations)
    order = ["order"] if "prefill" in cut else []
    names = ["route", "encode", *order, "gate_up", "down", "add"]
    assert [launch.name for launch in found.launches] == names
    assert all(launch.cut.startswith(cut) for launch in found.launches[-3:-1])


def test_gates_that_are_not_neighbours_take_a_launch():
    silu = explained(64, hidden_act="silu")
    assert [launch.name for launch in silu.launches] == ["route", "gate_up", "gate", "down", "add"]
    assert silu.workspace_bytes > explained(64).workspace_bytes
    many = [launch.name for launch in explained(1024, hidden_act="silu").launches]
    assert many == ["route", "encode", "gate_up", "gate", "encode", "down", "add"]
    many = [launch.name for launch in explained(4096, hidden_act="silu").launches]
    second = ["encode", "order", "down", "add"]
    assert many == ["route", "encode", "order", "gate_up", "gate", *second]


def test_a_grouped_product_is_explained_as_one_launch():
    found = explained(4096, mx.grouped_linear)
    (launch,) = found.launches
    assert (found.slots, found.workspace_bytes, launch.tile) == (0, 0, (64, 64))
    assert "more rows than the largest tile" in str(found)
    text = "grouped_linear, 4096 x 5760 x 2880 of mxfp4 x mxfp4 on gfx950, 32 experts: 1 launches"
    assert str(found).startswith(text)


@pytest.mark.parametrize("activations", ["mxfp4", "mxfp8", "mxfp8_e5m2", "bf16"])
@pytest.mark.parametrize("op", [mx.moe, mx.grouped_linear])
def test_hopper_lists_rows_of_experts_where_each_has_many(op, activations):
    question = {"device": "cuda", "activations": activations}
    rows_of_token = 4 if op is mx.moe else 1
    few, some, many = (
        explained(rows // rows_of_token, op, **question) for rows in (64, 512, 16384)
    )
    names = ["gate_up", "down", "add"] if op is mx.moe else ["product"]
    assert [launch.name for launch in few.launches] == names
    stages = ["route", "stage", "gate_up", "stage", "down", "add"]
    stages = stages if op is mx.moe else ["route", "stage", "product"]
    assert [launch.name for launch in many.launches] == stages
    files = "streaming/kernel", "gemm_rs_bf16", "gemm_rs_bf16"
    if activations == "bf16":
        # Weights stream for up to 28 rows of each expert, in tiles of up to 32.
        files = "streaming/kernel", "streaming/kernel", "gemm_rs_bf16"
        assert [launch.tile[0] for launch in (few.launches[0], some.launches[0])] == [8, 24]
        stages = names
    assert [launch.name for launch in some.launches] == stages
    if activations in ("mxfp4", "mxfp8"):
        files = "streaming/kernel", "gemm_rs_fp8", "gemm_rs_fp8"
    for found, file in zip((few, some, many), files, strict=True):
        for launch in found.launches:
            multiplies = launch.tile != (0, 0)
            assert not multiplies or launch.kernel == f"hopper/{file}.mojo"
            assert launch.reason and str(launch) in str(found) and np.prod(launch.grid) > 0
    assert many.workspace_bytes > some.workspace_bytes >= few.workspace_bytes
    has_stages = stages != ["product"]
    assert (some.workspace_bytes > few.workspace_bytes) == has_stages
    assert (few.workspace_bytes > 0) == (op is mx.moe)


def test_other_formats_of_experts_have_the_portable_kernel_on_cuda():
    found = explained(64, device="cuda", activations="fp8", format="fp8")
    assert [launch.kernel for launch in found.launches] == ["simt/experts.mojo"] * 2


@pytest.mark.parametrize(
    "question, error, message",
    [
        ({"device": "cpu"}, ValueError, "device: got 'cpu', expected 'gfx950' or 'cuda'"),
        ({"experts": 0}, ValueError, "experts: got 0, expected a number from 1"),
        ({"slots": 2.0}, TypeError, "slots: got float"),
        ({"hidden_act": "relu"}, ValueError, "hidden_act: got 'relu'"),
        ({"activations": "mxint8"}, ValueError, "got activations 'mxint8' x weights 'mxfp4'"),
        ({"activations": "fp8", "format": "fp8"}, ValueError, "has no kernel, expected one of"),
    ],
)
def test_an_impossible_question_about_experts_says_what_is_expected(question, error, message):
    with pytest.raises(error, match=message):
        explained(64, **question)
    with pytest.raises(ValueError, match="n: got 100, expected a multiple of 32"):
        mx.explain(4, 100, 96, device="gfx950", op=mx.moe, experts=4, slots=2)


E, K = 8, 96
LAYER = {"experts": E, "slots": 2, "device": "gfx950"}


def weights_of(operands):
    """Returns operands, with an MXTensor [64, K] in place of the name of a format."""
    return [
        mx.quantize(torch.ones(64, K), format=one) if isinstance(one, str) else one
        for one in operands
    ]


@pytest.mark.parametrize(
    "operation, operands, sizes, options",
    [
        (mx.linear, (torch.ones(2, 3, K), "mxfp8"), (6, 64), {"format": "mxfp8"}),
        (mx.linear, ((1, K), (64, K)), (1, 64), {"device": "gfx950", "activations": "bf16"}),
        (mx.matmul, ("mxfp8", "mxfp4"), (64, 64), {"activations": "mxfp8"}),
        (mx.matmul, ((4, K), "mxfp4"), (4, 64), {"activations": "mxint8"}),
        (mx.moe, (np.ones((4, K)), (E, 128, K)), (4, 64), {**LAYER, "hidden_act": "silu"}),
        (mx.moe, ((4, K), (E, 64, K)), (4, 64), {**LAYER, "hidden_act": "relu2"}),
        (mx.grouped_linear, ((4, K), (E, 64, K)), (4, 64), {**LAYER, "slots": 0}),
    ],
)
def test_a_call_with_operands_asks_what_their_sizes_ask(operation, operands, sizes, options):
    operands = weights_of(operands)
    told = {"experts"} | ({"format"} if isinstance(operands[1], mx.MXTensor) else set())
    told |= {"activations"} if isinstance(operands[0], mx.MXTensor) else set()
    stated = {name: value for name, value in options.items() if name not in told}
    assert mx.explain(operation, *operands, **stated) == mx.explain(
        *sizes, K, op=operation, **options
    )


@pytest.mark.parametrize(
    "operation, operands, options, message",
    [
        (mx.linear, ("mxfp4", "mxfp4"), {}, "x: got MXTensor for linear, expected floats or"),
        (mx.matmul, (torch.ones(4, K), "mxfp4"), {}, "x: got Tensor for matmul, expected an MX"),
        (
            mx.linear,
            ((4, K), "mxfp4"),
            {"format": "mxfp8"},
            "format: got 'mxfp8' beside 'mxfp4'",
        ),
        (mx.matmul, ("mxfp8",) * 2, {"activations": "mxfp4"}, "activations: got 'mxfp4' beside"),
        (mx.linear, ((4, 64), "mxfp4"), {}, r"x and w: got \[4, 64\] and \[64, 96\], expected"),
        (mx.moe, ((4, K), "mxfp4"), {"slots": 1}, r"expected \[..., K\] and \[E, N, K\]"),
        (
            mx.linear,
            ((4, K), (64, K)),
            {"op": mx.linear},
            "op: got .* beside operands, expected none",
        ),
        (mx.linear, ((4, K), (64, K)), {"experts": 2}, "experts: got 2 beside operands"),
        (
            mx.quantize,
            ((4, K), (64, K)),
            {},
            "op: got <function quantize.*expected mx_kernels.linear",
        ),
    ],
)
def test_operands_that_do_not_fit_are_named(operation, operands, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mx.explain(operation, *weights_of(operands), **options)


def test_the_name_of_an_operation_is_deprecated():
    with pytest.warns(DeprecationWarning, match=r"op=mx_kernels\.matmul, or the call") as warned:
        found = mx.explain(4, 64, K, op="matmul")
    assert (found, warned[0].filename) == (mx.explain(4, 64, K, op=mx.matmul), __file__)


@pytest.mark.parametrize(
    "question, message",
    [
        ({"activations": "mxint8"}, "got activations 'mxint8' x weights 'mxfp4', for which gfx950"),
        ({"format": "mxint8"}, "has no kernel, expected one of bf16 x mxfp4, bf16 x nvfp4, "),
        ({"activations": "bf16", "format": "mxfp8"}, "got activations 'bf16' x weights 'mxfp8'"),
        ({"activations": "bf16", "op": mx.matmul}, "format: got 'bf16', expected mxfp4 or"),
        ({"activations": "fp6"}, "activations: got 'fp6', expected 'mxfp4' or"),
    ],
)
def test_formats_without_a_kernel_are_named(question, message):
    with pytest.raises(ValueError, match=message):
        mx.explain(4, 64, 96, device="gfx950", **question)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((4, 64, 96, "tpu"), ValueError, "device: got 'tpu', expected 'cpu' or"),
        ((4, 64, 96, "cpu", "sort"), ValueError, "op: got 'sort', expected 'linear' or 'matmul'"),
        ((0, 64, 96, "cpu"), ValueError, "m: got 0, expected a number from 1 to"),
        ((4, 64, 100, "gfx950"), ValueError, "k: got 100, expected a multiple of 32"),
        ((4, 6.5, 96, "gfx950"), TypeError, "n: got float, expected int"),
    ],
)
def test_an_impossible_question_says_what_is_expected(arguments, error, message):
    m, n, k, device, *op = arguments
    with pytest.raises(error, match=message):
        mx.explain(m, n, k, device=device, **({"op": op[0]} if op else {}))


@pytest.mark.parametrize(
    "name", ["floats", "codes", "kept", "eight_bits", "block_scales", "by_floats", "columns"]
)
def test_a_plan_is_what_explain_says_of_each_launch(name):
    """Of more rows than a launch takes, there is a second plan for those that are left."""
    plans, kind = gpu_plans(), KINDS[name]
    codes = kind.codes()

    def explained(m, n, k):
        return plans.explain_gfx950((m, n, k, *codes[:2], kind.x is None, kind.columns == 1))

    for shape in [(1, 2880, 512), (16, 4096, 4096), (160, 7168, 2048), (2048, 2048, 4096)]:
        choice = explained(*shape)
        text, *num_bytes = plans.plan_gfx950((*shape, *codes))
        assert (text, sum(num_bytes)) == (choice["cut"], choice["workspace_bytes"])
        assert num_bytes[0] == choice["counter_bytes"]
    # Rows of results have 64 KiB, and a launch counts less than 2 GiB.
    n, k, at_once = 32768, 32768, 32512
    most, last = explained(at_once, n, k), explained(16, n, k)
    text, counter_bytes, _ = plans.plan_gfx950((2 * at_once + 16, n, k, *codes))
    assert text == f"{most['cut']} {last['cut']}"
    assert counter_bytes == max(most["counter_bytes"], last["counter_bytes"])


def test_floats_by_floats_are_explained_by_operands_and_by_sizes():
    a, b = torch.empty(300, 7168).half(), torch.empty(2112, 7168).half()
    choice = mx.explain(mx.matmul, a, b, device="gfx950")
    sizes = {"device": "gfx950", "op": mx.matmul, "format": "bf16"}
    assert choice == mx.explain(300, 2112, 7168, **sizes)
    assert (choice.activations, choice.format) == ("bf16", "bf16")
    assert choice.kernel == "cdna4/ping_pong/kernel.mojo" and choice.workspace_bytes == 0
    # A step is two slices of 64; tiles are large as soon as they occupy the compute units.
    assert choice.chunk_k == 128 and not choice.k_tail and choice.tile == (128, 256)
    assert mx.explain(4096, 4096, 160, **sizes).tile == (256, 256)
    assert mx.explain(4096, 4096, 160, **sizes).k_tail


@pytest.mark.parametrize(
    "others",
    [
        {"device": "cpu", "op": mx.matmul},
        {"device": "gfx950"},
        {"device": "gfx950", "op": mx.matmul, "activations": "mxfp8"},
        {"device": "gfx950", "op": mx.matmul, "by_columns": True},
    ],
)
def test_floats_by_floats_are_of_matmul_on_gfx950_alone(others):
    with pytest.raises(ValueError, match=r"format: got 'bf16' with .* expected it for matmul"):
        mx.explain(4, 64, 96, format="bf16", **others)


# Norms, gates and dense layers.


@pytest.mark.parametrize("where", ["cpu", "cuda", "gfx950"])
@pytest.mark.parametrize("format", oracle.FORMATS)
def test_what_becomes_codes_is_explained_with_its_bytes(format, where):
    rules = {"device": where, "format": format}
    norm = mx.explain(5, 96, 96, op=mx.rms_norm_quantize, **rules)
    gate = mx.explain(5, 96, 192, op=mx.gate_quantize, **rules)
    ups = mx.explain(5, 96, 96, op=mx.gate_quantize, hidden_act="relu2", **rules)
    assert mx.explain(5, 96, 96, op=mx.layer_norm_quantize, **rules).bytes_read == norm.bytes_read
    x, weight = torch.randn(5, 192).bfloat16(), torch.ones(96).bfloat16()
    for found, floats, q in (
        (norm, (x[:, :96], weight), mx.rms_norm_quantize(x[:, :96], weight, format=format)),
        (gate, (x,), mx.gate_quantize(x, format=format)),
        (ups, (x[:, :96],), mx.gate_quantize(x[:, :96], hidden_act="relu2", format=format)),
    ):
        assert found.bytes_written == q.codes.nbytes + q.scales.nbytes
        assert found.bytes_read == sum(2 * t.numel() for t in floats)
        assert (found.level == "") == (where != "cpu")
        assert found.kernel in str(found) and (source_folder() / found.kernel).is_file()


def test_a_dense_layer_is_explained_as_its_products():
    found = mx.explain(16, 160, 96, op=mx.mlp, activations="mxfp8", format="mxfp4")
    products = [
        mx.explain(16, n, k, activations="mxfp8", format="mxfp4") for n, k in ((320, 96), (96, 160))
    ]
    assert [launch.name for launch in found.launches] == ["gate_up", "down"]
    for launch, product in zip(found.launches, products, strict=True):
        assert (launch.kernel, launch.tile) == (product.kernel, product.tile)
        assert product.level in str(launch) and "workgroups" not in str(launch)
    layer = {"device": "gfx950", "hidden_act": "silu"}
    of_experts = mx.explain(16, 160, 96, op=mx.moe, experts=1, slots=1, **layer)
    assert mx.explain(16, 160, 96, op=mx.mlp, **layer).launches == of_experts.launches


@pytest.mark.parametrize(
    "n, options, message",
    [
        (32, {"op": mx.rms_norm_quantize}, "n and k: got 32 and 64, expected k to be n"),
        (64, {"op": mx.gate_quantize}, "expected k to be the floats of n hidden numbers, 128"),
        (33, {"op": mx.mlp}, "n: got 33, expected a multiple of 32"),
        (64, {"op": mx.rms_norm_quantize, "hidden_act": "silu"}, "hidden_act: got 'silu'"),
        (64, {"op": mx.rms_norm_quantize, "activations": "bf16"}, "activations: got 'bf16'"),
        (64, {"op": mx.gate_quantize, "by_columns": True}, "by_columns: got True"),
        (64, {"op": mx.mlp, "experts": 2}, "experts: got 2"),
    ],
)
def test_questions_about_norms_that_make_no_sense_are_refused(n, options, message):
    with pytest.raises(ValueError, match=message):
        mx.explain(16, n, 64, **options)
