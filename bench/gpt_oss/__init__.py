"""gpt-oss at its real sizes, with random weights: how fast it loads, reads and writes tokens.

    python -m bench.gpt_oss --layers 24 --threads 2

checkpoint.py  files in the published layout;  worker.py  one model in one process
gguf_file.py   the same model for llama.cpp
__main__.py    the command: a worker for each variant, a table, build/bench/gpt_oss.csv
"""

from bench.gpt_oss.checkpoint import write_checkpoint

__all__ = ["write_checkpoint"]
