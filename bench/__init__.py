"""How fast and how exact `mx_kernels` is, measured against its peers.

run.py        the command: one worker process per thread count, then the reports
worker.py     one process, pinned to its cores: measures a target's shapes
targets/      what is measured on which device; one module per device
simulated/    kernels of other systems and ours on gfx950's timing model
peers/        the other systems, one module each, and what each does differently
gpt_oss/      gpt-oss at its real sizes, random weights: a command of its own
minilm.py     a real model in plain torch;  sentences.py  real input for it
model.py      the model before and after conversion to MXFP4, activations in every mode
timing.py     interleaved medians;  graph_timing.py  of a GPU's captured calls, weights cold
roofline.py   what the machine can do at all
goals.py      what this repository promises, checked on the measured rows
experts.py    a layer of experts: its weights, its tokens, its goals
sweep.py      what curves of time over rows show: steps, shares of the peak
report.py     rows as tables, CSV and text of pages;  plot.py  as a picture
"""
