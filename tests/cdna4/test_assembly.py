"""What the compiler makes of the CDNA4 kernels is part of their contract: counted here."""

import re
from collections import Counter

import numpy as np
import pytest

import gfx950
import oracle
from gfx950.timing import profile
from tests.cdna4 import support as cdna4
from tests.cdna4.support import CONTEST, NUMPY_DTYPES, Decode, Problem, contest_kernel
from tests.tiers import deep, tiered

PROGRAMS = tiered(
    ("quantize", "encode", "decode", "choices"), first=("quantize", "encode", "decode")
)
DECODE_PROGRAMS = tiered(("decode", "choices"), first=("decode",))
MAX_PRELOADED_DWORDS = 14
LARGEST_COUNTS = {"vmcnt": 63, "expcnt": 7, "lgkmcnt": 15}
"""With which an `s_waitcnt` waits for nothing."""
MFMA = "v_mfma_scale_f32_16x16x128_f8f6f4"
CHAIN = re.compile(r"v_(pk_)?(maximum3|minimum3)_f(16|32)|v_max_u16")


def fact(text: str, name: str) -> int:
    """Returns a number of the kernel's metadata or descriptor."""
    return int(re.search(rf"\.?{name}:?\s+(\d+)$", text, re.MULTILINE).group(1))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_kernel_spills_or_touches_scratch(program):
    for name, text in cdna4.compile_texts(program).items():
        facts = {
            key: fact(text, key)
            for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
        }
        assert not any(facts.values()), (name, facts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_arguments_are_preloaded_up_to_the_limit_of_the_hardware(program):
    for name, kernel in cdna4.compile_kernels(program).items():
        dwords = min(MAX_PRELOADED_DWORDS, kernel.kernarg_bytes // 4)
        assert kernel.preload_dwords == dwords, name


@pytest.mark.parametrize("program", PROGRAMS)
def test_subnormals_are_kept(program):
    for name, text in cdna4.compile_texts(program).items():
        for size in ("32", "16_64"):
            assert fact(text, f"amdhsa_float_denorm_mode_{size}") == 3, name


@pytest.mark.parametrize(
    "program", [*DECODE_PROGRAMS, "prefill", pytest.param("prefill_types", marks=deep)]
)
def test_every_wait_waits_for_something(program):
    for name, kernel in cdna4.compile_kernels(program).items():
        waits = [i.mods for i in kernel.instructions if i.name == "s_waitcnt"]
        assert waits and LARGEST_COUNTS not in waits, name


@pytest.mark.parametrize("program", DECODE_PROGRAMS)
def test_each_stage_multiplies_all_tiles_once(program):
    for name, text in cdna4.compile_texts(program).items():
        decode = Decode.named(name)
        stage = decode.m_tiles * decode.n_tiles // decode.sharers * decode.k_tiles
        in_the_loop, after_it = 0 if decode.up_front else decode.depth * stage, decode.depth * stage
        # Beside weights whose scales no such instruction knows, four multiply 32 along K each.
        instruction, count = (MFMA, 1) if MFMA in text else ("v_mfma_f32_16x16x32_bf16", 4)
        assert text.count(instruction) == count * (in_the_loop + after_it), name


@pytest.mark.parametrize("program", DECODE_PROGRAMS)
def test_split_k_kernels_select_one_nan_for_each_word_that_they_leave_and_of_the_total(program):
    """To the compiler all NaNs are one: it would take such a select away from floats."""
    kernels = 0
    for name, text in cdna4.compile_texts(program).items():
        splits = Decode.named(name).splits
        swaps = re.findall("buffer_atomic_swap_x2.*", text)
        left = sum(not re.search(r"\bsc0\b", swap) for swap in swaps)
        assert (left > 0) == (splits > 1), name
        assert len(swaps) - left >= (splits - 1) * left, name
        if left:
            # What is left is the complement, and so may be the NaN that is selected.
            either = "0x7fc00000|0x803fffff"
            nan = "|".join([*re.findall(rf"v_mov_b32_e32 (v\d+), (?:{either})", text), either])
            selects = re.findall(rf"v_cndmask_b32_e\d+ v\d+, (?:{nan}),", text)
            assert len(selects) >= 2 * 2 * left, name
            kernels += 1
    assert kernels


def test_of_any_nan_one_pattern_is_left():
    """None of which all bits are set: to whoever comes later that would be an empty slot."""
    rng = np.random.default_rng(0)
    quiet = np.array([0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFC00001], np.uint32)
    infinite = np.array([0x7F800000, 0xFF800000], np.uint32)
    x = rng.standard_normal(2 * 128).astype(np.float32).view(np.uint32)
    x[: len(quiet)], x[20 : 20 + len(quiet)] = quiet, quiet[::-1]
    x[128 + 20 : 128 + 20 + len(quiet)] = quiet
    x[40:42], x[128 + 41 : 128 + 43] = infinite, infinite
    c = np.zeros(128, np.float32)
    with np.errstate(invalid="ignore"):
        sums = x[:128].view(np.float32) + x[128:].view(np.float32)
    gfx950.run(cdna4.compile_kernels("encode")["one_nan"], 1, cdna4.LANES, [x, c])
    expected = np.where(np.isnan(sums), np.uint32(0x7FC00000), sums.view(np.uint32))
    assert np.isnan(sums).sum() == 2 * len(quiet) + 1
    oracle.assert_bitwise_equal(c.view(np.uint32), expected)


def vector_instructions(kernel, blocks: int, dtype: str) -> Counter:
    """Runs an encode probe on ordinary numbers; returns what a wave executes, by mnemonic."""
    lanes = cdna4.LANES * blocks
    x = np.random.default_rng(0).standard_normal(lanes * oracle.BLOCK).astype(NUMPY_DTYPES[dtype])
    outputs = [np.zeros(lanes * 4, np.uint32), np.zeros(lanes, np.uint32)]
    result = gfx950.run(kernel, 1, cdna4.LANES, [x, *outputs], trace=True)
    names = (step.instruction.name for step in result.trace.wave(0))
    return Counter(name for name in names if name.startswith("v_"))


@pytest.mark.parametrize(
    "dtype, scale_rule",
    [*(("bfloat16", rule) for rule in oracle.ROUNDINGS), ("float16", "even"), ("float32", "even")],
)
def test_a_block_costs_few_vector_instructions(dtype, scale_rule):
    kernels = cdna4.compile_kernels("encode")
    one, two = (
        vector_instructions(kernels[f"{dtype}_{scale_rule}_{blocks}"], blocks, dtype)
        for blocks in (1, 2)
    )
    block = two - one
    assert sum(count for name, count in block.items() if CHAIN.match(name)) <= 20, block
    assert sum(count for name, count in block.items() if "scalef32" in name) == 16, block
    assert block.total() <= 50, block


def assert_no_bank_conflicts(kernel, launch):
    result = profile(kernel, launch.grid, launch.block, launch.args)
    assert result.lds_cycles > 0
    assert result.lds_conflict_cycles == 0, result.lds_conflicts


@pytest.mark.parametrize("shape", tiered(CONTEST, first=CONTEST[:1]))
def test_lds_of_decode_kernels_has_no_bank_conflicts(rng, shape):
    m, _, k = shape
    kernel, decode = contest_kernel(shape)
    assert_no_bank_conflicts(
        kernel, cdna4.multiply_launch(decode, Problem.random(rng, (m, 128, k)))
    )


def test_lds_of_quantize_kernels_has_no_bank_conflicts(rng):
    for name, kernel in cdna4.compile_kernels("quantize").items():
        dtype, scale_rule = name.split("_")
        if dtype == "bfloat16":
            x = rng.standard_normal((32, 512)).astype(NUMPY_DTYPES[dtype])
            assert_no_bank_conflicts(kernel, cdna4.quantize_launch(x, scale_rule))
