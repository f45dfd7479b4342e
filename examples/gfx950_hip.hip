// y = a * x + y, one number a thread, in HIP's C++. Without ROCm's headers, clang 20 or newer compiles it:
//
//     clang++ -x hip --cuda-device-only --offload-arch=gfx950 -nogpuinc -nogpulib -O2 -S
//         gfx950_hip.hip -o gfx950_hip.s
//
// hipcc takes the same file, with `#include <hip/hip_runtime.h>` in place of the next line.
#define __global__ __attribute__((global))

extern "C" __global__ void axpy(const float *x, float *y, float a, int n) {
    int i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() +
            __builtin_amdgcn_workitem_id_x();
    if (i < n)
        y[i] = a * x[i] + y[i];
}
