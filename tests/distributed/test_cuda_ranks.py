"""What GPUs of one host send each other through memory that all of them see."""

import pytest
import torch

from tests.distributed import ranks

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
DTYPES = torch.bfloat16, torch.float32


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Returns what each rank found."""
    gpus = 1 << (torch.cuda.device_count().bit_length() - 1)
    return ranks.run("on_gpus", min(gpus, 8), tmp_path_factory.mktemp("gpus"))


def test_cuda_ranks_see_each_other(found):
    assert all(one["sees"] for one in found)


@pytest.mark.parametrize("shape", ["1x8", "3x8192", "64x8192", "65x8192", "900x8192", "7x1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuda_ranks_add_up_in_their_order_with_the_same_bits(found, dtype, shape):
    name = f"{dtype}/{shape}"
    first, *others = found[0][f"{name}/parts"]
    for other in others:
        first = first + other
    for one in found:
        is_ordered = one[f"{name}/takes"] or len(found) == 2
        assert torch.equal(one[f"{name}/sum"], first if is_ordered else found[0][f"{name}/sum"])


@pytest.mark.parametrize("wire", ["mxfp4", "bf16"])
@pytest.mark.parametrize("times", range(3))
def test_cuda_experts_over_ranks_are_those_by_nccl_in_graphs_too(found, wire, times):
    name = f"experts/{wire}/{times}"
    for one in found:
        assert torch.equal(one[name], one[f"{name}/nccl"])
        assert torch.equal(one[f"{name}/replayed"], one[name])


def test_cuda_rows_are_those_by_nccl_in_graphs_too(found):
    for one in found:
        assert torch.equal(one["rows/replayed"], one["rows"])
        torch.testing.assert_close(one["rows"], one["rows/nccl"], rtol=2**-7, atol=1e-3)
