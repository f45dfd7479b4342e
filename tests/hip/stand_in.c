/* A stand-in for libamdhip64.so: each function asks the Python callback that a test installed.
 *
 * Only the first group is what a launch may use. The second group waits, copies or allocates;
 * it is here so that a test sees it if it is ever called.
 */

#define FORWARD(result, name, parameters, arguments) \
    result(*on_##name) parameters;                   \
    result name parameters { return on_##name arguments; }

FORWARD(int, hipGetDevice, (int *device), (device))
FORWARD(int, hipSetDevice, (int device), (device))
FORWARD(int, hipGetLastError, (void), ())
FORWARD(const char *, hipGetErrorString, (int error), (error))
FORWARD(int, hipModuleLoadData, (void **module, const void *image), (module, image))
FORWARD(int, hipModuleGetFunction, (void **function, void *module, const char *name),
        (function, module, name))
FORWARD(int, hipModuleLaunchKernel,
        (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
         unsigned block_y, unsigned block_z, unsigned lds, void *stream, void **params,
         void **extra),
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, lds, stream, params, extra))

FORWARD(int, hipDeviceSynchronize, (void), ())
FORWARD(int, hipStreamSynchronize, (void *stream), (stream))
FORWARD(int, hipMalloc, (void **pointer, unsigned long size), (pointer, size))
FORWARD(int, hipMemcpy, (void *to, const void *from, unsigned long size, int kind),
        (to, from, size, kind))
