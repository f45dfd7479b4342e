"""How the CTAs of each kernel are cut, and where stages lie in their shared memory.

Sizes alone, which kernels and the host read: nothing here is an instruction.

    header     barriers, flags
    rooms      where sums are transposed on their way to C
    stages     some blocks of K each: rows of A, then rows of B, or codes and scales of four tiles of 32
"""

from std.math import align_up, ceildiv

from ..numbers.scales import Scale
from .layout import BLOCK, GRANULE_BITS, TILE_BYTES, TILE_ROWS, block_scales
from .plan import SS_TILE_ELEMENTS, OperandType, Plan

comptime WARP_GROUP = 128
"""Threads that issue an instruction together."""
comptime INSTRUCTION_ROWS = 64
"""Rows of B of one instruction: those of a warp group."""
comptime OCTET = 8
"""Of so many rows of A a thread has a pair, of so many rows of B one."""
comptime ROW_BYTES = 128
"""Bytes of a row of a stage, which are swizzled among themselves."""
comptime NUMBER_BYTES = 2
"""Bytes of a bfloat16 number."""
comptime WORD_BYTES = 4
"""Bytes of a word of a table."""
comptime LANE_BYTES = 16
"""Bytes of a lane's eight elements, as bfloat16."""
comptime SWIZZLE_BYTES = 1024
"""Stages start at multiples of this."""
comptime SHARED_BYTES = 227 * 1024
"""What a CTA can have."""
comptime HEADER_BYTES = 1024
"""Barriers and flags."""

comptime TILES = WARP_GROUP // 32
"""Tiles of rows of B of a CTA."""
comptime COLUMNS = TILES * TILE_ROWS
"""Columns of C of a tile."""
comptime HALVES = 2
"""Halves of a tile, a warp each."""
comptime WARP_ROWS = TILE_ROWS // HALVES
"""Rows of B of a warp."""
comptime READERS = TILES * HALVES
"""Warps that read a stage."""
comptime CONSUMER_WARPS = READERS
"""Warps that multiply: all read every stage."""
comptime WARPS = WARP_GROUP // 32
"""Warps of a warp group."""
comptime GROUPS = CONSUMER_WARPS // WARPS
"""Warp groups that multiply."""
comptime THREADS = 32 * CONSUMER_WARPS + WARP_GROUP
"""Threads of a CTA: consumers, then a warp group of producers."""
comptime STEP = ROW_BYTES // NUMBER_BYTES
"""Steps of K in a stage of bfloat16 numbers."""
comptime STEP_BLOCKS = STEP // BLOCK
"""Blocks of K in such a stage."""
comptime BYTE_STEP_BLOCKS = ROW_BYTES // BLOCK
"""Blocks of K in a stage of bytes: a code becomes a byte."""
comptime TILE_HEIGHTS: List[Int] = [64, 128]
"""Rows of C of a tile."""
comptime PREPARED_ROWS = 128
"""Rows of C of a tile whose weights are prepared as bfloat16 or E5M2."""
comptime WIDE_ROWS = 256
"""Rows of the largest tile: two instructions have half of them each."""
comptime RS_TILE_HEIGHTS: List[Int] = TILE_HEIGHTS + [WIDE_ROWS]
"""Rows of C of a tile of an RS main loop; of `WIDE_ROWS` CTAs of a cluster do not split K."""

comptime PARTS = ROW_BYTES // LANE_BYTES
"""Parts of a row that are swizzled as one."""


@always_inline
def num_steps_of(k: UInt32) -> UInt32:
    """Returns the stages along K."""
    return (k + UInt32(STEP - 1)) // UInt32(STEP)


def num_steps_of(k: Int, plan: Plan) -> Int:
    """Returns the stages along K of a plan."""
    return ceildiv(k * (NUMBER_BYTES if plan.kernel.operand == OperandType.BF16 else 1), ROW_BYTES)


@fieldwise_init
struct StageSpace(TrivialRegisterPassable):
    """The stages of a CTA in its shared memory."""

    var first_at: Int
    """Where they begin."""
    var stage_bytes: Int
    """Bytes from one to the next."""
    var count: Int

    def end(self) -> Int:
        """Returns where they end."""
        return self.first_at + self.count * self.stage_bytes


@fieldwise_init
struct RsLayout(TrivialRegisterPassable):
    """The stages of a main loop that decodes weights in registers ("RS"), and who meets there.

    stage    rows of A, swizzled | codes of four tiles of weight rows | scales | factors of rows
    """

    var rows: Int
    """Rows of A: a multiple of eight, 128 bytes each."""
    var blocks: Int
    """Blocks of K."""
    var bits: Int
    """Bits of a code."""
    var factor_bytes: Int
    """Bytes of the factor of a row of A, or 0."""
    var producer_arrivals: Int
    """Arrivals that fill a stage, beside the bytes of copies."""
    var first_at: Int
    """Bytes before the first stage."""
    var last_bytes: Int
    """Bytes behind the last stage."""
    var max_count: Int
    var scale: Scale
    """The scales of weights."""
    var tiles: Int
    """Tiles of 32 weight rows."""

    @staticmethod
    def bf16(rows: Int, last_bytes: Int = 0, scale: Scale = Scale.E8M0, tiles: Int = TILES) -> Self:
        """Returns stages of bfloat16 rows.

        The warps that produce say once that their weights come, one of them that the rows do.
        """
        return Self(
            rows, STEP_BLOCKS, 4, 0, tiles + 1, STAGES_AT, last_bytes, MAX_STAGES, scale, tiles
        )

    @staticmethod
    def fp8(rows: Int, bits: Int, has_factors: Bool) -> Self:
        """Returns stages of FP8 rows.

        Producers are a thread of the rows, one for the codes or for those of each tile in bulk, and
        all lanes of the warp that copies scales.
        """
        return Self(
            rows,
            BYTE_STEP_BLOCKS,
            bits,
            FACTOR_BYTES if has_factors else 0,
            1 + (TILES if rows >= BULK_ROWS else 1) + 32,
            HEADER_BYTES + GROUPS * room_bytes(room_rows(rows)),
            0,
            MAX_DIRECT_STAGES,
            Scale.E8M0,
            TILES,
        )

    def codes_at(self) -> Int:
        """Returns where the codes are in a stage."""
        return self.rows * ROW_BYTES

    def scales_at(self) -> Int:
        """Returns where the scales are in a stage."""
        return self.codes_at() + self.tiles * self.blocks * self.bits // GRANULE_BITS * TILE_BYTES

    def factors_at(self) -> Int:
        """Returns where the factors are in a stage."""
        return self.scales_at() + self.tiles * self.blocks * block_scales(self.scale) * TILE_ROWS

    def space(self) -> StageSpace:
        """Returns the stages that fit."""
        var bytes = align_up(self.factors_at() + self.rows * self.factor_bytes, SWIZZLE_BYTES)
        var space = SHARED_BYTES - self.first_at - self.last_bytes
        return StageSpace(self.first_at, bytes, min(self.max_count, space // bytes))


# Weights decoded to bfloat16 in registers: `gemm_rs_bf16`.

comptime ROOM_ROWS = 16
"""Rows of C that a warp transposes at a time."""
comptime ROOM_STRIDE = WARP_ROWS + 4
"""Words from one row to the next in a room: more than 16, against bank conflicts."""
comptime STAGES_AT = align_up(HEADER_BYTES + READERS * ROOM_ROWS * ROOM_STRIDE * 4, SWIZZLE_BYTES)
"""Where the stages begin."""
comptime MAX_STAGES = 12
"""More stages help nothing. Guess."""
comptime MANY_ROWS = 128
"""Rows of a listed tile from which on a warp has enough to do without splitting K."""
comptime BOX_ROWS = 64
"""Mapped rows copied at once. Whole tiles of 256 took 1.6 times as long where 192 were there."""
comptime FACTORED_ROWS = 64
"""Rows of A whose sums meet factors before those of others: of more, ptxas spills sums."""


@fieldwise_init
struct RsConfig(Equatable, TrivialRegisterPassable):
    """A setting of the kernel whose main loop decodes weights to bfloat16 in registers."""

    var rows: Int
    """Rows of C of a tile, and of A in a stage."""
    var k_splits: Int
    """Consumers that share a tile's steps of K: 1, or 2 with even and odd ones."""
    var is_persistent: Bool
    """Whether a CTA may compute tiles one after the other."""
    var blocks_ahead: Int
    """Blocks of K decoded while others are multiplied: 1, or all of a stage."""
    var consumer_registers: Int
    """Registers of a consumer thread: more than its even share."""
    var producer_registers: Int
    """Registers of the other threads: what consumers leave."""
    var scale: Scale
    """The scales of weights."""
    var has_factors: Bool
    """Whether sums meet factors of rows of A, too, under E4M3 scales."""
    var columns: Int
    """Columns of C of a tile."""

    @staticmethod
    def persistent(rows: Int) -> Self:
        """Returns that for many rows: a weight is decoded once for all of them, tile after tile."""
        return Self(rows, 1, True, 1, 232, 40, Scale.E8M0, False, COLUMNS)

    @staticmethod
    def split_k(rows: Int, columns: Int = COLUMNS) -> Self:
        """Returns that for fewer: decoding takes the time, hence twice the consumers.

        Of half of the columns there are as many as of `persistent`.
        """
        if columns < COLUMNS:
            return Self(rows, 2, False, 1, 232, 40, Scale.E8M0, False, columns)
        return Self(rows, 2, False, 1, 112, 32, Scale.E8M0, False, COLUMNS)

    @staticmethod
    def grouped(rows: Int) -> Self:
        """Returns that for tiles of a list."""
        return Self.persistent(rows) if rows >= MANY_ROWS else Self(
            rows, 2, True, STEP_BLOCKS, 112, 32, Scale.E8M0, False, COLUMNS
        )

    def under(self, scale: Scale, has_factors: Bool) -> Self:
        """Returns the setting for weights under other scales, and rows that have factors or not."""
        var found = self
        found.scale, found.has_factors = scale, has_factors
        return found

    def maps_rows(self) -> Bool:
        """Says whether a tensor map has rows of A; else they are stages in a workspace."""
        return self.columns < COLUMNS

    def readers(self) -> Int:
        """Returns the warps that read a stage, 16 weight rows each."""
        return self.columns // WARP_ROWS

    def consumer_warps(self) -> Int:
        """Returns the warps that multiply."""
        return self.readers() * self.k_splits

    def threads(self) -> Int:
        """Returns the threads of a CTA: consumers, then a warp group of producers."""
        return 32 * self.consumer_warps() + WARP_GROUP

    def sums_bytes(self) -> Int:
        """Returns the bytes of partial sums, [step's parity, row, column]."""
        return self.k_splits * self.rows * (self.columns + QUAD) * 4 if self.k_splits > 1 else 0

    def layout(self) -> RsLayout:
        """Returns the stages; partial sums lie behind them, or after one tile in their place."""
        var behind = self.sums_bytes() if self.is_persistent else 0
        return RsLayout.bf16(self.rows, behind, self.scale, self.columns // TILE_ROWS)

    def sums_at(self) -> Int:
        """Returns where partial sums lie."""
        var space = self.layout().space()
        return space.end() if self.is_persistent else space.first_at

    def shared_bytes(self) -> Int:
        """Returns the dynamic shared memory of a CTA."""
        return max(self.layout().space().end(), self.sums_at() + self.sums_bytes())


# Codes that become bytes in registers: `gemm_rs_fp8`.

comptime FACTOR_BYTES = 4
"""Bytes of a factor."""
comptime PIECE_BYTES = 2 * OCTET
"""Bytes of eight columns of a row of C."""
comptime PITCH = 2 * INSTRUCTION_ROWS + PIECE_BYTES
"""Bytes from one row of C to the next in a room: a piece more, against bank conflicts."""
comptime WIDE_ROOM_ROWS = 64
"""Of the largest tile, so many are transposed at once: rooms for more would take a stage's place."""
comptime MAX_DIRECT_STAGES = 8
"""More stages help nothing. Guess."""
comptime BULK_ROWS = 128
"""Rows from which on codes come in bulk: 6 % faster, measured; with fewer 3 % slower."""
comptime EXPERT_CAPACITY = 128
"""The most rows of a tile of an expert."""


def room_rows(tile_rows: Int) -> Int:
    """Returns how many rows of a tile are transposed at once, of so many."""
    return WIDE_ROOM_ROWS if tile_rows == WIDE_ROWS else tile_rows


def room_bytes(tile_rows: Int) -> Int:
    """Returns the bytes of a warp group's room for so many rows, and their factors."""
    return tile_rows * PITCH + WARPS * tile_rows * FACTOR_BYTES


# Rows of both sides by tensor maps: `gemm_ss`.

comptime PART_ROWS = INSTRUCTION_ROWS
"""Rows of A of a consumer."""
comptime WORD = 4
"""Bytes of a factor."""
comptime ENTRIES = GROUPS * INSTRUCTION_ROWS
"""Factors of both consumers' rows of A."""
comptime MARK_WORDS = 16
"""Room for the marks of a slot."""


@fieldwise_init
struct SsTile(Equatable, TrivialRegisterPassable):
    """A tile of C: two parts of `PART_ROWS` rows, a consumer each.

    They are beside each other in tiles of so many rows, else below each other.
    """

    var rows: Int
    var columns: Int

    @staticmethod
    def largest(rows: Int) -> Self:
        """Returns the largest tile of so many rows."""
        return Self(rows, SS_TILE_ELEMENTS // rows)

    def has_one_row(self) -> Bool:
        """Says whether parts are beside each other."""
        return self.rows == PART_ROWS

    def part_columns(self) -> Int:
        """Returns the columns of a consumer."""
        return self.columns // GROUPS if self.has_one_row() else self.columns

    def part_pitch(self) -> Int:
        """Returns the bytes from one row of a consumer's room to the next.

        16 more than a row has, against bank conflicts.
        """
        return 2 * self.part_columns() + 16

    def part_bytes(self) -> Int:
        """Returns the bytes of a consumer's room."""
        return PART_ROWS * self.part_pitch()

    def slots_at(self) -> Int:
        """Returns where the slots are, behind the rooms."""
        return HEADER_BYTES + GROUPS * self.part_bytes()

    def slot_bytes(self) -> Int:
        """Returns the bytes of a stage's slot: factors, ends and biases, marks, four facts."""
        return WORD * (ENTRIES + 2 * self.columns + MARK_WORDS + 4)

    def stages(self) -> StageSpace:
        """Returns the stages of rows of both sides, behind their slots."""
        var stage_bytes = (self.rows + self.columns) * ROW_BYTES
        var space = SHARED_BYTES - self.slots_at() - SWIZZLE_BYTES
        var count = space // (stage_bytes + self.slot_bytes())
        var first_at = align_up(self.slots_at() + count * self.slot_bytes(), SWIZZLE_BYTES)
        return StageSpace(first_at, stage_bytes, count)


comptime PLAIN_TILES: List[SsTile] = [SsTile(64, 64), SsTile(64, 128), SsTile(128, 128)]
"""Tiles of codes as they lie."""


# Weights that stream through registers: `streaming`. A cluster has a tile of a dense product, whose
# CTAs split K; persistent CTAs have tiles of a grouped one.

comptime FRAGMENT_ROWS = 8
"""Rows of A of a fragment, which is a block of K long."""
comptime FRAGMENT_BYTES = FRAGMENT_ROWS * BLOCK * 2
"""Bytes of a fragment, as bfloat16."""
comptime QUAD = 4
"""Neighbouring columns of C that a thread adds up at once."""
comptime PARTIAL_STRIDE = TILE_ROWS + 4
"""Words from one row of partial sums to the next: four more than columns, against bank conflicts."""
comptime DENSE_WARPS = 8
"""Warps of a CTA of a dense product."""
comptime STAGE_FRAGMENTS = 128
"""Fragments of a stage of a dense product, or a few more."""
comptime SHORT = 2
"""Blocks of a warp up to which K is short."""
comptime STREAM_HEADER_BYTES = 64
"""Shared memory for the flags of a dense product, and for the barrier of the cluster reduction."""
comptime GROUPED_K_WARPS = 8
"""Warps that split K in a grouped product: the order of sums, the same for all its tiles."""
comptime MAX_K_PARTS = 8
"""The most parts of K of a grouped product: who adds up their sums has the loads of all on the way."""
comptime MAX_ROW_FRAGMENTS = 3
"""Fragments of the most rows of a tile of a grouped product. Gated, their sums may be reduced in small
batches: which leaves room for a longer K."""
comptime TABLES_AT = 448
"""Where the tables of a grouped product begin, see `scheduler`."""
comptime TABLES_ALIGNMENT = 128
"""Of what follows them."""
comptime MULTIPROCESSOR_BYTES = 228 * 1024
"""Shared memory of all CTAs of a multiprocessor."""
comptime RESERVED_BYTES = 1024
"""What each CTA takes beside its own."""


@fieldwise_init
struct StreamConfig(Equatable, TrivialRegisterPassable):
    """What the compiler knows of a CTA."""

    var row_fragments: Int
    """Fragments of eight rows of A."""
    var column_tiles: Int
    """Tiles of 32 columns of C at a time: of weight rows, so a warp takes one."""
    var k_warps: Int
    """Warps that split the K of such a tile."""
    var is_short: Bool
    """Whether a warp has no more than `SHORT` blocks of K."""
    var is_grouped: Bool
    """Whether rows belong to experts."""
    var is_gated: Bool
    """Whether columns are gates and ups, in halves of the tiles or next to each other."""
    var scale: Scale
    """The scales of weights."""
    var may_have_factors: Bool
    """Whether rows of A may have factors, under E4M3 scales: of grouped products all have."""
    var is_split: Bool
    """Whether K of a grouped product is in parts; gated, sums are reduced in small batches."""

    @staticmethod
    def dense(plan: Plan, share: Int, scale: Scale = Scale.E8M0, has_factors: Bool = False) -> Self:
        """Returns that of a plan whose CTAs have `share` blocks of K each.

        Rows with factors and others share kernels, but those of tiles of 16 and of 32 rows and a long
        K: these have no registers left.
        """
        var tiles = plan.columns // TILE_ROWS
        var k_warps = DENSE_WARPS // tiles
        var is_short = share <= SHORT * k_warps
        var fragments = plan.rows // FRAGMENT_ROWS
        var factors = scale == Scale.E4M3 and (has_factors or is_short or fragments not in (2, 4))
        return Self(fragments, tiles, k_warps, is_short, False, False, scale, factors, False)

    @staticmethod
    def grouped(
        row_fragments: Int,
        is_gated: Bool,
        scale: Scale = Scale.E8M0,
        has_factors: Bool = False,
        is_split: Bool = False,
    ) -> Self:
        """Returns that of tiles of so many rows of an expert."""
        var tiles = 1 if row_fragments == 1 and not is_gated else 2
        return Self(
            row_fragments,
            tiles,
            GROUPED_K_WARPS,
            False,
            True,
            is_gated,
            scale,
            has_factors,
            is_split,
        )

    def warps(self) -> Int:
        """Returns the warps of a CTA."""
        return self.column_tiles * self.k_warps

    def threads(self) -> Int:
        """Returns the threads of a CTA."""
        return 32 * self.warps()

    def min_ctas(self) -> Int:
        """Returns how many CTAs a multiprocessor must hold: the registers allow no more."""
        if self.is_grouped:
            return 2 // self.column_tiles
        return 1 if self.row_fragments >= 4 else 2

    def rows(self) -> Int:
        """Returns the rows of C of a tile."""
        return FRAGMENT_ROWS * self.row_fragments

    def columns(self) -> Int:
        """Returns the columns of C of a tile; a gate and its up make one."""
        return TILE_ROWS * self.column_tiles // (2 if self.is_gated else 1)

    def quads(self) -> Int:
        """Returns how many fours of neighbouring elements a row of the CTA's sums has."""
        return TILE_ROWS * self.column_tiles // QUAD

    def loads_ahead(self) -> Int:
        """Returns the blocks whose weights a warp has on the way: as the registers allow.

        Where K is short a warp has no more, and the time is that of fetching the instructions.
        """
        return SHORT if self.is_short else (8 if self.row_fragments <= 4 else 4)

    def stage_blocks(self) -> Int:
        """Returns the blocks of K of a stage of A: every warp's loads ahead come out even.

        Grouped products have all in one.
        """
        if self.is_grouped:
            return 1 << 30
        var once_ahead = self.loads_ahead() * self.k_warps
        return max(STAGE_FRAGMENTS // self.row_fragments // once_ahead, 1) * once_ahead

    def batch(self) -> Int:
        """Returns the fragments of rows that are reduced at once: as there is room for."""
        return 1 if self.is_gated and self.is_split else self.row_fragments

    def batches(self) -> Int:
        """Returns in how many batches a tile is reduced."""
        return self.row_fragments // self.batch()

    def buffers(self) -> Int:
        """Returns the batches whose partial sums have room: two save a barrier in each."""
        return 2 if self.row_fragments <= 2 else 1

    def partial_bytes(self) -> Int:
        """Returns the bytes of the partial sums of all warps of a batch."""
        return self.warps() * FRAGMENT_ROWS * self.batch() * PARTIAL_STRIDE * WORD_BYTES

    def landing_bytes(self) -> Int:
        """Returns the bytes of what other CTAs of the cluster send: whole sums."""
        return self.rows() * self.quads() * LANE_BYTES

    def dense_bytes(self, num_blocks: Int) -> Int:
        """Returns the dynamic shared memory of a CTA of a dense product with so many blocks of K.

        Partial sums take the place of the last stage.
        """
        var blocks = min(num_blocks, self.stage_blocks())
        var stage_bytes = blocks * self.row_fragments * FRAGMENT_BYTES
        return STREAM_HEADER_BYTES + self.landing_bytes() + max(stage_bytes, self.partial_bytes())

    def k_parts(self, experts: Int, slots: Int, k: Int) -> Int:
        """Returns the parts of K of a grouped product: one, if shared memory has room for all of K.

        Or else the fewest that leave a multiprocessor all its CTAs, 0 if none do. A warp has whole loads
        ahead in each part: those of the next one start in their places.
        """
        if self.grouped_bytes(experts, slots, k, 1) <= SHARED_BYTES:
            return 1
        for parts in range(2, MAX_K_PARTS + 1):
            var last_blocks = k // BLOCK - (parts - 1) * share_of(k, parts)
            var has_room = (
                self.ctas(self.grouped_bytes(experts, slots, k, parts)) == self.min_ctas()
            )
            if has_room and last_blocks >= self.loads_ahead() * self.k_warps:
                return parts
        return 0

    def grouped_bytes(self, experts: Int, slots: Int, k: Int, parts: Int) -> Int:
        """Returns the dynamic shared memory of a CTA of a grouped product: tables, A, sums."""
        var stage_bytes = share_of(k, parts) * self.row_fragments * FRAGMENT_BYTES
        var tables = Int(tables_end(UInt32(experts), UInt32(slots)))
        return tables + stage_bytes + self.buffers() * self.partial_bytes()

    def ctas(self, shared_bytes: Int) -> Int:
        """Returns the CTAs that a multiprocessor holds at once."""
        return min(self.min_ctas(), MULTIPROCESSOR_BYTES // (shared_bytes + RESERVED_BYTES))


def share_of(k: Int, parts: Int) -> Int:
    """Returns the blocks of a part of K but the last: of several parts as many for each warp."""
    var blocks = k // BLOCK
    return blocks if parts == 1 else align_up(ceildiv(blocks, parts), GROUPED_K_WARPS)


@always_inline
def tables_end(experts: UInt32, slots: UInt32) -> UInt32:
    """Returns the bytes up to the end of all tables of a grouped product."""
    var words = 3 * (experts + 1) + slots
    return align_up(UInt32(TABLES_AT) + UInt32(WORD_BYTES) * words, UInt32(TABLES_ALIGNMENT))
