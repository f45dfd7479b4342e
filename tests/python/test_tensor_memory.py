"""Which MXTensors share memory, which writes reach it, and that no grad mode changes that.

Torch's own float tensors are the witness: what they share, an MXTensor shares or refuses to be
written through.
"""

import copy
import itertools
import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mx_kernels as mx
import oracle
from cases import LAYOUTS, every_layout

pytestmark = pytest.mark.cpu_only
E, N, K = 4, 48, 96


def weights(layout="plain", *lead, seed=7, dtype=torch.float32):
    torch.manual_seed(seed)
    q = mx.quantize(torch.randn(*lead, N, K, dtype=dtype))
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def shares_memory(a, b):
    """Says whether two tensors have a storage in common, of codes if they are MXTensors."""
    a, b = (t.codes if isinstance(t, mx.MXTensor) else t for t in (a, b))
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


COPIES = {
    "to itself": lambda t: t.to(t.dtype),
    "to a dtype": lambda t: t.to(torch.bfloat16),
    "to a copy": lambda t: t.to(t.dtype, copy=True),
    "to a dtype and a device": lambda t: t.to("cpu", torch.float16),
    "to a copy of a dtype": lambda t: t.to(torch.bfloat16, copy=True),
    "to another": lambda t: t.to(torch.empty(1, dtype=torch.float16)),
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "float": lambda t: t.float(),
    "type": lambda t: t.type(torch.float16),
    "type_as": lambda t: t.type_as(torch.empty(1, dtype=torch.float16)),
    "cpu": lambda t: t.cpu(),
    "contiguous": lambda t: t.contiguous(),
    "clone": lambda t: t.clone(),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "alias": torch.ops.aten.alias,
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "reshape": lambda t: t.reshape(1, *t.shape),
    "a part": lambda t: t[1],
    "parts": lambda t: t.chunk(2)[1],
    "split": lambda t: t.split(1)[1],
    "by index": lambda t: t[torch.tensor([1])],
    "cat": lambda t: torch.cat([t, t]),
    "stack": lambda t: torch.stack([t, t]),
}


@pytest.mark.parametrize("name", COPIES)
@every_layout
def test_memory_is_shared_where_torch_shares_it(name, layout):
    q = weights(layout, E)
    dense = q.dequantize()
    got, expected = COPIES[name](q), COPIES[name](dense)
    assert shares_memory(got, q) == shares_memory(expected, dense)
    assert got.dtype == expected.dtype


@every_layout
def test_a_copy_of_another_dtype_outlives_an_update(layout):
    q = weights(layout)
    before = q.dequantize()
    kept = [q.to(torch.bfloat16), q.to(torch.float16, copy=True), q.half(), q.clone()]
    q.copy_(weights(layout, seed=99))
    for other in kept:
        assert torch.equal(other.dequantize("float32"), before)


MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


# Writes.

CUTS = {
    "K": lambda t: t[..., :32],
    "K from within": lambda t: t[..., 32:],
    "every second": lambda t: t[::2],
    "rows": lambda t: t[:, :16],
    "one row of each": lambda t: t[:, 1],
    "chunks of K": lambda t: t.chunk(3, -1)[1],
    "a matrix": lambda t: t[1],
    "matrices": lambda t: t[1:3],
    "all": lambda t: t[:],
}
VIEWS = {
    "itself": lambda t: t,
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "alias": torch.ops.aten.alias,
    "copy": copy.copy,
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "first": lambda t: t[0],
    "slice": lambda t: t[1:],
    "all": lambda t: t[:],
    "ellipsis": lambda t: t[...],
    "none": lambda t: t[None],
    "unsqueeze": lambda t: t.unsqueeze(0),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(0),
    "view": lambda t: t.view(1, *t.shape),
    "view_as": lambda t: t.view_as(t),
    "reshape": lambda t: t.reshape(1, *t.shape),
    "flatten": lambda t: t.flatten(0, -2),
    "unflatten": lambda t: t.unflatten(0, (1, -1)),
    "select": lambda t: t.select(0, 0),
    "narrow": lambda t: t.narrow(0, 0, 1),
    "chunk": lambda t: t.chunk(2)[1],
    "split": lambda t: t.split(1)[0],
    "split by sizes": lambda t: t.split([1, t.shape[0] - 1])[1],
    "tensor_split": lambda t: t.tensor_split(2)[0],
    "unbind": lambda t: t.unbind()[0],
    "iteration": lambda t: next(iter(t)),
    "transposed twice": lambda t: t[0].T.T,
    "as_strided": lambda t: t.as_strided(t.shape, t.stride()),
}
WRITES = {
    "copy_": lambda t, source: t.copy_(source),
    "setitem": lambda t, source: t.__setitem__(..., source),
    "foreach": lambda t, source: torch._foreach_copy_([t], [source]),
}


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("layout", ["plain", "preshuffled_cpu"])
def test_a_write_reaches_the_whole_or_is_refused(cut, view, layout):
    q = weights(layout, E)
    try:
        part = VIEWS[view](CUTS[cut](q))
    except (ValueError, NotImplementedError, RuntimeError):
        return  # That there is no such view, `test_tensor_parts` says.
    for write in WRITES.values():
        before, expected = q.clone(), q.dequantize()
        target = VIEWS[view](CUTS[cut](expected))
        source = mx.quantize(torch.randn(part.shape))
        try:
            write(part, source)
        except ValueError as error:
            assert "a part whose bytes are a copy" in str(error)
            assert torch.equal(q.codes, before.codes) and torch.equal(q.scales, before.scales)
        else:
            write(target, source.dequantize())
            assert torch.equal(q.dequantize(), expected)


def test_parts_along_leading_axes_are_written_through():
    q = weights("preshuffled_cpu", E)
    for view in (lambda t: t[1], lambda t: t[1:3].detach()[0], lambda t: t.unbind()[2]):
        view(q).copy_(weights(seed=99))
        assert torch.equal(view(q).dequantize(), weights(seed=99).dequantize())


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("view", ["itself", "detach", "parameter", "unsqueeze", "slice", "copy"])
def test_a_copied_part_is_not_read_after_its_whole_was_written(view, mode):
    """A view would show what was written."""
    x = torch.ones(3, 32)
    with MODES[mode]():
        q = weights("plain", E)
        part, kept, other = VIEWS[view](q[:, :2, :32]), q[..., :32].clone(), weights(seed=99)
        matrix = part.view(-1, 2, 32)[0]
        mx.linear(x, matrix), mx.linear(x, matrix)  # The second repeats the first.
        before = kept.dequantize()
        q[0].copy_(other)
        for read in (
            part.dequantize,
            part.clone,
            lambda: mx.linear(x, matrix),
            lambda: F.linear(x, matrix),
            lambda: torch.cat([part, part]),
            lambda: q[:, :2, :32].clone().copy_(part),
            lambda: copy.deepcopy(part),
        ):
            with pytest.raises(ValueError, match="whose whole was written to since"):
                read()
        assert torch.equal(kept.dequantize(), before)
        assert torch.equal(q[..., :32].dequantize()[0], other.dequantize()[:, :32])


@pytest.mark.parametrize("format", ["fp8", "fp8_e5m2"])
@pytest.mark.parametrize("shape", [(96,), (1, 96), (3, 96)])
def test_parts_of_a_row_with_one_scale_are_copies(shape, format):
    q = mx.quantize(torch.randn(shape), format=format)
    before = q.dequantize()
    with pytest.raises(ValueError, match="a part whose bytes are a copy"):
        q[..., :32].copy_(mx.quantize(torch.randn(*shape[:-1], 32), format=format))
    assert torch.equal(q.dequantize(), before)


OWN = {
    "clone": lambda t: t.clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "dtype": lambda t: t.half(),
    "by index": lambda t: t[torch.tensor([0, 1])],
    "cat": lambda t: torch.cat([t, t]),
    "empty_like": torch.empty_like,
    "preshuffle": lambda t: t.preshuffle("cpu"),
}
FORMATS = ["mxfp4", "mxfp8", "mxint8", "mxfp6", "fp8", "fp8_block"]
STARTS = [(96,), (1, 32), (4, 64), (64, 128), (3, 48, 96), (2, 32, 256), (2, 2, 16, 64)]
STEPS = [
    *CUTS.values(),
    *VIEWS.values(),
    *(OWN[name] for name in OWN if name not in {"dtype", "empty_like", "preshuffle"}),
]


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("seed", range(150))
def test_chains_of_views_and_writes_are_torchs_or_refused(seed):
    """Random ones: after each step, what can be read is what torch's tensors hold."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    format, shape = choose.choice(FORMATS), choose.choice(STARTS)
    q = mx.quantize(torch.randn(shape), format=format)
    if len(shape) > 1 and format.startswith("mx") and choose.random() < 0.5:
        q = q.preshuffle(choose.choice(["cpu", "cuda", "gfx950"]))
    elif len(shape) == 2 and oracle.FORMATS[format].element.bits == 8:
        columns = q.codes.t().contiguous().t()
        q = mx.MXTensor(columns, q.scales, format=format, dtype=q.dtype)
    pairs = [(q, q.dequantize())]
    with choose.choice(list(MODES.values()))():
        for _ in range(10):
            got, dense = choose.choice(pairs[-4:])
            source = mx.quantize(torch.randn(got.shape), format=format) if got.numel() else got
            step, write = choose.choice(STEPS), choose.choice(list(WRITES.values()))
            if choose.random() < 0.3:
                step = lambda t: write(t, source if t is got else source.dequantize())  # noqa: E731, B023
            try:
                result = step(got)
            except (ValueError, NotImplementedError, IndexError, RuntimeError):
                continue
            expected = step(dense)
            if isinstance(result, mx.MXTensor):
                pairs.append((result, expected))
            for part, numbers in pairs:
                assert part.shape == numbers.shape
                try:
                    assert torch.equal(part.dequantize(), numbers)
                except ValueError as error:
                    assert "whose whole was written to since" in str(error)


@pytest.mark.parametrize("name", OWN)
def test_what_is_made_of_a_copied_part_can_be_written(name):
    own = OWN[name](weights("plain", E)[..., :32])
    source = mx.quantize(torch.randn(own.shape))
    assert torch.equal(own.copy_(source).dequantize("float32"), source.dequantize())


def test_pairs_are_checked_before_the_first_is_copied():
    q, floats = weights(), torch.zeros(3)
    with pytest.raises(ValueError, match="copy_: got shape"):
        torch._foreach_copy_([floats, q], [torch.ones(3), weights()[:3]])
    with pytest.raises(TypeError, match="copy_: source: got Tensor"):
        torch._foreach_copy_([floats, q], [torch.ones(3), torch.ones(N, K)])
    assert not floats.any()
    torch._foreach_copy_([floats, q], [torch.ones(3), weights(seed=99)])
    assert floats.all() and torch.equal(q.dequantize(), weights(seed=99).dequantize())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_write_into_a_copied_part_is_refused(backend):
    torch._dynamo.reset()
    q, source = weights(), weights()[:, :32]
    for write, target in (
        (lambda t, s: t[:, :32].detach().copy_(s).dequantize(), q),
        (lambda t, s: t.detach().copy_(s).dequantize(), q[:, :32]),
    ):
        with pytest.raises(Exception, match="a part whose bytes are a copy"):
            torch.compile(write, backend=backend)(target, source)


# Grad modes.

CALLS = {
    **COPIES,
    **{f"view: {name}": view for name, view in VIEWS.items()},
    **{
        f"cut: {name}": cut for name, cut in CUTS.items() if name not in ("rows", "one row of each")
    },
    "linear": lambda t: F.linear(torch.ones(3, K), t[1]),
    "linear with a bias": lambda t: F.linear(torch.ones(2, 3, K), t[1], torch.ones(N)),
    "times its transpose": lambda t: torch.ones(3, K) @ t[1].T,
    "batches times its transpose": lambda t: torch.ones(2, 3, K) @ t[1].mT,
    "matmul": lambda t: torch.matmul(torch.ones(3, K), t[1].t()),
    "addmm": lambda t: torch.addmm(torch.ones(N), torch.ones(3, K), t[1].t()),
    "a vector": lambda t: t[1] @ torch.ones(K),
    "a gradient": lambda t: torch.ones(3, N) @ t[1],
    "ours": lambda t: mx.linear(torch.ones(3, K), t[1]),
    "dequantize": lambda t: t.dequantize(),
    "preshuffle": lambda t: t.preshuffle("cpu"),
    "chunks": lambda t: t.chunk(2),
    "swapped axes": lambda t: t[0].swapaxes(0, 1).swapaxes(0, 1),
    "vstack": lambda t: torch.vstack([t, t]),
}


def same(got, expected):
    if isinstance(got, list):
        return len(got) == len(expected) and all(map(torch.equal, got, expected))
    return torch.equal(got, expected)


def numbers(result):
    if isinstance(result, tuple | list):
        return [numbers(part) for part in result]
    return result.dequantize() if isinstance(result, mx.MXTensor) else result


@pytest.mark.parametrize("name", CALLS)
def test_what_works_with_gradients_works_in_every_mode(name):
    expected = numbers(CALLS[name](weights("plain", E)))
    for made_in, mode in itertools.product(MODES.values(), MODES.values()):
        with made_in():
            q = weights("plain", E)
        with mode():
            got = numbers(CALLS[name](q))
        assert "empty" in name or same(got, expected)


@pytest.mark.filterwarnings("ignore:MXLinear")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_computes_and_is_saved_in_inference_mode(layout):
    m = nn.Sequential(mx.MXLinear(weights(layout), torch.ones(N)), nn.ReLU())
    x = torch.ones(3, K)
    expected = m(x)
    with torch.inference_mode():
        assert torch.equal(m(x), expected)
        state = copy.deepcopy(m.state_dict())
        m.load_state_dict(state)
        m.load_state_dict(state, assign=True)
        assert torch.equal(m.half().float()(x), expected)


def test_views_made_in_inference_mode_are_those_of_their_base():
    q = weights("plain", E)
    with torch.inference_mode():
        views, own = [q[0], q[..., :32], q.unbind()[1], q[1].t()], q.clone()
    assert not any(view.is_inference() for view in views) and own.is_inference()
    views[0].copy_(weights(seed=99))
    assert torch.equal(q[0].dequantize(), weights(seed=99).dequantize())
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        own.copy_(q)
