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
    [0.644, 0.0, 0.0, 0.05447, 0.0, 0.6818, 32.09, 0.2795, 0.7232, 0.6879, 0.7006],  # stream 8x32
    [1.027, 0.0, 0.0, 0.08844, 0.0, 0.6104, 22.4, 0.1701, 0.7504, 0.09454, 0.8075],  # stream 8x64
    [1.205, 0.0, 0.0, 0.08405, 0.0, 0.6796, 22.16, 0.1264, 0.9784, 0.0, 0.8077],  # stream 8x128
    [1.651, 0.0, 0.0, 0.09672, 0.0, 0.5854, 20.76, 0.06973, 0.8579, 0.0, 0.8114],  # stream 8x256
    [0.5333, 0.004185, 0.1658, 0.0505, 0.0, 0.6993, 8.009, 0.4474, 1.623, 1.783, 0.4361],  # stream 16x32
    [0.8877, 0.0, 0.0, 0.1764, 0.0, 0.397, 5.188, 0.2599, 0.9165, 0.0, 0.849],  # stream 16x64
    [1.069, 0.0, 0.0, 0.138, 0.0, 0.8777, 7.706, 0.1678, 1.096, 0.0, 0.8767],  # stream 16x128
    [1.712, 0.0, 0.0, 0.1261, 0.0, 0.9421, 4.514, 0.1027, 0.9923, 0.0, 0.8558],  # stream 16x256
    [0.1846, 0.05944, 0.09218, 0.7324, 0.0005748, 0.4653, 5.081, 0.0, 0.8408, 0.6579, 1.327],  # stream 32x32
    [0.4188, 0.0, 0.2794, 0.5433, 0.0, 0.5267, 2.667, 0.0, 0.6297, 2.897, 1.152],  # stream 32x64
    [0.573, 0.0, 0.5782, 0.4327, 0.0, 0.6849, 0.7662, 0.0, 0.3687, 2.129, 1.222],  # stream 32x128
    [1.039, 0.0, 0.9147, 0.3059, 0.0, 1.473, 0.0, 0.0, 0.6512, 2.317, 0.9641],  # stream 32x256
    [1.034, 0.0, 0.7994, 0.7798, 0.0, 0.9377, 0.8022, 0.0, 0.4392, 6.132, 0.7746],  # stream 64x64
    [1.387, 0.0, 1.279, 0.5856, 0.0, 1.346, 0.3294, 0.0, 0.4795, 5.851, 0.6955],  # stream 64x128
    [0.6334, 0.2341, 2.789, 0.2922, 0.1503, 2.437, 1.313, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 64x128
    [1.559, 0.1407, 2.894, 0.3727, 0.6422, 3.771, 1.141, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 128x128
    [3.382, 0.0, 1.158, 0.5834, 0.0, 5.093, 1.098, 0.0, 0.0, 0.0, 0.0],  # rs_bf16 256x128
    [2.893, 0.0, 0.0, 0.3098, 0.0, 1.27, 0.8586, 0.5748, 0.0, 0.0, 0.6841],  # ss_e5m2 128x128 prepared
    [1.005, 0.0145, 2.102, 0.295, 0.0102, 1.407, 0.8347, 0.04267, 0.2485, 0.0, 0.0],  # rs_e5m2 64x128
    [0.2891, 0.01475, 2.68, 0.3912, 0.1424, 1.803, 0.8262, 0.03975, 0.7187, 0.0, 0.0],  # rs_e5m2 128x128
    [0.0, 0.0, 1.814, 0.318, 0.3313, 2.106, 0.6236, 0.02414, 1.124, 0.0, 1.703],  # rs_e5m2 64x128 streamK
    [0.0, 0.0, 1.973, 0.4403, 0.6514, 2.102, 0.7147, 0.02274, 1.802, 0.0, 2.331],  # rs_e5m2 128x128 streamK
    [4.51, 0.0, 0.9987, 0.2522, 0.0, 0.0, 0.04451, 0.7864, 0.0, 0.06393, 0.0],  # ss_bf16 128x128 prepared
    [0.0, 0.0, 0.08398, 0.324, 0.269, 3.93, 1.026, 0.0, 1.266, 0.0, 2.012],  # rs_bf16 64x128 streamK
    [0.0, 0.0, 0.0, 0.3776, 0.4883, 5.138, 0.8487, 0.0, 2.082, 0.0, 2.463],  # rs_bf16 128x128 streamK
    [0.0, 0.0, 0.0, 0.6165, 0.9842, 5.754, 0.9133, 0.0, 3.104, 0.0, 4.241],  # rs_bf16 256x128 streamK
    [3.13, 0.0, 0.0, 0.7405, 0.0, 1.696, 0.8515, 0.02824, 2.85, 0.0, 0.0],  # rs_e5m2 256x128
    [1.291, 0.0, 0.0, 0.801, 1.152, 2.979, 0.9597, 0.03009, 3.845, 0.0, 4.018],  # rs_e5m2 256x128 streamK
    [1.387, 0.0, 3.26, 0.371, 3.441, 0.0, 0.0, 0.0, 0.0, 4.332, 2.319],  # ss_e4m3 64x256, fp8 x fp8
    [1.387, 0.0, 2.21, 0.338, 2.61, 0.0, 0.0, 0.0, 0.0, 1.822, 3.606],  # ss_e4m3 128x128, fp8 x fp8
    [0.902, 0.0, 1.782, 0.37, 6.181, 0.0, 0.0, 0.0, 0.0, 5.23, 4.357],  # ss_e4m3 64x256, fp8_block x fp8_block_2d
    [0.902, 0.0, 1.008, 0.407, 5.912, 0.0, 0.0, 0.0, 0.0, 3.723, 4.944],  # ss_e4m3 128x128, fp8_block x fp8_block_2d
    [0.459, 0.0, 3.668, 0.325, 2.121, 0.0, 1.796, 0.87, 0.0, 0.0, 0.0],  # ss_e4m3 64x256 prepared, mxfp8 x mxfp8
    [0.459, 0.0, 4.386, 0.296, 2.121, 0.0, 1.796, 0.87, 0.0, 0.0, 0.0],  # ss_e4m3 128x128 prepared, mxfp8 x mxfp8
    [2.54, 0.0, 1.732, 0.526, 1.273, 0.0, 0.0, 0.0, 0.0, 1.816, 1.938],  # rs_e4m3 64x128, mxfp8 x mxfp8
    [2.54, 0.0, 2.575, 0.823, 1.273, 0.0, 0.0, 0.0, 0.0, 1.816, 1.938],  # rs_e4m3 128x128, mxfp8 x mxfp8
    [0.437, 0.0, 3.424, 0.334, 2.463, 0.0, 1.371, 0.631, 0.0, 0.0, 0.0],  # ss_e4m3 64x256 prepared, mxfp8 x mxfp4
    [0.437, 0.0, 3.595, 0.313, 2.463, 0.0, 1.371, 0.631, 0.0, 0.0, 0.0],  # ss_e4m3 128x128 prepared, mxfp8 x mxfp4
    [2.522, 0.0, 1.494, 0.437, 1.15, 0.0, 0.0, 0.0, 0.0, 1.487, 1.834],  # rs_e4m3 64x128, mxfp8 x mxfp4
    [2.522, 0.0, 3.075, 0.672, 1.15, 0.0, 0.0, 0.0, 0.0, 1.487, 1.834],  # rs_e4m3 128x128, mxfp8 x mxfp4
]
comptime EXCEPTIONS = [
    Fastest(1, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(4, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(8, 512, 2880, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(192, 512, 2880, "rs_e5m2 64x128 splitK4", "rs_bf16 64x128 splitK4"),
    Fastest(512, 512, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(32, 640, 4096, "stream 32x64 splitK8", "stream 32x64 splitK8"),
    Fastest(512, 640, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(768, 640, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(1536, 640, 4096, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 splitK2"),
    Fastest(1, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(4, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(8, 768, 3072, "stream 8x32 splitK8", "stream 8x32 splitK8"),
    Fastest(96, 768, 3072, "rs_e5m2 64x128 splitK4", "stream 64x128 splitK8"),
    Fastest(128, 768, 3072, "rs_e5m2 64x128 splitK4", "stream 64x128 splitK8"),
    Fastest(768, 768, 3072, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(1, 1024, 8192, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(4, 1024, 8192, "stream 8x64 splitK4", "stream 8x64 splitK4"),
    Fastest(192, 1024, 8192, "rs_e5m2 64x128 splitK4", "rs_bf16 64x128 streamK"),
    Fastest(256, 1024, 8192, "rs_e5m2 64x128 streamK", "rs_bf16 64x128 streamK"),
    Fastest(1024, 1024, 8192, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 splitK2"),
    Fastest(1, 1280, 5120, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(4, 1280, 5120, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(8, 1280, 5120, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(384, 1280, 5120, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(1024, 1280, 5120, "ss_e5m2 128x128 prepared", "ss_bf16 128x128 prepared"),
    Fastest(2048, 1280, 5120, "rs_e5m2 128x128 streamK", "ss_bf16 128x128 prepared"),
    Fastest(48, 1536, 2048, "rs_e5m2 64x128 splitK8", "stream 32x128 splitK4"),
    Fastest(64, 1536, 2048, "rs_e5m2 64x128 splitK8", "stream 32x128 splitK4"),
    Fastest(96, 1536, 2048, "rs_e5m2 64x128 splitK4", "stream 64x128 splitK4"),
    Fastest(128, 1536, 2048, "rs_e5m2 64x128 splitK4", "stream 64x128 splitK4"),
    Fastest(1536, 1536, 2048, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1, 1536, 7168, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(4, 1536, 7168, "stream 8x32 splitK4", "stream 8x32 splitK4"),
    Fastest(8, 1536, 7168, "stream 8x64 splitK8", "stream 8x64 splitK8"),
    Fastest(256, 1536, 7168, "rs_e5m2 128x128 splitK4", "rs_bf16 128x128 streamK"),
    Fastest(384, 1536, 7168, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(1024, 1536, 7168, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(96, 2048, 768, "rs_e5m2 64x128 splitK2", "stream 64x64 splitK2"),
    Fastest(128, 2048, 768, "rs_e5m2 64x128 splitK2", "stream 64x64 splitK2"),
    Fastest(192, 2048, 768, "rs_e5m2 64x128", "rs_bf16 64x128"),
    Fastest(256, 2048, 768, "rs_e5m2 64x128", "rs_bf16 64x128"),
    Fastest(512, 2048, 768, "rs_e5m2 64x128 streamK", "rs_bf16 64x128 streamK"),
    Fastest(1024, 2048, 768, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(8, 2112, 7168, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(96, 2560, 2560, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(512, 2560, 2560, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(48, 2880, 512, "rs_e5m2 64x128 splitK4", "stream 64x64 splitK2"),
    Fastest(64, 2880, 512, "rs_e5m2 64x128 splitK2", "stream 32x128 splitK2"),
    Fastest(256, 2880, 512, "rs_e5m2 64x128 streamK", "rs_bf16 64x128"),
    Fastest(512, 2880, 512, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(768, 2880, 512, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(96, 2880, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(192, 2880, 2880, "rs_e5m2 128x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(512, 2880, 2880, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(768, 2880, 2880, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(1024, 2880, 2880, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(12, 2880, 4096, "stream 16x256 splitK8", "stream 16x256 splitK8"),
    Fastest(16, 2880, 4096, "stream 16x256 splitK8", "stream 16x256 splitK8"),
    Fastest(96, 2880, 4096, "rs_e5m2 128x128 splitK4", "rs_bf16 128x128 splitK4"),
    Fastest(128, 2880, 4096, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(192, 2880, 4096, "rs_e5m2 128x128 splitK2", "rs_bf16 64x128 streamK"),
    Fastest(384, 2880, 4096, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(768, 2880, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(4096, 2880, 4096, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(1, 3072, 1536, "stream 8x32", "stream 8x32"),
    Fastest(4, 3072, 1536, "stream 8x32", "stream 8x32"),
    Fastest(12, 3072, 1536, "rs_e5m2 64x128 splitK4", "stream 16x256 splitK8"),
    Fastest(16, 3072, 1536, "rs_e5m2 64x128 splitK4", "stream 16x256 splitK8"),
    Fastest(768, 3072, 1536, "rs_e5m2 128x128 streamK", "rs_bf16 128x128 streamK"),
    Fastest(96, 3584, 3584, "rs_e5m2 64x128 splitK2", "rs_bf16 128x128 splitK4"),
    Fastest(512, 3584, 3584, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(48, 4096, 512, "stream 64x64 splitK2", "stream 64x64 splitK2"),
    Fastest(64, 4096, 512, "stream 64x64 splitK2", "stream 64x64 splitK2"),
    Fastest(192, 4096, 512, "rs_e5m2 64x128 streamK", "rs_bf16 64x128"),
    Fastest(256, 4096, 512, "rs_e5m2 64x128 streamK", "rs_bf16 64x128 streamK"),
    Fastest(512, 4096, 512, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(768, 4096, 512, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(1024, 4096, 512, "rs_e5m2 128x128", "rs_bf16 256x128"),
    Fastest(1, 4096, 4096, "stream 8x32", "stream 8x32"),
    Fastest(8, 4096, 4096, "stream 8x32 splitK2", "stream 8x32 splitK2"),
    Fastest(16, 4096, 4096, "rs_e5m2 64x128 splitK2", "stream 16x256 splitK8"),
    Fastest(1024, 4096, 4096, "rs_e5m2 256x128", "rs_bf16 256x128 streamK"),
    Fastest(8, 4096, 14336, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(192, 4096, 14336, "rs_e5m2 128x128 splitK2", "rs_bf16 256x128 streamK"),
    Fastest(256, 4096, 14336, "rs_e5m2 128x128 splitK2", "rs_bf16 256x128 streamK"),
    Fastest(1024, 4096, 14336, "rs_e5m2 256x128", "rs_bf16 256x128 streamK"),
    Fastest(1536, 4096, 14336, "rs_e5m2 128x128", "rs_bf16 256x128 streamK"),
    Fastest(2048, 4096, 14336, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(1024, 4608, 7168, "rs_e5m2 256x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1, 5120, 1280, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(4, 5120, 1280, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 5120, 1280, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(24, 5120, 1280, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(32, 5120, 1280, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(384, 5120, 1280, "rs_e5m2 128x128", "ss_bf16 128x128 prepared"),
    Fastest(512, 5120, 1280, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(768, 5120, 1280, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(24, 5120, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(32, 5120, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(1536, 5120, 2880, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(1, 5120, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(4, 5120, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 5120, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(1536, 5120, 4096, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(12, 5760, 2880, "rs_e5m2 64x128 splitK2", "stream 16x256 splitK8"),
    Fastest(24, 5760, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(32, 5760, 2880, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(1, 6144, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(4, 6144, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(1536, 6144, 2048, "ss_e5m2 128x128 prepared", "ss_bf16 128x128 prepared"),
    Fastest(1, 6144, 4096, "stream 8x32", "stream 8x32"),
    Fastest(4, 6144, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(8, 6144, 4096, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(12, 6144, 4096, "rs_e5m2 64x128 splitK2", "stream 16x256 splitK8"),
    Fastest(16, 6144, 4096, "rs_e5m2 64x128 splitK2", "stream 16x256 splitK8"),
    Fastest(1, 7168, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(4, 7168, 2048, "stream 8x256 splitK8", "stream 8x256 splitK8"),
    Fastest(1024, 7168, 2048, "ss_e5m2 128x128 prepared", "rs_bf16 256x128"),
    Fastest(12, 7168, 16384, "rs_e5m2 64x128 splitK2", "stream 16x256 splitK8"),
    Fastest(24, 7168, 16384, "rs_e5m2 64x128 streamK", "rs_bf16 64x128 streamK"),
    Fastest(512, 8192, 8192, "rs_e5m2 256x128", "rs_bf16 256x128 streamK"),
    Fastest(48, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(64, 8192, 28672, "rs_e5m2 64x128 splitK2", "rs_bf16 64x128 splitK2"),
    Fastest(96, 8192, 28672, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(128, 8192, 28672, "rs_e5m2 128x128 splitK2", "rs_bf16 128x128 streamK"),
    Fastest(512, 8192, 28672, "rs_e5m2 256x128", "rs_bf16 256x128 streamK"),
    Fastest(1, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(4, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(8, 9216, 4096, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(192, 9216, 4096, "rs_e5m2 128x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1, 10240, 8192, "stream 8x256 splitK4", "stream 8x256 splitK4"),
    Fastest(512, 10240, 8192, "rs_e5m2 256x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(96, 14336, 4096, "rs_e5m2 128x128", "rs_bf16 128x128"),
    Fastest(128, 14336, 4096, "rs_e5m2 128x128", "rs_bf16 128x128"),
    Fastest(1024, 14336, 4096, "ss_e5m2 128x128 prepared", "rs_bf16 256x128 streamK"),
    Fastest(384, 18944, 3584, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(512, 24576, 1536, "rs_e5m2 256x128", "rs_bf16 256x128"),
    Fastest(96, 28672, 8192, "rs_e5m2 128x128", "rs_bf16 128x128 streamK"),
    Fastest(512, 28672, 8192, "rs_e5m2 256x128 streamK", "rs_bf16 256x128 streamK"),
    Fastest(1024, 28672, 8192, "rs_e5m2 256x128", "rs_bf16 256x128"),
]
# fmt: on
