"""The codec of a GPU thread has the bits of the CPU's: a Mojo program, run on the CPU."""

from tests import artefacts


def test_a_gpu_threads_codec_is_the_cpus():
    artefacts.run_mojo_tests("simt/test_codec")
