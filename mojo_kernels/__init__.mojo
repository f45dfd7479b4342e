"""MX quantization and block-scaled matrix multiplication: the map of the package.

Imports point down this list, never up; a room imports no other room, except that
Hopper's builds on the room of any GPU.

    numbers/              what a number is
        elements.mojo         the table of elements: E2M1, E4M3, E5M2, INT8
        scales.mojo           the table of scales: E8M0, float32
        formats.mojo          the table of formats: element x scale x block
        rounding.mojo         the rules that pick a block's scale
        floats.mojo           floats as magnitude bits
        encode.mojo           from floats to codes, any element
        decode.mojo           from codes to floats, any element
        e2m1.mojo             E2M1 by its tables
    layouts.mojo          every byte order, a diagram each
    operands.mojo         views of the memory that callers hand in
    problem.mojo          one product: left side, right side, result
    calls.mojo            what the other operations take
    backend.mojo          the machines that kernels are written for, named
    schedule/             which tile of C comes next
        tiles.mojo            what an order of tiles is, and the plainest
        xcd.mojo              orders for the eight dies of CDNA4
        clusters.mojo         orders for clusters and persistent groups of NVIDIA GPUs
    launch/               where launches go
        queue.mojo            a queue: kernel, grid, arguments written once
        context_queue.mojo    MAX's contexts and CUDA streams
        hip_queue.mojo        HIP streams
        recorder.mojo         says what would be launched
        assembler.mojo        says it with the machine code
        kernel.mojo           what a kernel of any room offers
        workspace.mojo        memory in which workgroups meet, kept

    cpu/                  vectors of a CPU
        dispatch.mojo         which kernel, and why
        launch.mojo           from a problem to panels
        quantize.mojo         quantize, dequantize, relayout: their entries
        rows.mojo             the same: their tasks
        encode.mojo           one block
        matmul.mojo           C in panels: stretches of K, groups of rows
        panel.mojo            what an arithmetic offers to the panels
        weights.mojo          tiles of the weights, from any layout and format
        weight_readers.mojo   layouts that are not the CPU's own
        block_order.mojo      where blocks of activations lie
        window.mojo           exponents that occur, and whether float32 takes them
        vectors.mojo          sixteen lanes
        threads.mojo          tasks on the OpenMP team of the process
        max_runtime.mojo      tasks on MAX's own runtime
        scratch.mojo          working memory that outlives a call
        bytes/                MXFP4 x MXFP4: an integer dot product a block
            kernel.mojo           which problems, and the launch
            activations.mojo      blocks, expanded to signed bytes
            offset_values.mojo    weights, as unsigned bytes
            dot.mojo              the four-byte dot product of the compile target
            panel.mojo            the inner loop
        floats/               anything x anything: bfloat16 products, float32 sums a block
            kernel.mojo           which problems, and the launch
            activations.mojo      any left side as bfloat16, reordered
            dot.mojo              a step of float sums on the compile target
            panel.mojo            the inner loop
    cdna4/                AMD CDNA4: block-scaled MFMA
        mma.mojo              the only file that names AMD intrinsics
        encode.mojo           quantization of a block in registers
        quantize.mojo         quantize as a kernel of its own
        tiles.mojo            tiles of A, B and scales
        activations.mojo      the left operand: encoded, or quantized on the way
        schedule.mojo         the decode kernels' pipelines, as data
        decode_shape.mojo     how a decode workgroup cuts its work and its LDS
        wave_run.mojo         a decode wave's way along K
        epilogue.mojo         sums across waves and workgroups, bias, rounding, store
        matmul_decode.mojo    few rows
        matmul_prefill.mojo   many rows, encoded activations
        linear_prefill.mojo   many rows, quantized on the way
        team.mojo                 workgroups that encode the rows they share
        prefill_run.mojo          a wave's way along K
        prefill_tiles.mojo        what a prefill workgroup shares in LDS
        prefill_activations.mojo  how encoded blocks get there
        prefill_result.mojo       how sums get to C
        ping_pong.mojo            two groups of waves that take turns, as data
        lds.mojo                  words of LDS beside direct loads
        dispatch.mojo         which kernel, why, which grid
        multiply.mojo         the launch of what was chosen
        workspace.mojo        memory in which workgroups meet, kept
        launch.mojo           code objects, HIP's functions, the caller's stream
    simt/                 any GPU: correct everywhere, tuned nowhere
        codec.mojo            encode and decode, eight elements a thread
        problem.mojo          a product as a kernel sees it
        quantize.mojo         quantize, dequantize, relayout
        matmul.mojo           one warp for a row and a few columns
        copy.mojo             rows with gaps, made contiguous
        launch.mojo           contexts, streams, device pointers
    hopper/               NVIDIA Hopper: four bits until registers
        layout.mojo           the tile of its weight layout, in the kernels' words
        fragments.mojo        codes to tensor core fragments
        shared_memory.mojo    loads, copies and barriers by address
        tokens.mojo           activations in fragment order
        expand_tokens.mojo    activations as bfloat16, for more rows
        wgmma.mojo            around the warp group's instruction
        exact.mojo            elements that bfloat16 cannot hold
        matmul_decode.mojo    few rows
        matmul_middle.mojo    dozens to hundreds of rows: more warps decode, groups split K
        middle_sums.mojo          sums across warps and ranks, store
        matmul_prefill.mojo   many rows: a weight is decoded once for 256 of them
        prefill_stages.mojo       weights and tokens on the way, for both
        prefill_weights.mojo      weights become operands in registers, for both
        prefill_result.mojo       how sums get to C
        quantize.mojo         quantize, two numbers at once
        dispatch.mojo         which kernel, which grid

    quantize.mojo         host entries: cut into tasks, launch
    matmul.mojo           host entries of matmul and linear
    nvidia.mojo           host entries of NVIDIA GPUs
    max_ops.mojo          MAX custom ops: thin, no maths
    python_arguments.mojo what extension modules take from Python
    python_module.mojo    Python extension module of the CPU: thin, no maths
    gpu_module.mojo       Python extension module of CUDA devices: thin, no maths
    hip_module.mojo       Python extension module of gfx950 devices: thin, no maths
    hip_product_module.mojo   the same for products, one kind a module
"""
