/* NCCL's network plugin interface, versions 8 and 12, and properties of the others, as its documentation lays them out. */
#ifndef NET_H
#define NET_H
#include <stddef.h>
#include <stdint.h>

#define HANDLE_BYTES 128
typedef int result_t;
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, speed, port;
  float latency;
  int maxComms, maxRecvs;
} props_v6;

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
} props_v7;

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
} props_v8;

typedef struct { int ndevs, devs[4]; } vdevice4;
typedef struct { int ndevs, devs[8]; } vdevice8;

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, forceFlush, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
  vdevice4 vProps;
  size_t maxP2pBytes, maxCollBytes;
} props_v9;

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, forceFlush, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
  vdevice4 vProps;
  size_t maxP2pBytes, maxCollBytes;
  int maxMultiRequestSize;
} props_v11;

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, forceFlush, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
  vdevice8 vProps;
  size_t maxP2pBytes, maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId, planeId;
} props_v12;

typedef struct {
  const char *name;
  result_t (*init)(logger_t);
  result_t (*devices)(int *);
  result_t (*getProperties)(int, props_v8 *);
  result_t (*listen)(int, void *handle, void **listenComm);
  result_t (*connect)(int, void *handle, void **sendComm, void **deviceHandle);
  result_t (*accept)(void *listenComm, void **recvComm, void **deviceHandle);
  result_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  result_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  result_t (*deregMr)(void *comm, void *mhandle);
  result_t (*isend)(void *comm, void *data, int size, int tag, void *mhandle, void **request);
  result_t (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  result_t (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
  result_t (*test)(void *request, int *done, int *sizes);
  result_t (*closeSend)(void *);
  result_t (*closeRecv)(void *);
  result_t (*closeListen)(void *);
  result_t (*getDeviceMr)(void *comm, void *mhandle, void **deviceHandle);
  result_t (*irecvConsumed)(void *comm, int n, void *request);
} net_v8;

typedef struct {
  const char *name;
  result_t (*init)(void **ctx, uint64_t commId, int *config, logger_t, void *profiler);
  result_t (*devices)(int *);
  result_t (*getProperties)(int, props_v12 *);
  result_t (*listen)(void *ctx, int, void *handle, void **listenComm);
  result_t (*connect)(void *ctx, int, void *handle, void **sendComm, void **deviceHandle);
  result_t (*accept)(void *listenComm, void **recvComm, void **deviceHandle);
  result_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  result_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  result_t (*deregMr)(void *comm, void *mhandle);
  result_t (*isend)(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
  result_t (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles, void **request);
  result_t (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
  result_t (*test)(void *request, int *done, int *sizes);
  result_t (*closeSend)(void *);
  result_t (*closeRecv)(void *);
  result_t (*closeListen)(void *);
  result_t (*getDeviceMr)(void *comm, void *mhandle, void **deviceHandle);
  result_t (*irecvConsumed)(void *comm, int n, void *request);
  result_t (*makeVDevice)(int *, vdevice8 *);
  result_t (*finalize)(void *ctx);
  result_t (*setNetAttr)(void *ctx, void *attributes);
} net_v12;

/* Layouts of 64-bit machines. */
_Static_assert(sizeof(props_v6) == 48 && offsetof(props_v6, maxRecvs) == 44, "v6");
_Static_assert(sizeof(props_v7) == 56 && offsetof(props_v7, netDeviceVersion) == 52, "v7");
_Static_assert(sizeof(props_v8) == 64 && offsetof(props_v8, regIsGlobal) == 28, "v8");
_Static_assert(offsetof(props_v8, netDeviceVersion) == 56, "v8");
_Static_assert(sizeof(props_v9) == 104 && offsetof(props_v9, vProps) == 64, "v9");
_Static_assert(offsetof(props_v9, maxP2pBytes) == 88, "v9");
_Static_assert(sizeof(props_v11) == 112 && offsetof(props_v11, maxMultiRequestSize) == 104, "v11");
_Static_assert(sizeof(props_v12) == 128 && offsetof(props_v12, maxP2pBytes) == 104, "v12");
_Static_assert(offsetof(props_v12, railId) == 124 && offsetof(props_v12, planeId) == 126, "v12");
_Static_assert(sizeof(net_v8) == 19 * 8 && sizeof(net_v12) == 22 * 8, "tables");
#endif
