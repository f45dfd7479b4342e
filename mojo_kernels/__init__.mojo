"""MXFP4 quantization and block-scaled matrix multiplication: the map of the package.

Imports point down this list, never up; a room imports no other room, except that
Hopper's builds on the room of any GPU.

    formats.mojo          the only table of format facts
    codec.mojo            one element, one scale: encode, decode, the four scale rules
    layouts.mojo          every byte order, a diagram each
    operands.mojo         views of the memory that callers hand in
    backend.mojo          the machines that kernels are written for, named

    cpu/                  vectors of a CPU: bytes times bytes, floats times codes
        quantize.mojo         quantize, dequantize, relayout
        matmul.mojo           C in panels: stretches of K, groups of rows
        panel.mojo            what an arithmetic offers to the panels
        byte_panel.mojo       MXFP4 activations: the inner loop
        activations.mojo      MXFP4 activations, expanded to signed bytes
        dot.mojo              the four-byte dot product of the compile target
        float_panel.mojo      bfloat16 activations: the inner loop
        float_activations.mojo  bfloat16 activations, reordered
        float_dot.mojo        a step of float sums on the compile target
        block_order.mojo      where blocks of activations lie
        weights.mojo          tiles of the right operand, from any layout
        threads.mojo          tasks on the OpenMP team of the process
        max_runtime.mojo      tasks on MAX's own runtime
        scratch.mojo          working memory that outlives a call
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
