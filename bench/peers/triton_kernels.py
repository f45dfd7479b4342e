"""triton_kernels (Triton's own, as vLLM carries it): a layer of experts, on the GPU.

`matmul_ogs` gathers tokens, multiplies bfloat16 activations by MXFP4 weights and scatters. By it
vLLM runs gpt-oss on Hopper: two launches with the activation fused, and those that sort tokens. The
package has no wheel of its own; `TRITON_KERNELS` names the folder that holds it, as does
`vllm/third_party` of an unpacked wheel of vLLM for CUDA. 0.19 has the one for Triton 3.6.
"""

from __future__ import annotations

import os
import sys

import torch

NAME = "triton_kernels"
ALPHA, LIMIT = 1.702, 7.0
"""Of gpt-oss's activation."""
WARPS = 8

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes, scales and bias of all experts."""


def is_there() -> bool:
    """Says whether the package can be imported; puts its folder on the path."""
    folder = os.environ.get("TRITON_KERNELS")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    try:
        import triton_kernels.matmul_ogs  # noqa: F401, PLC0415  an optional package
    except ImportError:
        return False
    return True


class Layer:
    """A layer of experts, of tokens [M, H] and router logits [M, E]."""

    def __init__(self, gate_up: Weights, down: Weights, active: int):
        """Takes weights to the package's own layout.

        Args:
            gate_up: codes [E, 2I, H/2], gate and up in turns, scales [E, 2I, H/32], bias [E, 2I].
            down: codes [E, H, I/2], scales [E, H, I/32], bias [E, H].
            active: experts of a token.
        """
        from triton_kernels.matmul_ogs import FnSpecs, FusedActivation  # noqa: PLC0415
        from triton_kernels.swiglu import swiglu_fn  # noqa: PLC0415

        self._gate_up, self._down, self._active = _weights(*gate_up), _weights(*down), active
        swiglu = FnSpecs("swiglu", swiglu_fn, ("alpha", "limit"), reduction_n=2)
        self._activation = FusedActivation(swiglu, (ALPHA, LIMIT))

    def route(self, logits: torch.Tensor) -> tuple:
        """Returns the tokens of each expert, and the weights of each token: a softmax of top-k."""
        from triton_kernels.matmul_ogs import GatherIndx, RoutingData, ScatterIndx  # noqa: PLC0415
        from triton_kernels.tensor import make_ragged_tensor_metadata  # noqa: PLC0415
        from triton_kernels.topk import topk  # noqa: PLC0415

        chosen = topk(logits, self._active, apply_softmax=True)
        rows = chosen.mask_metadata.row_sorted_indx
        columns = chosen.mask_metadata.col_sorted_indx
        groups = make_ragged_tensor_metadata(chosen.mask_metadata.col_sum, len(rows))
        weights = chosen.vals.flatten()[columns]
        experts = logits.shape[-1]
        data = RoutingData(weights, groups.slice_sizes, experts, self._active, groups)
        return data, GatherIndx(columns, rows), ScatterIndx(rows, columns)

    def multiply(self, x: torch.Tensor, routing: tuple) -> torch.Tensor:
        """Returns [M, H], of tokens that are routed."""
        from triton_kernels.matmul_ogs import matmul_ogs  # noqa: PLC0415

        data, gather, scatter = routing
        w, bias, precision = self._gate_up
        hidden = matmul_ogs(
            x, w, bias, data, gather, precision_config=precision, fused_activation=self._activation
        )
        w, bias, precision = self._down
        return matmul_ogs(
            hidden, w, bias, data, scatter_indx=scatter, precision_config=precision,
            gammas=data.gate_scal,
        ).view(x.shape)  # fmt: skip


def _weights(codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor) -> tuple:
    """Returns weights in the package's own layout, the bias, and what says how to read weights."""
    from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig  # noqa: PLC0415
    from triton_kernels.matmul_ogs_details import opt_flags  # noqa: PLC0415
    from triton_kernels.numerics import InFlexData  # noqa: PLC0415
    from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor  # noqa: PLC0415
    from triton_kernels.tensor_details import layout  # noqa: PLC0415

    # As vLLM does on Hopper.
    opt_flags.update_opt_flags_constraints({"split_k": 1})
    of_codes, code_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    of_scales, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(
        mx_axis=1, num_warps=WARPS
    )
    codes = wrap_torch_tensor(codes.transpose(-2, -1), dtype=FP4)
    scales = wrap_torch_tensor(scales.transpose(-2, -1))
    precision = PrecisionConfig(
        weight_scale=convert_layout(scales, of_scales, **scale_options),
        flex_ctx=FlexCtx(rhs_data=InFlexData()),
    )
    return convert_layout(codes, of_codes, **code_options), bias.float(), precision
