"""A kernel as everybody else sees it: which problems it takes, and how it is launched."""

from ..problem import Problem
from .queue import Queue


trait ProductKernel:
    """One compiled kernel of products; whoever has its file has its launch."""

    @staticmethod
    def supports(problem: Problem) -> Bool:
        """Says whether the kernel computes a problem."""
        ...

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        """Launches the kernel for a problem that it supports."""
        ...
