"""How many rows are multiplied together on this processor: measured, or a guess by instructions.

`python -m bench.run --target cpu-limits` measures a row of the table where it runs. All limits give
the same bits, so a row of another processor is only slow. Sizes of groups are at most those of the
guess, for which kernels are compiled.
"""

from std.ffi import _Global
from std.sys import CompilationTarget

from .block_order import GroupLimits

comptime BYTES = 1
"""The kernel of integers, as `dispatch` numbers kernels."""
comptime FLOATS = 2
"""The other one."""
comptime ALL = Int.MAX


@fieldwise_init
struct Tuned(TrivialRegisterPassable):
    """The limits of one processor with the instructions of a level."""

    var family: Int
    """As Linux says in /proc/cpuinfo; 0 for any."""
    var model: Int
    var level: StaticString
    var bytes: GroupLimits
    var floats: GroupLimits

    def of(self, kernel: Int) -> GroupLimits:
        """Returns those of a kernel."""
        return self.bytes if kernel == BYTES else self.floats


# N = K = 2880, one thread: AMD EPYC, 2026-11-30; Intel Xeon, 2026-12-01 and 2026-11-28.
comptime _ZEN_4 = Tuned(
    25, 17, "avx512_bf16", GroupLimits(12, 64, 64, 6), GroupLimits(14, ALL, 14, 8)
)
comptime _EMERALD_RAPIDS = Tuned(
    6, 207, "avx512_bf16", GroupLimits(12, 12, 48, 6), GroupLimits(14, 12, 8, 8)
)
comptime _ICE_LAKE = Tuned(
    6, 106, "avx512_vnni", GroupLimits(12, 12, 36, 6), GroupLimits(14, 14, 12, 7)
)
comptime TABLE = [_ZEN_4, _EMERALD_RAPIDS, _ICE_LAKE]
comptime _OF_AVX2 = Tuned(0, 0, "avx2", GroupLimits(6, 6, 6, 6), GroupLimits(6, 6, 6, 6))
# As many as there are registers.
comptime _OF_16_BYTES = Tuned(0, 0, "16 bytes", GroupLimits(3, 3, 3, 3), GroupLimits(3, 3, 3, 3))
comptime _OF_FEWER_BYTES = _OF_AVX2 if CompilationTarget.has_avx2() else _OF_16_BYTES
comptime _OF_64_BYTES = _ZEN_4 if CompilationTarget._has_feature["avx512bf16"]() else _ICE_LAKE
comptime GUESS = _OF_64_BYTES if CompilationTarget.has_avx512f() else _OF_FEWER_BYTES
"""Those of processors that the table lacks, of a row with their instructions; what kernels are
compiled for."""


@fieldwise_init
struct UsedLimits(Copyable, Movable):
    """What this process uses."""

    var bytes: GroupLimits
    var floats: GroupLimits
    var are_measured: Bool


def _chosen() -> UsedLimits:
    """Returns what the table has for this processor, else the guess."""
    var text = _cpu_info()
    var family, model = _number_of(text, "cpu family\t"), _number_of(text, "model\t")
    comptime for i in range(len(TABLE)):
        comptime row = TABLE[i]
        comptime if row.level == GUESS.level:
            if family == row.family and model == row.model:
                return UsedLimits(materialize[row.bytes](), materialize[row.floats](), True)
    return UsedLimits(materialize[GUESS.bytes](), materialize[GUESS.floats](), False)


comptime _CHOSEN = _Global["mx_kernels_limits", _chosen]


def limits_of[kernel: Int]() -> GroupLimits:
    """Returns the limits of a kernel on this processor."""
    comptime guess = GUESS.of(kernel)
    comptime if CompilationTarget.is_x86():
        try:
            ref chosen = _CHOSEN.get_or_create_ptr()[]
            return chosen.bytes if kernel == BYTES else chosen.floats
        except:
            pass
    return materialize[guess]()


def are_measured() raises -> Bool:
    """Says whether the table has this processor."""
    return _CHOSEN.get_or_create_ptr()[].are_measured


def set_limits[kernel: Int](limits: GroupLimits) raises:
    """Makes a kernel use other limits from now on: to measure and to compare them.

    Raises:
        Error: if a size of groups is none that kernels are compiled for.
    """
    comptime MOST = GUESS.of(kernel)
    if not (1 <= limits.in_registers <= MOST.in_registers and 1 <= limits.decoded <= MOST.decoded):
        raise Error(
            String(
                t"limits: got groups of {limits.in_registers} and {limits.decoded} rows, expected "
                t"1 to {MOST.in_registers} and 1 to {MOST.decoded}"
            )
        )
    ref chosen = _CHOSEN.get_or_create_ptr()[]
    comptime if kernel == BYTES:
        chosen.bytes = limits
    else:
        chosen.floats = limits


def _cpu_info() -> List[UInt8]:
    """Returns what Linux says of the first core, as far as its name; nothing elsewhere."""
    comptime ENOUGH = 160
    try:
        with open("/proc/cpuinfo", "r") as file:
            return file.read_bytes(ENOUGH)
    except:
        return []


def _number_of(text: List[UInt8], name: StaticString) -> Int:
    """Returns the number behind a name and a colon, -1 if there is none."""
    comptime ZERO, COLON, LINE = 48, 58, 10
    var key = name.as_bytes()
    for start in range(len(text) - len(key)):
        var found = True
        for i in range(len(key)):
            found = found and text[start + i] == key[i]
        if not found:
            continue
        var number = -1
        for at in range(start + len(key), len(text)):
            var digit = Int(text[at]) - ZERO
            if Int(text[at]) == LINE:
                break
            if 0 <= digit <= 9:
                number = max(number, 0) * 10 + digit
        return number
    return -1
