"""The tile of `PreshuffledCuda` in the words of the kernels that read it."""

from ..layouts import PreshuffledCuda

comptime TILE_ROWS = PreshuffledCuda.ROW_MULTIPLE
"""Rows of a tile: two fragments of 16."""
comptime ROW_LANES = PreshuffledCuda.ROW_LANES
"""Rows that one word of each lane covers."""
comptime ROWS_PER_LANE = PreshuffledCuda.ROWS_PER_LANE
"""Rows whose words lie side by side in a lane's 16 bytes."""
comptime K_LANES = PreshuffledCuda.K_LANES
"""Lanes that share a row."""
comptime TILE_BYTES = PreshuffledCuda.TILE_BYTES
"""Bytes of a tile's codes."""
