/* A pretended CUDA driver, as libcuda.so.1: memory of the GPU is that of the host, and a kernel whose
 * name has "matmul" in it multiplies matrices of the sizes in FAKE_DIMS, "5,7,3;2,3,4" for two
 * launches. Others do nothing. What is launched is written to the file FAKE_LOG. The function that
 * FAKE_FAIL names fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
struct config {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};
struct step {
  int is_copy;
  address to, from;
  size_t nbytes;
  char symbol[200];
  float *arguments[3];
};
static struct step steps[200];
static int count, capturing, contexts;
static long long allocated;

static int fails(const char *name) {
  const char *wanted = getenv("FAKE_FAIL");
  return wanted && !strcmp(wanted, name) ? 999 : 0;
}
static int number(const char *name, int otherwise) {
  return getenv(name) ? atoi(getenv(name)) : otherwise;
}
static FILE *book(void) { return fopen(getenv("FAKE_LOG") ? getenv("FAKE_LOG") : "/dev/null", "a"); }

int cuInit(unsigned flags) { return flags ? 1 : fails("cuInit"); }
int cuGetErrorName(int code, const char **text) { return *text = code == 999 ? "FAKE_ERROR" : "OTHER", 0; }
int cuGetErrorString(int code, const char **text) { return *text = code == 999 ? "as wanted" : "no", 0; }
int cuDeviceGetCount(int *n) { return *n = number("FAKE_GPUS", 1), 0; }
int cuDeviceGet(int *device, int index) { return *device = 7 + index, 0; }
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, size, "Fake %d", device) < 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  if (device != 7) return 1;
  *value = which == 75 ? number("FAKE_MAJOR", 9) : number("FAKE_MINOR", 0);
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &contexts, device != 7; }
int cuDevicePrimaryCtxRelease_v2(int device) {
  FILE *log = book();
  fprintf(log, "released, %lld bytes are left, %d contexts\n", allocated, contexts);
  fclose(log);
  return device != 7;
}
int cuCtxPushCurrent_v2(void *context) { return contexts++, context != &contexts; }
int cuCtxPopCurrent_v2(void **context) { return *context = &contexts, contexts-- < 1; }
int cuMemAlloc_v2(address *out, size_t nbytes) {
  size_t *block = aligned_alloc(256, 256 + (nbytes + 255) / 256 * 256);
  if (fails("cuMemAlloc_v2")) return 999;
  *block = nbytes;
  allocated += (long long)nbytes;
  memset((char *)block + 256, 0xA5, nbytes);
  return *out = (address)((char *)block + 256), 0;
}
int cuMemFree_v2(address at) {
  size_t *block = (size_t *)(at - 256);
  allocated -= (long long)*block;
  return free(block), 0;
}
int cuMemcpyAsync(address to, address from, size_t nbytes, void *stream) {
  struct step copy = {.is_copy = 1, .to = to, .from = from, .nbytes = nbytes};
  if (stream != &count) return 1;
  if (capturing) return steps[count++] = copy, 0;
  return memcpy((void *)to, (void *)from, nbytes), fails("cuMemcpyAsync");
}
int cuModuleLoadData(void **module, const void *code) {
  if (memcmp(code, "\177ELF", 4)) return 200;
  return *module = malloc(1), fails("cuModuleLoadData");
}
int cuModuleUnload(void *module) { return free(module), 0; }
int cuModuleGetFunction(void **function, void *module, const char *symbol) {
  return *function = strdup(symbol), !module;
}
int cuFuncSetAttribute(void *function, int which, int value) { return !function || which != 8 || value <= 0; }
int cuLaunchKernelEx(const struct config *c, void *function, void **arguments, void **extra) {
  struct step launch = {0};
  FILE *log = book();
  if (!capturing || extra || fails("cuLaunchKernelEx")) return 999;
  fprintf(log, "%s %u %u %u %u\n", (char *)function, c->grid[0], c->block[0], c->shared, c->count);
  fclose(log);
  snprintf(launch.symbol, sizeof launch.symbol, "%s", (char *)function);
  if (getenv("FAKE_DIMS") && strstr(launch.symbol, "matmul"))
    for (int k = 0; k < 3; k++) launch.arguments[k] = *(float **)arguments[k];
  return steps[count++] = launch, 0;
}
int cuTensorMapEncodeTiled(void *map, int dtype, unsigned rank, void *base, const void *shape,
                           const void *strides, const unsigned *box, const unsigned *each, int interleave,
                           int swizzle, int promotion, int fill) {
  FILE *log = book();
  fprintf(log, "map %d %u box %u %u %d%d%d%d\n", dtype, rank, box[0], box[1], interleave, swizzle,
          promotion, fill);
  fclose(log);
  return (size_t)map % 64 || !base || !shape || !strides || !each;
}
int cuStreamCreate(void **stream, unsigned flags) { return *stream = &count, flags != 1; }
int cuStreamDestroy_v2(void *stream) { return stream != &count; }
int cuStreamSynchronize(void *stream) { return stream != &count; }
int cuStreamBeginCapture_v2(void *stream, int mode) { return capturing = 1, stream != &count || mode != 2; }
int cuStreamEndCapture(void *stream, void **graph) { return capturing = 0, *graph = steps, stream != &count; }
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  return *executable = graph, flags != 0;
}
int cuGraphDestroy(void *graph) { return graph != steps; }
int cuGraphExecDestroy(void *graph) { return graph != steps; }
int cuGraphLaunch(void *graph, void *stream) {
  const char *dims = getenv("FAKE_DIMS");
  for (int s = 0; s < count; s++) {
    float **a = steps[s].arguments;
    int m, n, k, used;
    if (steps[s].is_copy) memcpy((void *)steps[s].to, (void *)steps[s].from, steps[s].nbytes);
    if (!a[0] || !dims || sscanf(dims, "%d,%d,%d%n", &m, &k, &n, &used) != 3) continue;
    dims += used + 1;
    for (int i = 0; i < m * n; i++) {
      float sum = 0;
      for (int j = 0; j < k; j++) sum += a[0][i / n * k + j] * a[1][j * n + i % n];
      a[2][i] = sum;
    }
  }
  return stream != &count || graph != steps;
}
