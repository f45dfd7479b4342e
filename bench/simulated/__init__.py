"""Kernels for a GPU that is not here, through the timing model of `gfx950`.

kernels.py    compiles our kernels and MAX's to assembly, reads Triton's
systems.py    what each system launches for a shape
report.py     rows as tables, CSV and README text
tune.py       ranks what the dispatch table could name for a shape
*.mojo        programs that print assembly
"""
