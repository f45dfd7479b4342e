"""MXExperts: the experts of a mixture-of-experts layer as a torch module, over `mx_kernels.moe`.

    gate_up_proj, down_proj               parameters, MXTensors [E, 2I, H] and [E, H, I]
    gate_up_proj_bias, down_proj_bias     parameters [E, 2I] and [E, H], or absent

Parameters and call are those of the experts in transformers 5: a router gives each token the ids
and weights of its experts, `experts(hidden_states, top_k_index, top_k_weights)` does the rest.
Rows of gate_up_proj lie as `activation` reads them, see `mx_kernels.moe`.
"""

from __future__ import annotations

from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import check_biases, check_gate, check_mode, check_operand
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING
from mx_kernels.experts import moe
from mx_kernels.modules import MXModule, parameter
from mx_kernels.tensor import MXTensor


class MXExperts(MXModule):
    """Computes `moe` of its weights; see there for activation, limit and alpha.

    Args:
        gate_up_proj: the quantized weights [E, 2I, H], in any format and layout.
        down_proj: the quantized weights [E, H, I].
        gate_up_proj_bias: floats [E, 2I], or None.
        down_proj_bias: floats [E, H], or None.
        activation: "silu" or "swiglu_oai".
        limit: of "swiglu_oai", which alone has one; None is 7.
        alpha: likewise; None is 1.702.
        rounding: how activations are quantized.
        activations: what they are multiplied as: a format, or "bf16", which takes no `rounding`.

    Raises:
        TypeError: if weights are not MXTensors, or biases hold no floats.
        ValueError: if shapes do not fit together, or a name is unknown.
    """

    WEIGHTS = ("gate_up_proj", "down_proj")

    def __init__(
        self,
        gate_up_proj: MXTensor,
        down_proj: MXTensor,
        *,
        gate_up_proj_bias: Tensor | None = None,
        down_proj_bias: Tensor | None = None,
        activation: str = "silu",
        limit: float | None = None,
        alpha: float | None = None,
        rounding: str = DEFAULT_ROUNDING,
        activations: str = DEFAULT_FORMAT,
    ):
        super().__init__()
        weights = {"gate_up_proj": gate_up_proj, "down_proj": down_proj}
        biases = {"gate_up_proj_bias": gate_up_proj_bias, "down_proj_bias": down_proj_bias}
        for name, w in weights.items():
            check_operand(w, name)
        up, down = gate_up_proj.shape, down_proj.shape
        if len(up) != 3 or len(down) != 3 or up != (down[0], 2 * down[2], down[1]):
            raise ValueError(
                f"gate_up_proj and down_proj: got {show(up)} and {show(down)}, expected "
                "[E, 2I, H] and [E, H, I]"
            )
        check_gate(activation, limit, alpha)
        check_mode(activations, rounding)
        for (name, w), (bias_name, bias) in zip(weights.items(), biases.items(), strict=True):
            check_biases(bias, bias_name, w, name)
            self.register_parameter(name, parameter(w))
        for name, bias in biases.items():
            self.register_parameter(name, None if bias is None else parameter(bias))
        self.num_experts, self.hidden_size, self.intermediate_size = down
        self.activation, self.limit, self.alpha = activation, limit, alpha
        self.rounding, self.activations = rounding, activations
        self._warn_if_slow()

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns the weighted sum of each token's experts.

        Args:
            hidden_states: tokens [..., H].
            top_k_index: the experts of each token [T, k]. The id E, which transformers gives to
                experts of other ranks, stands for no expert, and so does a negative one.
            top_k_weights: what their results count [T, k].
        """
        return moe(
            hidden_states.reshape(-1, self.hidden_size),
            self.gate_up_proj,
            self.down_proj,
            top_k_index.masked_fill(top_k_index == self.num_experts, -1),
            top_k_weights,
            bias_gate_up=self.gate_up_proj_bias,
            bias_down=self.down_proj_bias,
            activation=self.activation,
            limit=self.limit,
            alpha=self.alpha,
            **self._rules(),
        ).view(hidden_states.shape)

    def extra_repr(self) -> str:
        """Names sizes, gate, format, layout and rounding in the module's repr."""
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, activation={self.activation}, "
            f"{self._show_choices()}"
        )
