"""Models over ranks: `torch.distributed` carries the bytes, our kernels multiply what each has.

    Colwise, Rowwise, Experts    styles for `parallelize_module`: each rank a part of every layer
    ExpertParallel               each rank some experts; tokens travel quantized
    load, save, gathered         checkpoints of the whole model

    mesh = init_device_mesh("cuda", (2,))
    parallelize_module(block, mesh, {"up": Colwise(), "down": Rowwise(), "experts": Experts()})

        cuts.py           which part of an axis each rank has, at multiples of blocks
        collectives.py    what ranks send each other, with gradients
        styles.py         layers that become parts
        experts.py        experts over ranks
        fsdp.py           MXTensors under `fully_shard`, from the import of this package on
        state.py          checkpoints

Nothing of this is imported by `mx_kernels` itself.
"""

import torch.distributed

if not torch.distributed.is_available():
    raise ImportError(
        "mx_kernels.integrations.distributed needs torch.distributed, which this torch lacks"
    )

from mx_kernels.integrations.distributed import fsdp  # noqa: F401  it registers
from mx_kernels.integrations.distributed.cuts import Cut, bounds
from mx_kernels.integrations.distributed.experts import ExpertParallel
from mx_kernels.integrations.distributed.state import gathered, load, save
from mx_kernels.integrations.distributed.styles import Colwise, Experts, Rowwise

__all__ = [
    "Colwise",
    "Cut",
    "ExpertParallel",
    "Experts",
    "Rowwise",
    "bounds",
    "gathered",
    "load",
    "save",
]
