"""What is CUDA's own: plans and corners of its kernels, streams, graphs, memory, devices, time.

The operations' other tests run on CUDA tensors as they do on the CPU's, see `conftest`. Small
products are taken with every plan of the kernels, not only the one that dispatch picks.
"""

import math
import time

import pytest
import torch
import torch.nn.functional as F

import mx_kernels as mx
import oracle
from bench import run, targets
from bench.rows import OURS, Row, read_csv
from cases import FORMATS, LAYOUTS, bytes_of, values_of
from mx_kernels._core.cuda import CUDA

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
PLAIN, SHUFFLED = "plain", "preshuffled_cuda"
MODES = ("bf16", "mxfp4", "encoded")


@pytest.fixture
def plan(monkeypatch):
    """Returns a function that makes dispatch take a plan, a text of `hopper/plan.mojo`."""
    return lambda text: monkeypatch.setattr(CUDA, "plan", text)


def split(ranks):
    """Returns what a plan says of so many CTAs that split K."""
    return f" splitK{ranks}" if ranks > 1 else ""


def numbers(q):
    return oracle.dequantize(bytes_of(q.codes), bytes_of(q.scales), q.format)


# Products


class Problem:
    """Operands of one product, and its claim."""

    def __init__(self, m, n, k, *, x_dtype=torch.bfloat16, w_spread=0, x_spread=0, format="mxfp4"):
        generator = torch.Generator(device="cuda").manual_seed(7 * m + 3 * n + k)

        def randn(rows, spread):
            exponents = torch.randint(-spread, spread + 1, (rows, 1), generator=generator,
                                      device="cuda")  # fmt: skip
            values = torch.randn(rows, k, generator=generator, device="cuda")
            return values * 2.0 ** exponents.float()

        self.x = randn(m, x_spread).to(x_dtype)
        self.w = mx.quantize(randn(n, w_spread) * 0.02, format=format)

    def weights(self, layout):
        device = LAYOUTS[layout]["device"]
        w = self.w.preshuffle(device=device) if device else self.w
        # Six-bit rows that do not fill the tiles of a GPU's layout stay plain.
        is_filled = not self.w.format.startswith("mxfp6") or self.w.k % 64 == 0
        assert w.layout == (layout if is_filled else PLAIN)
        return w

    def check(self, mode, layout=SHUFFLED, *, dtype=torch.bfloat16, bias=None, scale_rule="even"):
        w = self.weights(layout)
        a, x = mx.quantize(self.x, scale_rule=scale_rule), values_of(self.x)
        if mode == "bf16":
            got = mx.linear(self.x, w, bias=bias, out_dtype=dtype, activations="bf16")
        else:
            x = numbers(a)
            if mode == "mxfp4":
                got = mx.linear(
                    self.x, w, bias=bias, scale_rule=scale_rule, out_dtype=dtype, activations=mode
                )
            else:
                got = mx.matmul(a, w, bias=bias, out_dtype=dtype)
        bias = None if bias is None else values_of(bias)
        oracle.assert_matmul(values_of(got), x, numbers(self.w), NAMES[dtype], bias)


SHAPES = [
    (1, 32, 32), (4, 2880, 512), (16, 2112, 7168), (33, 100, 96), (64, 7168, 2048),
    (7, 257, 160), (1, 4096, 4096), (128, 512, 1024), (65, 130, 4128), (300, 384, 256),
    (17, 33, 14336), (257, 136, 96), (70, 40, 32), (512, 1000, 2080), (600, 4096, 512),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_within_the_derived_bound(shape, mode):
    Problem(*shape).check(mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", [24, 33, 65, 70, 128])
def test_short_k_is_read_up_to_its_end(m, mode):
    """`scripts/gpu_host.sh sanitize` runs it, each operand in an allocation of its own."""
    for k in range(288, 1569, 32):
        Problem(m, 256 if k % 64 else 1000, k).check(mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != SHUFFLED])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] * s[1] * s[2] < 3e8], ids=str)
def test_other_layouts_are_multiplied_by_the_portable_kernel(shape, layout, mode):
    Problem(*shape).check(mode, layout)


@pytest.mark.parametrize("layout", [PLAIN, SHUFFLED])
@pytest.mark.parametrize("right", FORMATS)
@pytest.mark.parametrize("left", [*FORMATS, "bf16"])
@pytest.mark.parametrize("shape", [(5, 257, 160), (33, 100, 2112), (70, 64, 4160)], ids=str)
def test_every_pair_of_formats_is_multiplied(shape, left, right, layout):
    problem = Problem(*shape, w_spread=2, x_spread=3, format=right)
    w, out = problem.weights(layout), torch.float32
    got = mx.linear(problem.x, w, activations=left, out_dtype=out)
    x = values_of(problem.x)
    if left != "bf16":
        a = mx.quantize(problem.x, format=left)
        assert torch.equal(got, mx.matmul(a, w, out_dtype=out))
        x = numbers(a)
    oracle.assert_matmul(values_of(got), x, numbers(problem.w), "float32")


@pytest.mark.parametrize("layout", [PLAIN, SHUFFLED])
@pytest.mark.parametrize("format, codes", [("mxfp8", [0x7F, 0xFF]), ("mxfp8_e5m2", [0x7D, 0xFF])])
def test_stored_codes_without_a_number_spoil_their_row_alone(format, codes, layout):
    problem = Problem(9, 40, 96, format=format)
    problem.w.codes[3, 5], problem.w.codes[39, 95] = codes
    got = mx.linear(problem.x, problem.weights(layout), activations="mxfp8")
    assert torch.equal(got.isnan().any(0), got.isnan().all(0))
    assert got.isnan().any(0).nonzero().flatten().tolist() == [3, 39]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [32, 64, 128, 256])
@pytest.mark.parametrize("shape", [(1, 300, 4096), (9, 130, 544), (20, 257, 1056), (64, 300, 2080)])
def test_every_plan_for_few_rows_gives_the_product(shape, columns, ranks, plan):
    rows = next(rows for rows in (8, 16, 32, 64) if shape[0] <= rows)
    if rows == 64:
        columns = min(max(columns, 64), 128)  # Others are refused.
    problem = Problem(*shape)
    plan(f"stream {rows}x{columns}{split(ranks)}")
    for mode in MODES:
        problem.check(mode)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("tokens", [64, 128])
@pytest.mark.parametrize("shape", [(33, 100, 96), (64, 300, 2080), (200, 257, 1056)], ids=str)
def test_every_plan_for_dozens_of_rows_gives_the_product(shape, tokens, ranks, plan):
    problem = Problem(*shape)
    plan(f"rs_bf16 {tokens}x128{split(ranks)}")
    for mode in MODES:
        problem.check(mode)


@pytest.mark.parametrize(
    "shape",
    [(33, 100, 96), (300, 257, 1056), (2600, 2300, 544), (4200, 4300, 96)],
    ids=lambda shape: f"{shape}, {-(-shape[0] // 256) * -(-shape[1] // 128)} tiles",
)
def test_the_plan_for_many_rows_gives_the_product(shape, plan):
    problem = Problem(*shape)
    plan("rs_bf16 256x128")
    for mode in MODES:
        problem.check(mode)


@pytest.mark.parametrize("tokens", [64, 128, 256])
@pytest.mark.parametrize(
    "shape",
    [(33, 100, 96), (64, 1000, 14336), (300, 257, 1056), (2600, 2300, 544), (900, 4300, 96)],
    ids=str,
)
def test_plans_with_even_shares_of_numbers_give_the_product(shape, tokens, plan):
    problem = Problem(*shape)
    plan(f"rs_bf16 {tokens}x128 streamK")
    for mode in MODES:
        problem.check(mode)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    "shape", [(33, 100, 96), (300, 257, 1056), (2600, 2300, 544), (4200, 4300, 96)], ids=str
)
@pytest.mark.parametrize("format", ["mxfp4", "mxfp6", "mxfp6_e3m2"])
def test_plans_with_numbers_in_the_workspace_give_the_product(format, shape, ranks, plan):
    m, n, k = shape
    problem = Problem(m, n, k if format == "mxfp4" else k + k % 64, format=format)
    plan(f"ss_bf16 128x128{split(ranks)} prepared")
    problem.check("bf16")
    # Rows of a wider matrix.
    problem.x = torch.nn.functional.pad(problem.x, (8, 24))[:, 8:-24]
    problem.check("bf16")
    if format == "mxfp4":
        with pytest.raises(Exception, match="bfloat16 activations that are kept"):
            problem.check("mxfp4")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("rows", [64, 128, 256])
@pytest.mark.parametrize(
    "shape", [(33, 100, 96), (300, 257, 1056), (450, 2300, 544), (200, 4300, 96)], ids=str
)
def test_plans_with_mapped_rows_give_the_product(shape, rows, ranks, plan):
    problem = Problem(*shape)
    plan(f"rs_bf16 {rows}x64{split(ranks)}")
    problem.check("bf16")
    w = problem.weights(SHUFFLED)
    first, *others = (mx.linear(problem.x, w, activations="bf16") for _ in range(20))
    assert all(torch.equal(first, other) for other in others)
    # Rows of a wider matrix.
    problem.x = torch.nn.functional.pad(problem.x, (8, 24))[:, 8:-24]
    problem.check("bf16")
    with pytest.raises(Exception, match="bfloat16 activations that are kept"):
        problem.check("mxfp4")


@pytest.mark.parametrize(
    "text, format",
    [("ss_bf16 128x128 prepared", "mxfp4"), ("rs_bf16 128x128 streamK", "mxfp4"),
     ("rs_bf16 64x64", "mxfp4"), ("rs_bf16 128x64 splitK2", "mxfp4"),
     ("ss_bf16 128x128 prepared", "mxfp6"), ("ss_bf16 128x128 prepared", "mxfp6_e3m2")],
)  # fmt: skip
@pytest.mark.parametrize("scale", [0, 1, 60, 190, 253, 254, 255])
def test_weights_that_no_bfloat16_number_is_are_multiplied_exactly(scale, text, format, plan):
    problem = Problem(300, 257, 1088, format=format)
    problem.x[:, 64:96] *= 2.0 ** (127 - scale) if scale > 127 else 1
    problem.w.scales[[5, 256], 2] = scale
    plan(text)
    problem.check("bf16")


@pytest.mark.parametrize(
    "text",
    ["stream 64x32", "rs_bf16 64x128 splitK3", "rs_bf16 32x128", "rs_bf16 32x128 streamK"],
)
def test_a_plan_that_does_not_exist_is_refused(text, plan):
    plan(text)
    with pytest.raises(ValueError, match=f"plan: got '{text}', expected"):
        Problem(64, 64, 64).check("bf16")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", [5, 100])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_bias_is_added_before_rounding_to_any_type(dtype, m, mode):
    Problem(m, 96, 256).check(mode, dtype=dtype, bias=torch.randn(96, device="cuda").to(dtype))


@pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("m", [12, 80])
def test_every_type_and_rule_quantizes_inside_the_product(m, dtype, scale_rule):
    Problem(m, 64, 384, x_dtype=dtype).check("mxfp4", scale_rule=scale_rule)


def nan_weight(p):
    p.w.scales[3, 0] = 255


def extreme_weights(p):
    scales = p.w.scales
    scales[5, 0], scales[7, -1], scales[9], scales[11, 0] = 254, 253, 0, 200
    p.x *= 2.0**-80


def not_finite_activations(p):
    p.x[0, 5], p.x[-1, -1] = float("nan"), float("inf")


def huge_activations(p):
    p.x[0, :32], p.w.scales[:] = 3e38, 60


def zero_activations(p):
    p.x[:, :32] = 0


CORNERS = [nan_weight, extreme_weights, not_finite_activations, huge_activations, zero_activations]


@pytest.mark.parametrize("layout", [PLAIN, SHUFFLED])
@pytest.mark.parametrize("m", [9, 200])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("corner", CORNERS)
def test_corners_of_the_scale_range_are_multiplied_exactly(corner, mode, m, layout):
    if corner is not_finite_activations and mode == "bf16":
        mode = "mxfp4"  # an infinity kept as it is makes the bound infinite: nothing to claim
    problem = Problem(m, 128, 512)
    corner(problem)
    problem.check(mode, layout, dtype=torch.float32)


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_any_magnitude_are_multiplied_exactly(mode):
    Problem(9, 128, 512, w_spread=30, x_spread=20).check(mode, dtype=torch.float32)


# Streams, graphs, memory, devices, host time


def shuffled_weights(n, k, device="cuda"):
    return mx.quantize(torch.randn(n, k, device=device) * 0.02).preshuffle()


@pytest.mark.parametrize("m", [4, 200])
def test_a_graph_replays_the_same_bits_on_new_activations(m):
    n, k = 256, 1024
    w = shuffled_weights(n, k)
    x = torch.randn(m, k, device="cuda").bfloat16()
    mx.linear(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mx.linear(x, w)
    for _ in range(3):
        x.copy_(torch.randn(m, k, device="cuda"))
        graph.replay()
        assert torch.equal(out, mx.linear(x, w))
    assert out.any()


def test_every_operation_can_be_captured():
    x, dense = (torch.randn(rows, 96, device="cuda") for rows in (5, 48))

    def run():
        w = mx.quantize(dense).preshuffle()
        a = mx.quantize(x)
        return mx.matmul(a, w), mx.linear(x, w.unshuffle()), w.dequantize()

    expected = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    for got, wanted in zip(out, expected, strict=True):
        assert torch.equal(got, wanted)


def test_two_streams_do_not_interfere():
    n, k = 512, 2048
    w = shuffled_weights(n, k)
    inputs = [torch.randn(m, k, device="cuda").bfloat16() for m in (3, 130)]
    expected = [mx.linear(x, w) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for x, stream in zip(inputs, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(mx.linear(x, w))
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        assert torch.equal(result, expected[i % 2])


def test_memory_does_not_grow_over_ten_thousand_calls():
    w = shuffled_weights(64, 512)
    x = torch.randn(4, 512, device="cuda").bfloat16()
    for _ in range(100):
        mx.linear(x, w)
    torch.cuda.synchronize()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(10_000):
        mx.linear(x, w)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.mem_get_info()[0] >= free - (1 << 20)


def test_every_device_computes_whichever_is_current():
    expected = None
    for current in range(torch.cuda.device_count()):
        for index in range(torch.cuda.device_count()):
            with torch.cuda.device(current):
                device = f"cuda:{index}"
                x = torch.linspace(-3, 3, 70 * 96, device=device).view(70, 96)
                w = mx.quantize(x).preshuffle()
                out = [mx.linear(x, w), mx.linear(x[:3], w), mx.matmul(mx.quantize(x), w)]
                assert torch.cuda.current_device() == current
            assert {str(t.device) for t in (w.codes, w.scales, *out)} == {device}
            out = [t.cpu() for t in out]
            expected = expected or out
            for got, wanted in zip(out, expected, strict=True):
                assert torch.equal(got, wanted)


def test_operands_on_two_devices_are_refused():
    w, x = shuffled_weights(48, 64), torch.ones(3, 64, device="cuda")
    message = r"x and w: got x on cuda:0 and w on cpu, expected one device; move .*\.to\('cpu'\)"
    with pytest.raises(ValueError, match=message):
        mx.linear(x, w.to("cpu"))
    with pytest.raises(ValueError, match="got x on cpu and w on cuda:0"):
        mx.linear(x.cpu(), w)
    with pytest.raises(ValueError, match="a and b: got a on cpu and b on cuda:0"):
        mx.matmul(mx.quantize(x.cpu()), w)
    with pytest.raises(ValueError, match="bias and the weights: got bias on cpu and the weights"):
        mx.linear(x, w, bias=torch.ones(48))
    with pytest.raises(ValueError, match="got x on cuda:0 and w on cpu"):
        parts = w.codes.cpu(), w.scales.cpu(), w.format, w.layout, 48
        torch.ops.mx_kernels.linear(x, *parts, None, "even", torch.float32, "mxfp4")


def test_weights_that_moved_under_the_tensor_are_found():
    w, x = shuffled_weights(48, 64), torch.ones(3, 64, device="cuda")
    mx.linear(x, w)
    w.codes.data = w.codes.cpu()
    with pytest.raises(ValueError, match="its arrays were changed after it was made"):
        mx.linear(x, w)


@pytest.mark.parametrize(("m", "launches"), [(1, 1), (200, 2)])
def test_a_call_costs_the_host_what_one_of_torch_costs(m, launches):
    w = shuffled_weights(64, 64)
    x, dense = torch.randn(m, 64, device="cuda").bfloat16(), torch.ones(64, 64, device="cuda")
    dense = dense.bfloat16()
    calls = {"ours": lambda: mx.linear(x, w), "torch": lambda: F.linear(x, dense)}
    best = dict.fromkeys(calls, math.inf)
    for _ in range(50):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / 200)
    assert best["ours"] <= (0.7 + 0.5 * launches) * best["torch"], best


def test_the_benchmark_measures_this_device(tmp_path):
    run.main(target="cuda", quick=True, results=tmp_path)
    rows = read_csv(tmp_path / "cuda.csv", Row)
    assert {row.op for row in rows} == {"machine", *targets.load("cuda").OPS}
    systems = {row.system for row in rows if row.op == "linear"}
    assert systems >= {OURS, "cuBLAS bf16", "Triton dot_scaled"}
