"""Attention over a paged cache of keys and values, with a window and sinks, for MAX on a CPU.

    cache     [pages, 2, layers, tokens of a page, kv heads, HEAD], keys first
    a row     is token `cached[request] + row - first row of the request`; it sees itself and what
              is before it, `window` tokens in all
    softmax   along the tokens, one pass: sums are kept below the largest score so far

A sink is one more score of a head, which takes its part of the sum and has no value. A task is a
head of a row; it reads nothing that another one writes, so threads change no bit.
"""

from layout import Coord
from std.collections import Array

from ..numbers.gates import INFINITY, exp_of_minus
from ..operands import flat
from .threads import Work
from .vectors import LANES, Sums

comptime CHUNK_TOKENS = 64
"""Scores that are known before their values are read. Guess."""


@fieldwise_init
struct PagedCache(TrivialRegisterPassable):
    """Where keys and values are."""

    var blocks: Int
    """The address of the first page."""
    var page_elements: Int
    """From one page to the next."""
    var layers: Int
    var layer: Int
    var page_tokens: Int
    var heads: Int
    var cached: Int
    """The address of what each request had before, in tokens, uint32."""
    var pages: Int
    """The address of the pages of each request [requests, most_pages], uint32."""
    var most_pages: Int


@fieldwise_init
struct PagedAttention[HEAD: Int](TrivialRegisterPassable, Work):
    """Heads of rows [rows, heads, HEAD] of float32."""

    var queries: Int
    var result: Int
    var first_rows: Int
    """The address of the first row of each request, and of the end [requests + 1], uint32."""
    var requests: Int
    var heads: Int
    var cache: PagedCache
    var scale: Float32
    var window: Int
    """Tokens that a row sees; 0 for all."""
    var sinks: Int
    """The address of a float32 for each head, 0 for none."""

    def run(self, task: Int):
        """Does a head of a row."""
        comptime VECTORS = Self.HEAD // LANES
        var row, head = divmod(task, self.heads)
        var request = self._request_of(row)
        var last = Int(_at(self.cache.cached, request)) + row - Int(_at(self.first_rows, request))
        var token = max(0, last + 1 - self.window) if self.window > 0 else 0

        var query = Array[Sums, VECTORS](uninitialized=True)
        var sums = Array[Sums, VECTORS](fill=Sums(0))
        var mine = flat[DType.float32](self.queries, (task + 1) * Self.HEAD)
        comptime for i in range(VECTORS):
            query[i] = self.scale * mine.load[width=LANES, alignment=4](
                Coord(task * Self.HEAD + i * LANES)
            )
        var most, total = -INFINITY, Float32(0)
        if self.sinks != 0:
            most = flat[DType.float32](self.sinks, head + 1).load[width=1](Coord(head))
            total = 1

        var scores = Array[Float32, CHUNK_TOKENS](fill=0)
        while token <= last:
            var offset = token % self.cache.page_tokens
            var count = min(CHUNK_TOKENS, self.cache.page_tokens - offset, last + 1 - token)
            var keys = self._address(request, token, head, 0)
            var largest = -INFINITY
            for i in range(count):
                var product = Sums(0)
                comptime for j in range(VECTORS):
                    product = query[j].fma(self._part(keys, i, j), product)
                scores[i] = product.reduce_add()
                largest = max(largest, scores[i])
            if largest > most:
                var factor = exp_of_minus[1](largest - most)
                total *= factor
                comptime for j in range(VECTORS):
                    sums[j] *= factor
                most = largest
            var values = self._address(request, token, head, 1)
            for i in range(count):
                var share = exp_of_minus[1](most - scores[i])
                total += share
                comptime for j in range(VECTORS):
                    sums[j] = self._part(values, i, j).fma(Sums(share), sums[j])
            token += count

        var out = flat[DType.float32](self.result, (task + 1) * Self.HEAD)
        comptime for i in range(VECTORS):
            out.store[alignment=4](Coord(task * Self.HEAD + i * LANES), sums[i] / Sums(total))

    def _request_of(self, row: Int) -> Int:
        """Returns whose row it is."""
        var low, high = 0, self.requests
        while high - low > 1:
            var middle = (low + high) // 2
            if Int(_at(self.first_rows, middle)) <= row:
                low = middle
            else:
                high = middle
        return low

    def _address(self, request: Int, token: Int, head: Int, kind: Int) -> Int:
        """Returns where the key (0) or the value (1) of a token is, for a head of the queries."""
        var cache = self.cache
        var place, offset = divmod(token, cache.page_tokens)
        var page = Int(_at(cache.pages, request * cache.most_pages + place))
        var rows = (kind * cache.layers + cache.layer) * cache.page_tokens + offset
        var own = head // (self.heads // cache.heads)
        return cache.blocks + 4 * (
            page * cache.page_elements + (rows * cache.heads + own) * Self.HEAD
        )

    @always_inline
    def _part(self, address: Int, token: Int, vector: Int) -> Sums:
        """Returns some elements of a key or value, so many tokens behind an address."""
        var begin = token * self.cache.heads * Self.HEAD + vector * LANES
        return flat[DType.float32](address, begin + LANES).load[width=LANES, alignment=4](
            Coord(begin)
        )


def _at(address: Int, place: Int) -> UInt32:
    """Returns a number of a list."""
    return flat[DType.uint32](address, place + 1).load[width=1](Coord(place))
