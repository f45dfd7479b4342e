"""What an H200 took, as `python -m bench.cuda_tune table` writes it.

A line of `COSTS` has the cost of each term of `costs`, in microseconds, for a family of plans. For
shapes in `EXCEPTIONS`, costs choose a plan that was not the fastest. The times are those of
bench/results/cuda_tune.csv; `bench.cuda_fit` says how costs come from them.
"""


@fieldwise_init
struct Fastest(TrivialRegisterPassable):
    """A shape, and its fastest plans: of MXFP4 activations, and of bfloat16 ones that are kept."""

    var m: Int
    var n: Int
    var k: Int
    var mxfp4: StaticString
    var kept: StaticString


# fmt: off
comptime COSTS = [
    [0.4682, 0.0, 0.0, 0.0423, 0.0, 1.076, 48.07, 0.252, 0.2237, 0.3606, 0.07976],  # stream 8x32
    [0.7576, 0.0, 0.0, 0.07292, 0.0, 1.013, 32.22, 0.1748, 0.1751, 0.167, 0.1387],  # stream 8x64
    [0.9702, 0.0, 0.0, 0.08131, 0.0, 1.001, 23.05, 0.1369, 0.2496, 0.0, 0.09652],  # stream 8x128
    [1.412, 0.0, 0.0, 0.09158, 0.0, 0.9918, 22.94, 0.08343, 0.2807, 0.0, 0.09211],  # stream 8x256
    [0.5761, 0.0, 0.2609, 0.0748, 0.003057, 0.8074, 10.73, 0.4508, 0.3889, 0.6821, 0.0228],  # stream 16x32
    [0.9333, 0.008011, 0.0, 0.1269, 0.01021, 0.954, 7.139, 0.2567, 0.2099, 0.3246, 0.1266],  # stream 16x64
    [1.201, 0.0, 0.0, 0.1305, 0.0, 1.119, 4.734, 0.1687, 0.1203, 0.0, 0.156],  # stream 16x128
    [1.712, 0.0, 0.0, 0.1247, 0.0, 1.087, 2.181, 0.1195, 0.2112, 0.0, 0.2218],  # stream 16x256
    [0.3136, 0.09323, 1.274, 0.812, 0.01146, 0.58, 4.074, 0.0, 0.249, 0.4258, 0.01989],  # stream 32x32
    [0.3151, 0.1536, 1.219, 0.5331, 0.0, 0.801, 1.54, 0.0, 0.2775, 0.5392, 0.1752],  # stream 32x64
    [0.4926, 0.0, 1.638, 0.3875, 0.0, 0.8476, 1.368, 0.0, 0.1184, 0.3234, 0.3291],  # stream 32x128
    [0.8855, 0.0, 1.927, 0.2968, 0.0, 1.5, 0.5913, 0.0, 0.2557, 0.4639, 0.2552],  # stream 32x256
    [0.9526, 0.0, 1.242, 0.8864, 0.0, 1.05, 2.232, 0.0, 0.0, 0.7132, 0.3263],  # stream 64x64
    [1.189, 0.0, 2.134, 0.5525, 0.0, 1.489, 1.122, 0.0, 0.1266, 1.098, 0.08731],  # stream 64x128
    [0.7894, 0.2378, 2.89, 0.2925, 0.1438, 2.07, 1.251, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 64x128
    [1.905, 0.0, 2.946, 0.3626, 0.765, 3.204, 1.043, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 128x128
    [3.165, 0.0, 1.474, 0.5625, 0.0, 4.703, 1.128, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 256x128
    [2.934, 0.0, 0.0, 0.3093, 0.0, 1.246, 0.8536, 0.565, 0.0, 0.0, 0.6857],  # ss_e5m2 128x128 prepared
    [0.9389, 0.01609, 2.283, 0.3026, 0.01398, 1.196, 0.8838, 0.04278, 0.166, 0.0, 0.0],  # rs_e5m2 64x128
    [0.2628, 0.01653, 2.964, 0.3992, 0.1115, 1.69, 0.8125, 0.03568, 0.6963, 0.0, 0.0],  # rs_e5m2 128x128
    [0.0, 0.0, 1.803, 0.3161, 0.3454, 1.967, 0.6349, 0.0236, 1.138, 0.0, 1.634],  # rs_e5m2 64x128 streamK
    [0.0, 0.0, 1.864, 0.4373, 0.5899, 2.128, 0.7204, 0.01978, 1.686, 0.0, 2.504],  # rs_e5m2 128x128 streamK
    [3.469, 0.0, 1.352, 0.2503, 0.0, 0.0, 0.07003, 0.7915, 0.0, 0.06706, 0.0],  # ss_bf16 128x128 prepared
    [0.0, 0.0, 0.1551, 0.3079, 0.2871, 3.944, 0.8761, 0.0, 1.328, 0.0, 1.858],  # rs_bf16 64x128 streamK
    [0.0, 0.0, 0.0, 0.3659, 0.4905, 4.928, 0.8149, 0.0, 2.097, 0.0, 2.528],  # rs_bf16 128x128 streamK
    [0.0, 0.0, 0.0, 0.6118, 0.9856, 5.628, 0.9409, 0.0, 3.089, 0.0, 4.154],  # rs_bf16 256x128 streamK
    [2.715, 0.0, 0.0, 0.7328, 0.0, 1.664, 0.8665, 0.03238, 3.005, 0.0, 0.0],  # rs_e5m2 256x128
    [0.8462, 0.0, 0.0, 0.806, 1.068, 3.248, 0.9305, 0.02259, 3.784, 0.0, 4.393],  # rs_e5m2 256x128 streamK
    [0.7851, 0.2134, 1.883, 0.09936, 0.7385, 0.0, 0.0, 0.0, 0.03278, 1.075, 0.0],  # ss_e4m3 64x64, fp8 x fp8
    [0.6669, 2.278, 1.578, 0.169, 1.38, 0.01906, 0.0, 0.05818, 0.0, 0.7143, 0.9559],  # ss_e4m3 64x128, fp8 x fp8
    [1.078, 1.546, 2.278, 0.2073, 0.9943, 0.04466, 0.0, 0.0663, 0.04255, 1.029, 1.463],  # ss_e4m3 128x128, fp8 x fp8
    [0.07521, 1.473, 2.061, 0.06402, 0.1584, 0.04182, 0.0, 0.1052, 0.06071, 0.606, 0.0],  # ss_e4m3 64x64, fp8_block x fp8_block_2d
    [1.117, 3.868, 1.454, 0.1231, 0.3405, 0.122, 0.0, 0.0, 4.939e-05, 1.352, 0.6992],  # ss_e4m3 64x128, fp8_block x fp8_block_2d
    [0.9541, 2.457, 2.658, 0.3531, 1.175, 0.01759, 0.0, 0.002877, 0.05076, 1.21, 1.674],  # ss_e4m3 128x128, fp8_block x fp8_block_2d
    [0.459, 0.0, 3.668, 0.325, 2.121, 0.0, 1.796, 0.87, 0.0, 0.0, 0.0],  # ss_e4m3 64x256 prepared, mxfp8 x mxfp8
    [0.459, 0.0, 4.386, 0.296, 2.121, 0.0, 1.796, 0.87, 0.0, 0.0, 0.0],  # ss_e4m3 128x128 prepared, mxfp8 x mxfp8
    [2.54, 0.0, 1.732, 0.526, 1.273, 0.0, 0.0, 0.0, 0.0, 1.816, 1.938],  # rs_e4m3 64x128, mxfp8 x mxfp8
    [2.54, 0.0, 2.575, 0.823, 1.273, 0.0, 0.0, 0.0, 0.0, 1.816, 1.938],  # rs_e4m3 128x128, mxfp8 x mxfp8
    [0.437, 0.0, 3.424, 0.334, 2.463, 0.0, 1.371, 0.631, 0.0, 0.0, 0.0],  # ss_e4m3 64x256 prepared, mxfp8 x mxfp4
    [0.437, 0.0, 3.595, 0.313, 2.463, 0.0, 1.371, 0.631, 0.0, 0.0, 0.0],  # ss_e4m3 128x128 prepared, mxfp8 x mxfp4
    [2.522, 0.0, 1.494, 0.437, 1.15, 0.0, 0.0, 0.0, 0.0, 1.487, 1.834],  # rs_e4m3 64x128, mxfp8 x mxfp4
    [2.522, 0.0, 3.075, 0.672, 1.15, 0.0, 0.0, 0.0, 0.0, 1.487, 1.834],  # rs_e4m3 128x128, mxfp8 x mxfp4
    [0.0, 0.1076, 1.674, 0.2165, 0.2179, 1.64, 0.0, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 64x64
    [0.0, 0.0, 2.538, 0.272, 0.3599, 1.274, 0.304, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 128x64
    [0.0, 0.0, 3.469, 0.3981, 0.6524, 2.102, 0.1801, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 256x64
]
comptime EXCEPTIONS = [
    Fastest(1, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(4, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(8, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(12, 512, 2880, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(16, 512, 2880, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(48, 512, 2880, "stream 32x128 splitK8", "rs_bf16 64x64 splitK4"),
    Fastest(256, 512, 2880, "rs_e5m2 64x128 splitK4", "rs_bf16 64x64 splitK2"),
    Fastest(1536, 512, 2880, "rs_e5m2 64x128", "rs_bf16 256x64 splitK2"),
    Fastest(1, 640, 4096, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(4, 640, 4096, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(8, 640, 4096, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(12, 640, 4096, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(16, 640, 4096, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(48, 640, 4096, "stream 32x128 splitK8", "stream 32x128 splitK8"),
    Fastest(192, 640, 4096, "rs_e5m2 64x128 splitK8", "rs_bf16 64x64 splitK4"),
    Fastest(512, 640, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 128x64 splitK2"),
    Fastest(768, 640, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 128x64 splitK2"),
    Fastest(1024, 640, 4096, "rs_e5m2 128x128 splitK2", "rs_bf16 256x64 splitK2"),
    Fastest(1, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(4, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(8, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(12, 768, 3072, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(16, 768, 3072, "stream 16x32 splitK8", "stream 16x32 splitK8"),
    Fastest(48, 768, 3072, "stream 32x128 splitK8", "stream 32x128 splitK8"),
    Fastest(128, 768, 3072, "rs_e5m2 64x128 splitK4", "rs_bf16 64x64 splitK4"),
    Fastest(8, 1024, 8192, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(12, 1024, 8192, "stream 16x64 splitK8", "stream 16x64 splitK8"),
    Fastest(16, 1024, 8192, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(1, 1280, 5120, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(1024, 1280, 5120, "ss_e5m2 128x128 prepared", "ss_bf16 128x128 prepared"),
    Fastest(1, 1536, 2048, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(4, 1536, 2048, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(8, 1536, 2048, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(12, 1536, 2048, "stream 16x64 splitK8", "stream 16x64 splitK8"),
    Fastest(16, 1536, 2048, "stream 16x64 splitK8", "stream 16x64 splitK8"),
    Fastest(1536, 1536, 2048, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1, 1536, 7168, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(4, 1536, 7168, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(8, 1536, 7168, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(12, 1536, 7168, "stream 16x64 splitK8", "stream 16x64 splitK8"),
    Fastest(16, 1536, 7168, "stream 16x64 splitK8", "stream 16x64 splitK8"),
    Fastest(192, 1536, 7168, "rs_e5m2 64x128 streamK", "rs_bf16 256x64 splitK4"),
    Fastest(1024, 1536, 7168, "rs_e5m2 128x128 streamK", "ss_bf16 128x128 prepared"),
    Fastest(2048, 1536, 7168, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1, 2048, 768, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(4, 2048, 768, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(8, 2048, 768, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(96, 2048, 768, "rs_e5m2 64x128 splitK2", "rs_bf16 64x64 splitK2"),
    Fastest(128, 2048, 768, "rs_e5m2 64x128 splitK2", "rs_bf16 64x64"),
    Fastest(256, 2048, 768, "rs_e5m2 64x128", "rs_bf16 64x64"),
    Fastest(768, 2048, 768, "ss_e5m2 128x128 prepared", "rs_bf16 256x64"),
    Fastest(1024, 2048, 768, "rs_e5m2 128x128", "rs_bf16 256x64"),
    Fastest(4, 2112, 7168, "stream 8x128 splitK8", "stream 8x128 splitK8"),
    Fastest(12, 2112, 7168, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(64, 2112, 7168, "rs_e5m2 64x128 splitK4", "rs_bf16 64x64 splitK2"),
    Fastest(128, 2112, 7168, "rs_e5m2 64x128 streamK", "rs_bf16 64x64 splitK2"),
    Fastest(1, 2560, 2560, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(4, 2560, 2560, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(12, 2560, 2560, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(16, 2560, 2560, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(32, 2560, 2560, "rs_e5m2 64x128 splitK4", "rs_bf16 64x64 splitK2"),
    Fastest(512, 2560, 2560, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(768, 2560, 2560, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(12, 2880, 512, "stream 16x64 splitK2", "stream 16x64 splitK2"),
    Fastest(48, 2880, 512, "stream 32x64", "rs_bf16 64x64"),
    Fastest(64, 2880, 512, "stream 32x64", "rs_bf16 64x64"),
    Fastest(512, 2880, 512, "rs_e5m2 128x128 streamK", "rs_bf16 256x64"),
    Fastest(1, 2880, 2880, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(4, 2880, 2880, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(8, 2880, 2880, "stream 8x128 splitK8", "stream 8x128 splitK8"),
    Fastest(12, 2880, 2880, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(16, 2880, 2880, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(24, 2880, 2880, "rs_e5m2 64x128 splitK4", "stream 32x256 splitK8"),
    Fastest(96, 2880, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 128x64 splitK2"),
    Fastest(512, 2880, 2880, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(1024, 2880, 2880, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(8, 2880, 4096, "stream 8x128 splitK8", "stream 8x128 splitK8"),
    Fastest(24, 2880, 4096, "rs_e5m2 64x128 splitK4", "stream 32x128 splitK4"),
    Fastest(128, 2880, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 128x64 splitK2"),
    Fastest(192, 2880, 4096, "rs_e5m2 128x128 splitK2", "rs_bf16 256x64 splitK2"),
    Fastest(384, 2880, 4096, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(768, 2880, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(4096, 2880, 4096, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(1, 3072, 1536, "stream 8x32", "stream 8x32"),
    Fastest(4, 3072, 1536, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(24, 3072, 1536, "rs_e5m2 64x128 splitK4", "stream 32x128 splitK4"),
    Fastest(32, 3072, 1536, "rs_e5m2 64x128 splitK4", "rs_bf16 64x64 splitK2"),
    Fastest(192, 3072, 1536, "rs_e5m2 64x128", "rs_bf16 256x64 splitK2"),
    Fastest(384, 3072, 1536, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(512, 3072, 1536, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(768, 3072, 1536, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1, 3584, 3584, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(4, 3584, 3584, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(8, 3584, 3584, "stream 8x128 splitK8", "stream 8x128 splitK8"),
    Fastest(12, 3584, 3584, "stream 16x128 splitK8", "stream 16x128 splitK8"),
    Fastest(24, 3584, 3584, "rs_e5m2 64x128 splitK4", "stream 32x128 splitK4"),
    Fastest(96, 3584, 3584, "rs_e5m2 64x128 splitK2", "rs_bf16 128x64 splitK2"),
    Fastest(12, 4096, 512, "stream 16x64 splitK2", "stream 16x64 splitK2"),
    Fastest(48, 4096, 512, "stream 32x64", "rs_bf16 64x64"),
    Fastest(64, 4096, 512, "stream 32x64", "rs_bf16 64x64"),
    Fastest(192, 4096, 512, "rs_e5m2 64x128 streamK", "rs_bf16 128x64"),
    Fastest(384, 4096, 512, "rs_e5m2 128x128 streamK", "rs_bf16 256x64"),
    Fastest(512, 4096, 512, "rs_e5m2 128x128 streamK", "rs_bf16 256x64"),
    Fastest(768, 4096, 512, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(1024, 4096, 512, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(8, 4096, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(24, 4096, 4096, "rs_e5m2 64x128 splitK2", "stream 32x64 splitK2"),
    Fastest(512, 4096, 4096, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(512, 4096, 14336, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1536, 4096, 14336, "rs_e5m2 128x128", "rs_bf16 256x128 streamK"),
    Fastest(2048, 4096, 14336, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(192, 4608, 7168, "rs_e5m2 64x128", "rs_bf16 128x128 streamK"),
    Fastest(1024, 4608, 7168, "rs_e5m2 256x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1, 5120, 1280, "stream 8x64", "stream 8x64"),
    Fastest(4, 5120, 1280, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(8, 5120, 1280, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(12, 5120, 1280, "stream 16x128 splitK4", "stream 16x128 splitK4"),
    Fastest(16, 5120, 1280, "stream 16x128 splitK4", "stream 16x128 splitK4"),
    Fastest(24, 5120, 1280, "rs_e5m2 64x128 splitK2", "stream 32x256 splitK4"),
    Fastest(384, 5120, 1280, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(512, 5120, 1280, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(1, 5120, 2880, "stream 8x32", "stream 8x32"),
    Fastest(4, 5120, 2880, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 5120, 2880, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(96, 5120, 2880, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 splitK2"),
    Fastest(1, 5120, 4096, "stream 8x32", "stream 8x32"),
    Fastest(512, 5120, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1536, 5120, 4096, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(1, 5760, 2880, "stream 8x32", "stream 8x32"),
    Fastest(4, 5760, 2880, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 5760, 2880, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(12, 5760, 2880, "stream 16x256 splitK8", "stream 16x256 splitK8"),
    Fastest(16, 5760, 2880, "stream 16x256 splitK8", "stream 16x256 splitK8"),
    Fastest(64, 5760, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x64"),
    Fastest(96, 5760, 2880, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 splitK2"),
    Fastest(192, 5760, 2880, "rs_e5m2 128x128", "rs_bf16 256x64"),
    Fastest(1, 6144, 2048, "stream 8x32", "stream 8x32"),
    Fastest(4, 6144, 2048, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(8, 6144, 2048, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(1024, 6144, 2048, "ss_e5m2 128x128 prepared", "ss_bf16 128x128 prepared"),
    Fastest(1536, 6144, 2048, "ss_e5m2 128x128 prepared", "ss_bf16 128x128 prepared"),
    Fastest(1, 6144, 4096, "stream 8x64 splitK2", "stream 8x64 splitK2"),
    Fastest(4, 6144, 4096, "stream 8x128 splitK4", "stream 8x128 splitK4"),
    Fastest(1, 7168, 2048, "stream 8x32", "stream 8x32"),
    Fastest(4, 7168, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 7168, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(12, 7168, 2048, "stream 16x128 splitK4", "stream 16x128 splitK4"),
    Fastest(16, 7168, 2048, "stream 16x128 splitK4", "stream 16x128 splitK4"),
    Fastest(24, 7168, 2048, "rs_e5m2 64x128 splitK2", "stream 32x128 splitK2"),
    Fastest(1536, 7168, 2048, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(128, 7168, 16384, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(1536, 7168, 16384, "rs_e5m2 128x128 streamK", "rs_bf16 256x128"),
    Fastest(12, 8192, 28672, "rs_e5m2 64x128 splitK2", "stream 16x64 splitK2"),
    Fastest(16, 8192, 28672, "rs_e5m2 64x128 splitK2", "stream 16x128 splitK8"),
    Fastest(24, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(32, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(48, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(64, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(96, 8192, 28672, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(128, 8192, 28672, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(192, 8192, 28672, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(256, 8192, 28672, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(384, 8192, 28672, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(1024, 8192, 28672, "rs_e5m2 128x128", "rs_bf16 256x128"),
    Fastest(1, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(4, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(8, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(12, 9216, 4096, "rs_e5m2 64x128 streamK", "stream 16x256 splitK4"),
    Fastest(16, 9216, 4096, "rs_e5m2 64x128 streamK", "stream 16x256 splitK4"),
    Fastest(192, 9216, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(2048, 10240, 8192, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(32, 14336, 4096, "rs_e5m2 64x128", "rs_bf16 64x128"),
    Fastest(128, 14336, 4096, "rs_e5m2 128x128", "rs_bf16 128x128"),
    Fastest(768, 14336, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1, 24576, 1536, "stream 8x128", "stream 8x128"),
    Fastest(256, 24576, 1536, "rs_e5m2 128x128", "rs_bf16 256x128"),
    Fastest(512, 28672, 8192, "rs_e5m2 128x128", "rs_bf16 256x128 streamK"),
]
# fmt: on
