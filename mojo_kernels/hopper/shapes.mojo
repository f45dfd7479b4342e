"""How the CTAs of each kernel are cut, and where stages lie in their shared memory.

Sizes alone, which kernels and the host read: nothing here is an instruction.

    header     barriers, flags
    rooms      where sums are turned on their way to C
    stages     some steps of K each: tokens, then the codes and scales of four tiles of 32 weight rows
"""

from std.math import align_up

from .layout import BLOCK, TILE_BYTES, TILE_ROWS
from .plan import MAPPED_ELEMENTS

comptime WARP_GROUP = 128
"""Threads that issue an instruction together."""
comptime INSTRUCTION_ROWS = 64
"""Weight rows of one instruction: those of a warp group."""
comptime OCTET = 8
"""Of so many tokens a thread has a pair, of so many rows one."""
comptime ROW_BYTES = 128
"""Bytes of a row of tokens, which are swizzled among themselves."""
comptime NUMBER_BYTES = 2
"""Bytes of a bfloat16 number."""
comptime LANE_BYTES = 16
"""Bytes of a lane's eight elements, as bfloat16."""
comptime SWIZZLE_BYTES = 1024
"""Stages start at multiples of this."""
comptime SHARED_BYTES = 227 * 1024
"""What a group can have."""
comptime HEADER_BYTES = 1024
"""Barriers and flags."""

comptime TILES = WARP_GROUP // 32
"""Tiles of weight rows of a group."""
comptime COLUMNS = TILES * TILE_ROWS
"""Columns of C of a group."""
comptime HALVES = 2
"""Halves of a tile, a warp each."""
comptime WARP_ROWS = TILE_ROWS // HALVES
"""Weight rows of a warp."""
comptime READERS = TILES * HALVES
"""Warps that read a stage."""
comptime CONSUMER_WARPS = READERS
"""Warps that multiply: all read every stage."""
comptime WARPS = WARP_GROUP // 32
"""Warps of a group that multiplies together."""
comptime GROUPS = CONSUMER_WARPS // WARPS
"""Warp groups that multiply."""
comptime THREADS = 32 * CONSUMER_WARPS + WARP_GROUP
"""Threads of a group: consumers, then those who copy."""
comptime STEP = ROW_BYTES // NUMBER_BYTES
"""Steps of K in a stage of bfloat16 numbers."""
comptime STEP_BLOCKS = STEP // BLOCK
"""Blocks of K in such a stage."""
comptime BYTE_STEP_BLOCKS = ROW_BYTES // BLOCK
"""Blocks of K in a stage of bytes: a code becomes a byte."""
comptime DENSE_TOKENS: List[Int] = [64, 128]
"""Rows of C of a tile."""
comptime WIDE_TOKENS = 256
"""Tokens of the widest tile: two instructions have half of them each."""
comptime DIRECT_TOKENS: List[Int] = DENSE_TOKENS + [WIDE_TOKENS]
"""Rows of C of a tile whose weights become bytes in registers."""
comptime EVEN_TOKENS: List[Int] = [64, 128, 256]
"""Rows of C of a tile that groups with even shares have parts of."""


comptime PARTS = ROW_BYTES // LANE_BYTES
"""Parts of a row that are swizzled as one."""
comptime EXPAND_THREADS = 256
"""Threads of a group that expands activations."""
comptime THREAD_CHUNKS = 2
"""Chunks of a thread, both on the way at once."""
comptime GROUP_CHUNKS = THREAD_CHUNKS * EXPAND_THREADS
"""Chunks of a row that a group takes."""


@always_inline
def num_steps_of(k: UInt32) -> UInt32:
    """Returns the stages along K."""
    return (k + UInt32(STEP - 1)) // UInt32(STEP)


@always_inline
def marks_of_row(k: UInt32) -> UInt32:
    """Returns the groups of a row: each leaves a mark."""
    return (num_steps_of(k) * UInt32(PARTS) + UInt32(GROUP_CHUNKS - 1)) // UInt32(GROUP_CHUNKS)


@fieldwise_init
struct StageSpace(TrivialRegisterPassable):
    """The stages of a group in its shared memory."""

    var first_at: Int
    """Where they begin."""
    var stage_bytes: Int
    """Bytes from one to the next."""
    var count: Int

    def end(self) -> Int:
        """Returns where they end."""
        return self.first_at + self.count * self.stage_bytes


def codes_and_scales_bytes(blocks: Int, bits: Int) -> Int:
    """Returns the bytes of a stage's weights: so many blocks of codes of so many bits."""
    return TILES * blocks * (bits // 4 * TILE_BYTES + TILE_ROWS)


# Weights decoded to bfloat16 in registers: `middle`, `many` and `experts`.

comptime ROOM_TOKENS = 16
"""Tokens that a warp transposes at a time."""
comptime ROOM_STRIDE = WARP_ROWS + 4
"""Words from one token to the next in a room, against bank conflicts."""
comptime STAGES_AT = align_up(HEADER_BYTES + READERS * ROOM_TOKENS * ROOM_STRIDE * 4, SWIZZLE_BYTES)
"""Where the stages begin."""
comptime MAX_STAGES = 12
"""More stages help nothing. Guess."""
comptime PARITIES = 2
"""Shares of the steps of a group: even and odd ones."""
comptime MIDDLE_CONSUMER_WARPS = PARITIES * READERS
"""Warps that multiply, and store in the end."""
comptime MIDDLE_THREADS = 32 * MIDDLE_CONSUMER_WARPS + WARP_GROUP
"""Threads of a group: the consumers, then the fillers."""
comptime SUM_STRIDE = COLUMNS + 4
"""Words from one token's sums to the next, against bank conflicts."""


def staged_stages(tokens: Int) -> StageSpace:
    """Returns the stages of a product of so many tokens."""
    var stage_bytes = align_up(
        tokens * ROW_BYTES + codes_and_scales_bytes(STEP_BLOCKS, 4), SWIZZLE_BYTES
    )
    var count = min(MAX_STAGES, (SHARED_BYTES - STAGES_AT) // stage_bytes)
    return StageSpace(STAGES_AT, stage_bytes, count)


def middle_shared_bytes(tokens: Int) -> Int:
    """Returns the dynamic shared memory of a group whose sums take the place of stages."""
    return max(staged_stages(tokens).end(), STAGES_AT + PARITIES * tokens * SUM_STRIDE * 4)


comptime MANY_ROWS = 128
"""Rows of a tile of an expert from which on they are those of `many`."""
comptime PASS_TOKENS = 32
"""Tokens whose sums meet at a time."""


def expert_sums_bytes(tokens: Int) -> Int:
    """Returns the bytes of a group's sums, behind the stages of rows of experts."""
    var bytes = PARITIES * min(tokens, PASS_TOKENS) * SUM_STRIDE * 4
    return 0 if tokens >= MANY_ROWS else bytes


def expert_stages(tokens: Int) -> StageSpace:
    """Returns the stages that fit beside the sums."""
    var stages = staged_stages(tokens)
    var space = SHARED_BYTES - STAGES_AT - expert_sums_bytes(tokens)
    return StageSpace(STAGES_AT, stages.stage_bytes, min(stages.count, space // stages.stage_bytes))


def expert_shared_bytes(tokens: Int) -> Int:
    """Returns the dynamic shared memory of a group: stages, then sums."""
    return expert_stages(tokens).end() + expert_sums_bytes(tokens)


# Codes that become bytes in registers: `direct` and `byte_experts`.

comptime FACTOR_BYTES = 4
"""Bytes of a factor."""
comptime PIECE_BYTES = 2 * OCTET
"""Bytes of eight rows of a token."""
comptime PITCH = 2 * INSTRUCTION_ROWS + PIECE_BYTES
"""Bytes from one token to the next in a room: a piece more, against bank conflicts."""
comptime WIDE_ROOM_TOKENS = 64
"""Of the widest tile, so many are turned at once: rooms for more would take a stage's place."""
comptime MAX_DIRECT_STAGES = 8
"""More stages help nothing. Guess."""
comptime EXPERT_CAPACITY = 128
"""The most rows of a tile of an expert."""


def room_tokens(tokens: Int) -> Int:
    """Returns how many tokens of a tile are turned at once, of so many."""
    return WIDE_ROOM_TOKENS if tokens == WIDE_TOKENS else tokens


def room_bytes(tokens: Int) -> Int:
    """Returns the bytes of a warp group's room for so many tokens, and their factors."""
    return tokens * PITCH + WARPS * tokens * FACTOR_BYTES


def direct_stages(tokens: Int, bits: Int, has_factors: Bool) -> StageSpace:
    """Returns the stages of bytes; tokens may have factors."""
    var first_at = HEADER_BYTES + GROUPS * room_bytes(room_tokens(tokens))
    var codes_at = align_up(tokens * ROW_BYTES, SWIZZLE_BYTES)
    var end = codes_at + codes_and_scales_bytes(BYTE_STEP_BLOCKS, bits)
    end += tokens * FACTOR_BYTES if has_factors else 0
    var stage_bytes = align_up(end, SWIZZLE_BYTES)
    var count = min(MAX_DIRECT_STAGES, (SHARED_BYTES - first_at) // stage_bytes)
    return StageSpace(first_at, stage_bytes, count)


# Rows of both sides by tensor maps: `mapped`.

comptime PART_TOKENS = INSTRUCTION_ROWS
"""Tokens of a consumer."""
comptime PART_COLUMNS = COLUMNS
"""Columns of a consumer."""
comptime PART_PITCH = 2 * PART_COLUMNS + 16
"""Bytes from one token of a consumer's room to the next: 16 more, against bank conflicts."""
comptime PART_BYTES = PART_TOKENS * PART_PITCH
"""Bytes of a consumer's room."""
comptime WORD = 4
"""Bytes of a factor."""
comptime ENTRIES = GROUPS * INSTRUCTION_ROWS
"""Factors of both consumers' tokens."""
comptime MARK_WORDS = 16
"""Room for the marks of a slot."""


def columns_of(tokens: Int) -> Int:
    """Returns the columns of tiles of so many tokens."""
    comptime assert GROUPS * PART_TOKENS * PART_COLUMNS == MAPPED_ELEMENTS, "a tile has two parts"
    return MAPPED_ELEMENTS // tokens


def slot_bytes(columns: Int) -> Int:
    """Returns the bytes of a stage's slot: factors, ends and biases, marks, four facts."""
    return WORD * (ENTRIES + 2 * columns + MARK_WORDS + 4)


def mapped_stages(tokens: Int) -> StageSpace:
    """Returns the stages of rows of both sides, behind their slots."""
    var slots_at = HEADER_BYTES + GROUPS * PART_BYTES
    var columns = columns_of(tokens)
    var stage_bytes = (tokens + columns) * ROW_BYTES
    var count = (SHARED_BYTES - slots_at - SWIZZLE_BYTES) // (stage_bytes + slot_bytes(columns))
    var first_at = align_up(slots_at + count * slot_bytes(columns), SWIZZLE_BYTES)
    return StageSpace(first_at, stage_bytes, count)


# Weights that stream through registers: `few` and `few_experts`.

comptime FEW_WARPS = 8
"""Warps of a group."""
comptime FEW_THREADS = 32 * FEW_WARPS
"""Threads of a group."""
comptime FRAGMENT_TOKENS = 8
"""Tokens of a fragment."""
comptime FRAGMENT_BYTES = 512
"""Bytes of a fragment of tokens: 8 tokens x 1 block."""
comptime STAGE_TILES = 128
"""Fragments of tokens that are staged at a time, or a few more."""
comptime TOKEN_STRIDE = TILE_ROWS + 4
"""Words from one token's sums to the next: four more than rows, against bank conflicts."""
comptime SHORT = 2
"""Blocks of a warp up to which K is short."""
comptime FEW_HEADER_BYTES = 64
"""Shared memory for flags, and for the barrier that other ranks' sums arrive at."""


@fieldwise_init
struct Shape(TrivialRegisterPassable):
    """The compile-time part of a group's work."""

    var token_tiles: Int
    """Fragments of eight tokens."""
    var row_warps: Int
    """Tiles of weight rows, a warp each; the other warps split K."""
    var is_short: Bool
    """Whether a warp has no more than `SHORT` blocks of K."""

    def k_warps(self) -> Int:
        """Returns the warps that share a tile of weight rows."""
        return FEW_WARPS // self.row_warps

    def tokens(self) -> Int:
        """Returns the rows of C of a group."""
        return FRAGMENT_TOKENS * self.token_tiles

    def items(self) -> Int:
        """Returns how many fours of neighbouring elements of C a group has."""
        return self.tokens() * self.columns() // 4

    def columns(self) -> Int:
        """Returns the columns of C of a group."""
        return TILE_ROWS * self.row_warps

    def loads_ahead(self) -> Int:
        """Returns the blocks whose weights a warp has on the way: as the registers allow.

        A short K has no more than `SHORT` blocks for a warp, and its time is that of fetching the
        instructions: as many fewer.
        """
        return SHORT if self.is_short else (8 if self.token_tiles <= 4 else 4)

    def min_groups(self) -> Int:
        """Returns how many groups a multiprocessor must hold: the registers allow no more."""
        return 1 if self.token_tiles >= 4 else 2

    def stage_blocks(self) -> Int:
        """Returns the blocks staged at a time: every warp's loads ahead come out even."""
        var once_ahead = self.loads_ahead() * self.k_warps()
        return max(STAGE_TILES // self.token_tiles // once_ahead, 1) * once_ahead

    def shared_bytes(self, num_blocks: Int) -> Int:
        """Returns the dynamic shared memory of a group with `num_blocks` blocks of K.

        The header, what other ranks send, then tokens, or in their place the sums.
        """
        var sums = FEW_WARPS * self.tokens() * TOKEN_STRIDE * 4
        var blocks = min(num_blocks, self.stage_blocks())
        var landing = self.items() * LANE_BYTES
        return FEW_HEADER_BYTES + landing + max(blocks * self.token_tiles * FRAGMENT_BYTES, sums)


comptime MAX_TOKEN_TILES = 4
"""As many as the tables of a tile of rows of an expert hold."""
comptime K_WARPS = 8
"""Warps that share a tile of an expert's weights: the order of sums, the same for all shapes."""
comptime WORD_BYTES = 4
"""Bytes of a number of the tables."""
comptime TABLES_AT = 448
"""Where the tables begin, see `few_experts.room`."""
comptime TABLES_ALIGNMENT = 128
"""Of what is read sixteen bytes at a time."""
comptime MULTIPROCESSOR_BYTES = 228 * 1024
"""What all groups of a multiprocessor have."""
comptime RESERVED_BYTES = 1024
"""What each group takes beside its own."""


@fieldwise_init
struct ItemShape(TrivialRegisterPassable):
    """How a group multiplies items: a tile of rows of one expert and of its weights each."""

    var token_tiles: Int
    """Fragments of eight rows, up to `MAX_TOKEN_TILES`."""
    var row_warps: Int
    """Tiles of weight rows, each with `K_WARPS` warps."""
    var is_gated: Bool
    """Whether the tiles are one of gates and one of ups, or both of both."""

    @staticmethod
    def of(token_tiles: Int, is_gated: Bool) -> Self:
        """Returns the shape for so many fragments of rows."""
        return Self(token_tiles, 1 if token_tiles == 1 and not is_gated else 2, is_gated)

    def rows(self) -> Int:
        """Returns the rows of a tile."""
        return FRAGMENT_TOKENS * self.token_tiles

    def warps(self) -> Int:
        """Returns the warps of a group."""
        return K_WARPS * self.row_warps

    def threads(self) -> Int:
        """Returns the threads of a group."""
        return 32 * self.warps()

    def columns(self) -> Int:
        """Returns the columns of the result of an item, hidden numbers if it is gated."""
        return TILE_ROWS * self.row_warps // (2 if self.is_gated else 1)

    def min_groups(self) -> Int:
        """Returns how many groups the registers of a multiprocessor hold."""
        return 2 // self.row_warps

    def batch(self) -> Int:
        """Returns how many fragments of rows are added up at once: as there is room for."""
        return self.token_tiles if self.token_tiles < MAX_TOKEN_TILES else 1

    def batches(self) -> Int:
        """Returns in how many turns an item is added up."""
        return self.token_tiles // self.batch()

    def rooms(self) -> Int:
        """Returns for how many turns there is room: warps wait for readers where there is one."""
        return 2 if self.token_tiles <= 2 else 1

    def partial_bytes(self) -> Int:
        """Returns the bytes of the sums of all warps that are added up at once."""
        return self.warps() * FRAGMENT_TOKENS * self.batch() * TOKEN_STRIDE * WORD_BYTES

    def shared_bytes(self, experts: Int, slots: Int, k: Int) -> Int:
        """Returns the dynamic shared memory of a group."""
        var fragments = k // BLOCK * self.token_tiles * FRAGMENT_BYTES
        return (
            Int(tables_end(UInt32(experts), UInt32(slots)))
            + fragments
            + self.rooms() * self.partial_bytes()
        )

    def groups(self, shared_bytes: Int) -> Int:
        """Returns the groups that a multiprocessor holds at once."""
        return min(self.min_groups(), MULTIPROCESSOR_BYTES // (shared_bytes + RESERVED_BYTES))


@always_inline
def tables_end(experts: UInt32, slots: UInt32) -> UInt32:
    """Returns the bytes up to the end of all tables."""
    var words = 3 * (experts + 1) + slots
    return align_up(UInt32(TABLES_AT) + UInt32(WORD_BYTES) * words, UInt32(TABLES_ALIGNMENT))
