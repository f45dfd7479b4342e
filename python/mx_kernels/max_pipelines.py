"""What `--custom-architectures` of MAX names; see `integrations.max_pipelines`."""

from mx_kernels.integrations.max_pipelines import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
