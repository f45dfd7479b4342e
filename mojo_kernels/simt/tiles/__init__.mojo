"""Products of more rows than a warp takes one by one, on tensor cores of any NVIDIA GPU from Ampere on."""
