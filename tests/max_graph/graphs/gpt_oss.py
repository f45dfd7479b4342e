"""The graph of the example of gpt-oss, for the CPU or for a gfx950 GPU that is not here.

gpt_oss.py FILE.mef [gfx950]

For the GPU it is the first layer, the one in a window, whose ops are all that the other has.
"""

import sys

from examples import max_gpt_oss_layer
from mx_kernels import max_graph

if __name__ == "__main__":
    path, *gpus = sys.argv[1:]
    device = None
    if gpus:
        from max.driver import Accelerator

        from tests.max_graph.graphs.gfx950 import use_virtual

        use_virtual(gpus[0])
        max_gpt_oss_layer.CONFIG.num_hidden_layers = 1
        device = Accelerator()
    max_graph.export(max_gpt_oss_layer.build(*gpus), path, device=device)
