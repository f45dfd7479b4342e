"""The graph of the example of gpt-oss.

gpt_oss.py FILE.mef
"""

import sys

from examples import max_gpt_oss_layer
from mx_kernels import max_graph

if __name__ == "__main__":
    max_graph.export(max_gpt_oss_layer.build(), sys.argv[1])
