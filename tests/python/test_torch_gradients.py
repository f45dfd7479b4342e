"""Gradients and torch.func transforms of our operators."""

import pytest
import torch
from torch.autograd import forward_ad

import mx_kernels as mx
from cases import DTYPES, FLOAT_FORMATS, FORMATS, every_format, every_layout, on_every_device
from tests.python.torch_inputs import K, N, activations, bias_of, weights

pytestmark = on_every_device
every_dtype = pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])


# Gradients. The definition: dx = dy @ dequantize(w), dbias = the sum of dy over all rows.


@every_layout
@every_dtype
@pytest.mark.parametrize("lead", [(5,), (2, 3), (), (0,)])
def test_the_gradient_is_that_of_the_dequantized_weights(layout, dtype, lead):
    w = weights(layout)
    x = torch.randn(*lead, K, dtype=dtype, requires_grad=True)
    bias = bias_of(dtype=torch.float32, requires_grad=True)
    out = mx.linear(x, w, bias=bias)
    grad = torch.randn_like(out)
    out.backward(grad)

    exact = grad.double() @ w.dequantize("float32").double()
    assert x.grad.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(x.grad.double(), exact, rtol=tolerance, atol=3 * tolerance)
    torch.testing.assert_close(bias.grad, grad.float().reshape(-1, N).sum(0), rtol=1e-5, atol=1e-5)


@every_format
def test_the_gradient_is_that_of_the_dequantized_weights_of_any_format(format):
    w, x = weights("preshuffled_cpu", format), activations(requires_grad=True)
    out = mx.linear(x, w, activations=format)
    grad = torch.randn_like(out)
    out.backward(grad)
    torch.testing.assert_close(x.grad, grad @ w.dequantize("float32"), rtol=1e-5, atol=3e-5)


@every_format
def test_vmap_over_activations_of_any_format(format):
    w, x = weights(format=format), activations(5, 4)
    got = torch.func.vmap(lambda r: mx.matmul(mx.quantize(r, format=format), w))(x)
    assert torch.equal(got, mx.matmul(mx.quantize(x, format=format), w))


@pytest.mark.parametrize("format", [*FORMATS, *FLOAT_FORMATS])
def test_what_is_encoded_has_no_gradient_that_could_get_lost(format):
    """Torch says so, of scales that are floats too, instead of leaving `grad` empty."""
    torch._dynamo.reset()  # More formats than it compiles one function for.
    w, x = weights(), activations(requires_grad=True)

    def product(x):
        return mx.matmul(mx.quantize(x, format=format), w)

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    for out in (product(x), compiled(x), mx.quantize(x, format=format).dequantize("float32")):
        with pytest.raises(RuntimeError, match="does not require grad"):
            out.sum().backward()


@pytest.mark.parametrize("norm", ["rms_norm_quantize", "layer_norm_quantize"])
def test_the_sums_before_a_norm_have_a_gradient_and_its_codes_none(norm):
    x, residual = activations(requires_grad=True), activations().flip(0).requires_grad_()
    weight = torch.rand(K, requires_grad=True)
    wanted, function = torch.randn(5, K), getattr(mx, norm)

    def f(x, residual):
        q, stream = function(x, weight, residual=residual)
        return (q.dequantize("float32").sum() + stream) * wanted

    for call in (f, torch.compile(f, backend="aot_eager")):
        x.grad = residual.grad = None
        call(x, residual).sum().backward()
        for leaf in (x, residual):
            torch.testing.assert_close(leaf.grad, wanted)
    assert weight.grad is None
    with torch.no_grad():
        q, stream = function(x, weight, residual=residual)
    again, sums = function(x, weight, residual=residual)
    assert torch.equal(q.codes, again.codes) and torch.equal(stream, sums)
    assert sums.requires_grad and not again.requires_grad


def test_an_mlp_has_the_gradient_of_its_dequantized_weights():
    """In float64 but for float32's roundings, and those of x and hidden numbers to bfloat16."""
    gate_up, down = mx.quantize(torch.randn(128, K)), mx.quantize(torch.randn(K, 64))
    x = activations(requires_grad=True)
    wanted = torch.randn(5, K)
    (mx.mlp(x, gate_up, down, activations="bf16") * wanted).sum().backward()
    y = x.detach().double().requires_grad_()
    gate, up = (y @ gate_up.dequantize("float32").double().T).chunk(2, -1)
    hidden = torch.nn.functional.silu(gate) * up
    (hidden @ down.dequantize("float32").double().T * wanted).sum().backward()
    error = (x.grad - y.grad).norm() / y.grad.norm()
    assert error < 2**-6, error


def test_scales_that_want_a_gradient_are_refused():
    q = mx.quantize(activations(), format="fp8")
    with pytest.raises(ValueError, match=r"scales: got .* gradient, expected .* scales\.detach"):
        mx.MXTensor(q.codes, q.scales.requires_grad_(), format="fp8")


def test_the_gradient_passes_straight_through_the_quantization():
    # Saturated, tiny and zero activations alike: the gradient does not depend on x.
    w = weights()
    grads = []
    for x in (
        torch.zeros(2, K),
        torch.full((2, K), 1e-30),
        torch.linspace(-9, 9, 2 * K).view(2, K),
    ):
        x.requires_grad_()
        mx.linear(x, w).sum().backward()
        grads.append(x.grad)
    assert torch.equal(grads[0], w.dequantize("float32").sum(0).expand(2, K))
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


def test_along_exact_inputs_the_gradient_is_the_slope():
    # Where x is representable and steps stay representable, quantization is the identity, so
    # finite differences of the real function must agree with the gradient.
    w = weights()
    codes = torch.tensor([0.5, 1, 1.5, 2, 3, 4, 6, -6]).repeat(K // 8)[None]
    x = codes.clone().requires_grad_()
    mx.linear(x, w).sum().backward()
    for i in range(0, 8, 3):
        step = torch.zeros(1, K)
        step[0, i] = {0.5: 0.5, 2: 1.0, 6: -2.0}[codes[0, i].item()]
        difference = (mx.linear(codes + step, w) - mx.linear(codes, w)).sum()
        torch.testing.assert_close(difference, (x.grad * step).sum(), rtol=1e-5, atol=1e-4)


def test_second_derivatives_are_those_of_a_linear_map():
    w, x = weights(), activations(requires_grad=True)
    (grad,) = torch.autograd.grad(mx.linear(x, w).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    dense = w.dequantize("float32")
    torch.testing.assert_close(second, (2 * torch.ones(K) @ dense.T @ dense).expand(5, K))


def test_the_bias_of_matmul_has_a_gradient():
    a, bias = mx.quantize(activations(2, 3)), bias_of(requires_grad=True)
    mx.matmul(a, weights(), bias=bias, out_dtype="float32").sum().backward()
    assert bias.grad.tolist() == [6.0] * N


def test_no_gradient_is_recorded_where_none_is_wanted():
    w, x = weights(), activations(requires_grad=True)
    assert mx.linear(x, w).requires_grad
    with torch.no_grad():
        assert not mx.linear(x, w).requires_grad
    assert not mx.linear(x.detach(), w).requires_grad
    with torch.inference_mode():
        out = mx.linear(x, w)
        assert out.is_inference()
    assert torch.equal(mx.linear(out.repeat(1, 2), w), mx.linear(out.clone().repeat(1, 2), w))


def test_forward_mode_pushes_tangents():
    w, x, bias = weights(), activations(), bias_of()
    tangent, bias_tangent = torch.randn(5, K), torch.randn(N)
    expected = tangent @ w.dequantize("float32").T + bias_tangent
    with forward_ad.dual_level():
        dual, bias_dual = forward_ad.make_dual(x, tangent), forward_ad.make_dual(bias, bias_tangent)
        out = forward_ad.unpack_dual(mx.linear(dual, w, bias=bias_dual))
    assert torch.equal(out.primal, mx.linear(x, w, bias=bias))
    torch.testing.assert_close(out.tangent, expected)
    primal, pushed = torch.func.jvp(lambda x: mx.linear(x, w), (x,), (tangent,))
    assert torch.equal(primal, mx.linear(x, w))
    torch.testing.assert_close(pushed, expected - bias_tangent)


def test_forward_mode_pushes_the_tangent_of_a_bias():
    a, w, bias = mx.quantize(activations()), weights(), bias_of()
    primal, pushed = torch.func.jvp(lambda b: mx.matmul(a, w, bias=b), (bias,), (torch.ones(N),))
    assert torch.equal(primal, mx.matmul(a, w, bias=bias))
    assert pushed.tolist() == [[1.0] * N] * 5


# torch.func.


def test_grad_vjp_and_jacobians():
    w, x = weights("preshuffled_cpu"), activations()
    dense = w.dequantize("float32")
    out, vjp = torch.func.vjp(lambda x: mx.linear(x, w), x)
    assert torch.equal(out, mx.linear(x, w))
    torch.testing.assert_close(vjp(torch.ones(5, N))[0], dense.sum(0).expand(5, K))
    grad = torch.func.grad(lambda x: mx.linear(x, w).sum())(x)
    torch.testing.assert_close(grad, dense.sum(0).expand(5, K))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(lambda x: mx.linear(x, w))(x[0]), dense)


def test_quantize_has_no_gradient():
    def f(x):
        q = mx.quantize(x)
        return x.sum() + q.dequantize("float32").sum()

    x = activations(requires_grad=True)
    f(x).backward()
    assert x.grad.unique().tolist() == [1.0]
    assert torch.func.grad(f)(x.detach()).unique().tolist() == [1.0]


@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap_over_activations(in_dim):
    w, x, bias = weights(), activations(5, 4).movedim(0, in_dim), bias_of()
    got = torch.func.vmap(lambda row: mx.linear(row, w, bias=bias), in_dims=in_dim)(x)
    assert torch.equal(got, mx.linear(x.movedim(in_dim, 0), w, bias=bias))
    got = torch.func.vmap(lambda r: mx.matmul(mx.quantize(r), w), in_dims=in_dim)(x)
    assert torch.equal(got, mx.matmul(mx.quantize(x.movedim(in_dim, 0)), w))


def test_per_sample_gradients():
    w, x = weights(), activations(4)
    got = torch.func.vmap(torch.func.grad(lambda row: mx.linear(row, w).sum()))(x)
    torch.testing.assert_close(got, w.dequantize("float32").sum(0).expand(4, K))


def test_vmap_over_weights_says_that_it_cannot():
    stacked, x = mx.quantize(torch.randn(3, N, K)), activations()
    with pytest.raises(NotImplementedError, match="loop over the weights"):
        torch.func.vmap(lambda w: mx.linear(x, w))(stacked)
