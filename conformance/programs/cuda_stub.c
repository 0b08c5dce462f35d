/* libcuda.so.1 of a machine without a GPU: what NCCL's CUDA runtime (11.0) calls before NCCL chooses a network.
 * It says that there is one device. Memory is the host's, and kernels are found but cannot be launched.
 * The tables of cuGetExportTable are not documented; a runtime that calls others than these ends here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID_VALUE 1
#define NOT_FOUND 500
#define TABLE_ENTRIES 16

static char context[64], module[64], function[64], global[1 << 20];
static void *current;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
int cuDriverGetVersion(int *version) { return *version = 11000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int bytes, int device) { return (void)device, snprintf(name, bytes, "no GPU"), 0; }
int cuDeviceGetUuid(char *uuid, int device) { return (void)device, memset(uuid, 1, 16), 0; }
int cuDeviceGetPCIBusId(char *to, int bytes, int device) { return (void)device, snprintf(to, bytes, "0000:00:05.0"), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = (size_t)8 << 30, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
    case 1: *value = 1024; break;      /* threads of a block */
    case 8: *value = 48 << 10; break;  /* shared memory of a block */
    case 10: *value = 32; break;       /* threads of a warp */
    case 16: *value = 80; break;       /* multiprocessors */
    case 41: *value = 1; break;        /* addresses are those of the host */
    case 75: *value = 8; break;        /* compute capability 8.0 */
    case 97: *value = 160 << 10; break; /* shared memory of a block, on request */
    default: *value = 0;
  }
  return 0;
}

int cuDevicePrimaryCtxRetain(void **to, int device) { return (void)device, *to = context, 0; }
int cuDevicePrimaryCtxRelease(int device) { return (void)device, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  return (void)device, *flags = 0, *active = current != NULL, 0;
}
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuCtxGetCurrent(void **to) { return *to = current, 0; }
int cuCtxSetCurrent(void *to) { return current = to, 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, 0; }

int cuModuleGetFunction(void **to, void *from, const char *name) { return (void)from, (void)name, *to = function, 0; }
int cuModuleGetGlobal_v2(void **to, size_t *bytes, void *from, const char *name) {
  (void)from, (void)name;
  if (to) *to = global;
  if (bytes) *bytes = 8;
  return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *of) { return (void)of, *value = attribute ? 0 : 1024, 0; }
int cuFuncSetAttribute(void *of, int attribute, int value) { return (void)of, (void)attribute, (void)value, 0; }

int cuMemHostAlloc(void **to, size_t bytes, unsigned flags) { return (void)flags, (*to = calloc(1, bytes)) ? 0 : 2; }
int cuMemFreeHost(void *memory) { return free(memory), 0; }
int cuMemFree_v2(void *memory) { return free(memory), 0; }

/* The tables' functions, by their index. */
static int load_module(void **to) { return *to = module, 0; }
static int primary_context(void **to, int device) { return cuDevicePrimaryCtxRetain(to, device); }
static int hooks(void **to, size_t *bytes) {
  static char room[2][4096];
  static int next;
  return *to = room[next++ % 2], *bytes = sizeof room[0], 0;
}
static void *stored; /* of the only context */
static int store(void *of, void *manager, void *value) { return (void)of, (void)manager, stored = value, 0; }
static int forget(void *of, void *manager) { return (void)of, (void)manager, stored = NULL, 0; }
static int find(void **to, void *of, void *manager) { return (void)of, (void)manager, *to = stored, stored ? 0 : NOT_FOUND; }
static int nothing(void) { return 0; }

int cuGetExportTable(const void **table, const unsigned char *uuid) {
  static void *runtime[TABLE_ENTRIES], *tools[TABLE_ENTRIES], *storage[3], *thread[TABLE_ENTRIES];
  for (int i = 1; i < TABLE_ENTRIES; i++) runtime[i] = tools[i] = thread[i] = nothing;
  runtime[0] = tools[0] = thread[0] = (void *)sizeof runtime;
  runtime[1] = runtime[6] = runtime[8] = load_module, runtime[2] = primary_context;
  tools[2] = tools[6] = hooks;
  storage[0] = store, storage[1] = forget, storage[2] = find;
  static const struct {
    unsigned char begin[4];
    void *const *table;
  } known[] = {
      {{0x6b, 0xd5, 0xfb, 0x6c}, runtime},
      {{0xa0, 0x94, 0x79, 0x8c}, tools},
      {{0xc6, 0x93, 0x33, 0x6e}, storage},
      {{0x42, 0xd8, 0x5a, 0x81}, thread},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (!memcmp(known[i].begin, uuid, 4)) return *table = known[i].table, 0;
  return *table = NULL, NOT_FOUND;
}
