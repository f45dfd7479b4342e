"""Kernels for a GPU that is not here, through the timing model of `gfx950`.

kernels.py    compiles our kernels and MAX's to assembly, reads Triton's
launches.py   launches of our kernels, and what a launch is
systems.py    what each system launches for a shape
kept.py       profiles of earlier runs
report.py     rows as tables, CSV and text of a page
tune.py       measures the dispatch table against other cuts
*.mojo        programs that print assembly
"""
