"""vLLM on a CPU: our plugin's MXFP4 against vLLM's own bfloat16 of the same numbers.

    python -m bench.serving --rounds 5

environment.py  a virtual environment with vLLM, made once;  worker.py  one engine in one process
__main__.py     the command: a Llama as files, an engine for each variant, requests by turns
"""
