"""The graph of the example of gpt-oss, for the CPU, or as built for a gfx950 GPU that is not here.

gpt_oss.py FILE.mef    compiles it
gpt_oss.py gfx950      prints it, without a compilation
"""

import sys

from examples import max_gpt_oss_layer
from mx_kernels import max_graph

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "gfx950":
        from tests.max_graph.graphs.gfx950 import use_virtual

        use_virtual(what)
        print(max_gpt_oss_layer.build(what))
    else:
        max_graph.export(max_gpt_oss_layer.build(), what)
