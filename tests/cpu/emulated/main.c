/* Runs calls of the kernels without Python and without Mojo's runtime.

   The file that is named is an image of memory; results are written into it. Words of 64 bits:

       word 0     the address that the image is mapped at
       word 1     the number of calls
       word 2     a call: its function, by its place in `functions`
       word 3     the address of its arguments
       ...        further calls */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t mx_quantize(int64_t call);
int64_t mx_dequantize(int64_t call);
int64_t mx_relayout(int64_t call);
int64_t mx_multiply(int64_t call);

static int64_t (*const functions[])(int64_t) = {mx_quantize, mx_dequantize, mx_relayout,
                                                mx_multiply};

/* What the kernels take from Mojo's runtime: memory, and one global, the slot of their scratch. */

void *KGEN_CompilerRT_AlignedAlloc(size_t alignment, size_t size) {
  return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void KGEN_CompilerRT_AlignedFree(void *block) { free(block); }

void *KGEN_CompilerRT_GetOrCreateGlobal(const char *name, size_t length, void *(*create)(void),
                                        void (*destroy)(void *)) {
  static void *global;
  static const char *owner;
  (void)length, (void)destroy;
  if (!global) global = create(), owner = name;
  if (owner != name) fputs("main.c knows one global only\n", stderr), abort();
  return global;
}

/* Errors ask for it; none leaves a kernel. */
int64_t KGEN_CompilerRT_GetStackTrace(char **text, int64_t depth) {
  (void)text, (void)depth;
  return 0;
}

/* The kernels print where they give up. */
int KGEN_CompilerRT_fprintf(FILE *file, const char *format, ...) {
  (void)file;
  fputs(format, stderr);
  abort();
}

int main(int count, char **arguments) {
  int file = count == 2 ? open(arguments[1], O_RDWR) : -1;
  struct stat status;
  int64_t header[2];
  if (file < 0 || fstat(file, &status) || pread(file, header, sizeof header, 0) != sizeof header)
    return perror("cannot read the image"), 1;

  void *place = (void *)header[0];
  int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
  int64_t *words = mmap(place, status.st_size, PROT_READ | PROT_WRITE, flags, file, 0);
  if (words != place) return perror("cannot map the image"), 1;

  for (int64_t i = 0; i < words[1]; ++i) {
    int64_t function = words[2 + 2 * i], call = words[3 + 2 * i];
    if (functions[function](call)) return fprintf(stderr, "call %ld is refused\n", (long)i), 1;
  }
  return 0;
}
