"""MX quantization and block-scaled matrix multiplication: the map of the package.

Imports point down this list, never up; a room imports no other room, except that
Hopper's builds on the room of any GPU.

    numbers/              what a number is
        elements.mojo         the table of elements: E2M1, E4M3, E5M2, INT8, E2M3, E3M2
        scales.mojo           the table of scales: E8M0, float32, E4M3
        formats.mojo          the table of formats: element x scale x block
        rounding.mojo         the rules that pick a block's scale
        floats.mojo           floats as magnitude bits
        packing.mojo          codes packed densely, and taken apart
        encode.mojo           from floats to codes, any element
        decode.mojo           from codes to floats, any element
        e2m1.mojo             E2M1 by its tables
        gates.mojo            activations of experts: the table, and gates with their ups
        quotients.mojo        quotients by 1 to 2, without a division
        norms.mojo            norms of rows: the order of sums, the reciprocal root
    layouts.mojo          every byte order, a diagram each
    operands.mojo         views of the memory that callers hand in
    tiles.mojo            tiles of vectors, in registers and in shared memory
    problem.mojo          one product: left side, right side, result
    experts.mojo          products with one of several matrices for each row
    calls.mojo            what the other operations take
    backend.mojo          the machines that kernels are written for, named
    schedule/             which tile of C comes next
        tiles.mojo            the place of a tile; row after row
        xcd.mojo              orders for the eight dies of CDNA4
        clusters.mojo         orders for NVIDIA GPUs
    routing/              tokens to experts, on any GPU
        slots.mojo            slots of tokens: whose they are, what they count, their places
        groups.mojo           rows sorted by group: from sizes, whose a row is
        sums.mojo             rows of slots added up
    launch/               where launches go
        grid.mojo             what a launch is told beside: its grid, its workspace; a launch in words
        queue.mojo            a queue: kernel, grid, arguments written once
        context_queue.mojo    MAX's contexts
        cuda_queue.mojo       CUDA streams
        hip_queue.mojo        HIP streams
        c_function.mojo       functions of a driver, by address
        tensor_map.mojo       rows of bytes, as copies cut tiles out of them
        recorder.mojo         says what would be launched
        assembler.mojo        says it with the machine code
        ptx_queue.mojo        says all that a CUDA device would be told
        kernel.mojo           what a kernel of any room offers
        workspace.mojo        memory in which workgroups meet, kept

    cpu/                  vectors of a CPU
        dispatch.mojo         which kernel, and why
        experts.mojo          grouped products, and layers of experts
        attention.mojo        over MAX's paged cache, with a window and sinks
        routing.mojo          slots of tokens, sorted by expert
        ranges.mojo           rows in ranges that go with an expert each; a product is one
        launch.mojo           from ranges to panels
        quantize.mojo         quantize, dequantize, relayout: their entries
        rows.mojo             the same: their tasks
        prologue.mojo         rows that are made before they are quantized: norms, gates
        encode.mojo           one block
        scaled_rows.mojo      blocks under float scales, from floats or codes
        matmul.mojo           C in panels: stretches of K, groups of rows
        panel.mojo            what an arithmetic offers to the panels
        result.mojo           how sums get to memory: bias, gate, rounding
        weights.mojo          tiles of the weights, from any layout and format
        e4m3_scales.mojo      their E4M3 scales, decoded for a stretch of K
        weight_readers.mojo   layouts that are not the CPU's own
        block_order.mojo      how rows are cut into groups, and where their blocks lie
        limits.mojo           how many rows that takes at once, by processor
        window.mojo           exponents that occur, and whether float32 takes them
        vectors.mojo          sixteen lanes
        threads.mojo          tasks on the OpenMP team of the process
        max_runtime.mojo      tasks on MAX's own runtime
        scratch.mojo          working memory that outlives a call
        bytes/                small integers on both sides: an integer dot product a block
            kernel.mojo           which problems, and the launch
            activations.mojo      blocks, expanded to signed bytes
            integers.mojo         elements as integers, weights as unsigned bytes
            dot.mojo              the four-byte dot product of the compile target
            panel.mojo            the inner loop
        floats/               anything x anything: bfloat16 products, float32 sums a block
            kernel.mojo           which problems, and the launch
            activations.mojo      any left side as bfloat16, reordered
            scaled_rows.mojo      the same where scales are floats
            dot.mojo              a step of float sums on the compile target
            panel.mojo            the inner loop
    cdna4/                AMD CDNA4: block-scaled MFMA
        chip.mojo             what there is of everything
        types.mojo            what a kernel is compiled for; the pairs of formats
        arguments.mojo        what a launch tells its kernel, dense or grouped
        moe_shape.mojo        grids of launches for experts, and bytes that they hand over
        scheduler.mojo        which tile of C: of one group, or of several, from their sizes
        operations.mojo       what a wave does along K: the words of all schedules
        dispatch.mojo         the launch of what is chosen
        catalogue.mojo        kernels by name, for who has no GPU
        instructions/         the only room that names AMD intrinsics
            matrix.mojo           the scaled matrix instruction, and what it takes
            vector.mojo           the converter to codes, maxima of pairs
            memory.mojo           straight to LDS, and past the L2
            wave.mojo             sums, votes and words across lanes
            lds.mojo              tiles of pieces, words and bytes in LDS
        operands/             what a wave multiplies, and where it comes from
            memory.mojo           tensors through descriptors
            tiles.mojo            tiles of floats, through LDS
            encode.mojo           quantization of a block in registers
            activations.mojo      the left side: codes, or floats encoded on the way
            weights.mojo          the right side, preshuffled
            shared.mojo           rows that waves share: from memory straight to LDS
            columns.mojo          operands that lie column by column, read transposed
            quantizer.mojo        from floats to codes in memory, a wave's part
        streaming/            small M: waves share K
            kernel.mojo           the kernel, which problems, and the launch
            shape.mojo            how a workgroup cuts its work and its LDS
            order.mojo            the order of a wave's work, as data
            main_loop.mojo        a wave along K
            split_k.mojo          workgroups with parts of K: the fix-up
        interleaved/          dozens to thousands of rows, from codes: four waves share a tile
            kernel.mojo           the kernel, which problems, and the launch
            shape.mojo            how a workgroup cuts its work and its LDS
            order.mojo            what stands between matrix instructions, as data
            main_loop.mojo        a wave along K
            operands.mojo         what a tile takes of both sides
        ping_pong/            large M: eight waves share a large tile
            kernel.mojo           the kernel, which problems, and the launch
            shape.mojo            the size of the tile, and what it means for LDS
            order.mojo            two groups of waves that take turns, as data
            main_loop.mojo        a wave along K
            operands.mojo         what a tile takes of both sides
            groups.mojo           tiles of groups: their records, and their results
            fragments.mojo        stages in LDS, and how waves read their fragments
        prologue/             activations made ready within the kernel
            cooperative.mojo      workgroups that prepare the rows they share
            works.mojo            what they prepare: codes of floats, scales in order
            shape.mojo            parts of it, and the workspace
        prepare/              operands made ready by launches of their own
            quantize.mojo         rows to blocks of MX formats, and the launch
            float_scales.mojo     blocks with float scales
            norms.mojo            rows behind a norm, which stay in registers
            gates.mojo            hidden numbers of gates and ups, and rotated rows
            shape.mojo            which of these they take, and in how many waves
            chunks.mojo           what lanes load, encode and store of such rows
            order.mojo            rows of groups by tiles
        epilogue/             from sums to memory
            target.mojo           C: bias, rounding, store, in whole sectors of memory
            row_scales.mojo       scales of rows, applied to sums
            gate.mojo             a gated activation in few instructions
            hidden.mojo           gates and ups become hidden numbers on their way to memory
        experts/              one of several matrices for each row
            dispatch.mojo         grouped products and layers: their launches
            routing.mojo          slots of tokens, sorted by expert
            slots.mojo            rows of slots added up, and gates that products do not have
        host/                 what is decided before a launch, without a kernel
            plan.mojo             a kernel and its cut, by name
            table.mojo            the table of plans: for which products, and why
            experts.mojo          cuts for experts; where a layer's memory lies
            costs.mojo            what plans are expected to take
            choices.mojo          which row of the table a product gets, which cuts a layer
            explain.mojo          all of it in words and numbers
    simt/                 any GPU, any pair of formats: correct everywhere
        host.mojo             what the host decides: which kernel, grids, workspaces
        codec.mojo            encode and decode, eight elements a thread
        views.mojo            what a kernel's pointers lead to, by row and column
        arguments.mojo        a product as a kernel gets it: activations, weights, result
        encode.mojo           packed codes of a chunk: conversions, quotients without divisions
        pairs.mojo            two chunks of a thread: loaded, quantized, stored
        quantize.mojo         quantize, dequantize, relayout
        prologue.mojo         rows that are made before they are quantized: norms, gates
        row_makers.mojo       those rows, sixteen numbers at once
        dispatch.mojo         which kernel
        matmul.mojo           one warp for a row and a few columns
        instructions.mojo     tensor cores and copies of NVIDIA GPUs from Ampere on
        tiles/                all but tiny products: tiles on tensor cores
            kernel.mojo           the kernel, and the launches
            parts.mojo            the sums of parts, added up
            product.mojo          what a lane has of a tile: sums, and their totals
            operands.mojo         numbers, factors and marks, and where they lie
            numbers.mojo          codes as bfloat16 numbers
            factors.mojo          float scales of both sides, which multiply sums
            flags.mojo            columns whose weights numbers cannot hold
            place.mojo            where things are in shared memory
            rows.mojo             activations of any kind become numbers
            weights.mojo          weights on their way to shared memory
            result.mojo           how sums get to C
            marked.mojo           what numbers cannot hold
        experts.mojo          the same where every row has an expert; layers of experts
        copy.mojo             rows with gaps, made contiguous
    hopper/               NVIDIA Hopper: MXFP4 weights, four bits until registers; and FP8
        layout.mojo           the tile of its weight layout, in the kernels' words
        shapes.mojo           tiles, threads and stages in shared memory: sizes alone
        plan.mojo             a plan: how a product is computed, by name
        codec.mojo            codes and floats as bfloat16 pairs, and floats as codes, two numbers at once
        routing.mojo          lists of rows, from sizes or ids; rows of slots added up
        scheduler.mojo        which tiles of C a CTA computes, and which K: persistent, split-K, stream-K, lists
        target.mojo           where rows go; gates and their ups, and ups without gates
        stream_k.mojo         the fix-up of stream-K
        product.mojo          what an RS kernel computes: one matrix, or those of groups
        accumulator.mojo      where a thread's sums lie in a tile of C
        gemm_operands.mojo    prepared rows, and what main loops want to know of both sides
        gemm_rs_bf16.mojo     the warp-specialised kernel that decodes weights to bfloat16; its launch
        gemm_rs_fp8.mojo      the FP8 kernel whose weights are decoded in registers: dense, grouped
        gemm_ss.mojo          the kernel of rows times rows: bytes, numbers
        gemm_prepared.mojo    products whose operands are prepared: the launches
        moe.mojo              products of experts: grouped ones and layers, their launches
        dispatch.mojo         the launch of what the host chose
        instructions/         inline assembly, beside simt's of any NVIDIA GPU
            warp.mojo             of a warp: products, votes, what keeps work in its place
            packed.mojo           two 16-bit numbers in a register
            shared_memory.mojo    loads, copies and barriers by address
            global_memory.mojo    what groups of a kernel hand to each other
            named_barriers.mojo   the hardware's barriers: consumers, warp groups, ping-pong
            wgmma.mojo            around the warp group's instruction
        pipeline/             stages between producers and consumers of a CTA
            ring.mojo             the ring of stages: full and empty barriers, parity
            stages.mojo           what a stage holds, by main loop
            slots.mojo            what the sums of an SS stage are multiplied by, beside it
            producers.mojo        producers of an RS pipeline: rows of A, codes and scales
            boxes.mojo            producers of an SS pipeline: boxes of tensor maps, factors
        mainloop/             a warp group multiplies stages, and promotes partial sums
            rs_bf16.mojo          weights decoded in registers, to bfloat16
            rs_fp8.mojo           the same, to bytes
            ss.mojo               both sides in shared memory
        decode/               codes to fragments of tensor cores
            bf16.mojo             four-bit codes become bfloat16
            fp8.mojo              which rows a lane has, where their codes are; a stage decoded
        epilogue/             from accumulators to C
            warp_rows.mojo        a warp's own sums: transpose, bias or gate, store
            reduce.mojo           partial sums of consumers that split K, and of a cluster's CTAs
            rs_fp8.mojo           factors, bias or gate, rounding, store, of RS
            ss.mojo               the same of SS
            fallback.mojo         elements of C that operands or sums cannot give, in float64
        streaming/            small M, dense and grouped: weights stream through registers
            kernel.mojo           the kernel, and the launches; layers of experts
            cta.mojo              a CTA: its tiles, how rows get to it and sums to C, the fallback
            scheduler.mojo        which CTA has which rows of whose expert
            activations.mojo      rows in fragment order, staged by the CTA
            mainloop.mojo         codes on the way become fragments, and meet those of rows
            epilogue.mojo         sums over warps and clusters, bias, gate, store
        prepare/              operand preparation: activations and weights as tensor cores take them
            kernel.mojo           the kernel: source x encoder x destination
            experts.mojo          before FP8 products of experts: lists of rows, shared exponents
            source.mojo           rows of A, or places that rows are gathered to; their lanes
            e5m2.mojo             encoder: rows under a shared exponent
            e4m3.mojo             encoder: 128 elements under one
            bf16.mojo             encoder: rows in the order of decoded weights, a kernel of its own
            float_scales.mojo     encoder: E4M3 under float scales; where they lie
            codes.mojo            codes as E5M2, E4M3 and bfloat16 under a larger scale
            exponents.mojo        shared exponents: where they lie, and those of weights
            weights.mojo          rows of B become stages
            stages.mojo           stages in the workspace, and where a lane's bytes of a row go
            operands.mojo         rows that are ready, as operands of both main loops
            kept.mojo             NVFP4 as bfloat16: weights, and rows of A with a factor each
            fallback.mojo         rows of E5M2 that share no exponent, block by block
        host/                 what the host decides; no kernel, no instruction
            gemm.mojo             who takes a product, by what both sides have; grids, by main loop
            workspace.mojo        workspaces, by kernel
            moe.mojo              the same for experts: kernel, tiles, lists, grids, workspaces
            choices.mojo          which plan a product gets, why, and the workspace that it is lent
            costs.mojo            what a plan is expected to take
            measured.mojo         the table: costs fitted to times on the device
            explain.mojo          what is launched, in words and numbers

    bindings/             who calls: thin, no maths
        protocol.mojo         the one reader of calls from Python
        record.mojo           facts for Python, by name
        pairs.mojo            the products that gfx950 has kernels for, by code and by name
        cpu.mojo              Python extension module of the CPU
        plans.mojo            Python extension module of what GPUs would do, without a GPU
        cuda.mojo             Python extension module of CUDA devices
        nvidia.mojo           Hopper's kernels on Hopper, portable ones on other NVIDIA GPUs
        nvidia_facts.mojo     memory that these want, and handles of plans, for Python
        ptx.mojo              the same module, which also says what a device would be told
        max_ops.mojo          MAX custom ops
        max_experts.mojo      the same for experts
        max_fused.mojo        the same for norms and gates
        max_attention.mojo    the same for attention over MAX's cache
        max_tensors.mojo      tensors of a graph as operands
        names.mojo            names in a graph, as positions in the tables
        hip.mojo              Python extension module of gfx950 devices
        hip_product.mojo      the same for products, one kind a module
        hip_experts.mojo      the same for experts
        catalogue.mojo        Python extension module of gfx950 kernels, without a GPU
"""
