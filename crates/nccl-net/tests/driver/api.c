#define _GNU_SOURCE
#include "api.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

atomic_int warnings;

void fail(const char *what, int result) {
  fprintf(stderr, "FAILED: %s gave %d\n", what, result);
  exit(1);
}

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)flags, (void)line;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (level == NCCL_LOG_WARN) {
    warnings++;
    fprintf(stderr, "%s: %s\n", file, text);
  }
}

/* In NCCL's order: init, devices, getProperties of the first, getProperties of each. */
void net_open(struct net *net, const char *path, int version) {
  memset(net, 0, sizeof *net);
  net->version = version;
  net->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!net->library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  const char *symbols[] = {"ncclNetPlugin_v6", "ncclNetPlugin_v7", "ncclNetPlugin_v8", "ncclNetPlugin_v9",
                           "ncclNetPlugin_v10", "ncclNetPlugin_v11", "ncclNetPlugin_v12"};
  for (int i = 0; i < 7; i++)
    if (!dlsym(net->library, symbols[i])) fail(symbols[i], -1);
  int count = 0;
  ncclNetCommConfig_v11_t config = {.trafficClass = -1};
  if (version == 8) {
    net->v8 = dlsym(net->library, "ncclNetPlugin_v8");
    MUST(net->v8->init(logger));
    MUST(net->v8->devices(&count));
    for (int i = 0; i < count; i++) {
      ncclNetProperties_v8_t props;
      memset(&props, 0xff, sizeof props);
      MUST(net->v8->getProperties(i, &props));
      if (!props.name[0] || props.ptrSupport != NCCL_PTR_HOST || props.maxRecvs != 8 || props.speed <= 0 || props.netDeviceType)
        fail("properties", i);
    }
  } else {
    net->v12 = dlsym(net->library, "ncclNetPlugin_v12");
    MUST(net->v12->init(&net->ctx, 1, &config, logger, NULL));
    MUST(net->v12->devices(&count));
    for (int i = 0; i < count; i++) {
      ncclNetProperties_v12_t props;
      memset(&props, 0x7f, sizeof props);
      MUST(net->v12->getProperties(i, &props));
      if (!props.name[0] || props.ptrSupport != NCCL_PTR_HOST || props.maxRecvs != 8 || props.maxP2pBytes != 1 << 30 ||
          props.vProps.ndevs != 1 || props.vProps.devs[0] != i || props.railId != -1 || props.planeId != -1)
        fail("properties", i);
    }
    MUST(net->v12->setNetAttr(net->ctx, NULL));
  }
  if (count < 1) fail("devices", count);
}

void net_close(struct net *net) {
  if (net->v12) MUST(net->v12->finalize(net->ctx));
  if (dlclose(net->library)) fail("dlclose", -1);
}

#define BOTH(call8, call12) (net->version == 8 ? net->v8->call8 : net->v12->call12)

ncclResult_t net_listen(struct net *net, void *handle, void **comm) {
  return BOTH(listen(0, handle, comm), listen(net->ctx, 0, handle, comm));
}
ncclResult_t net_connect(struct net *net, void *handle, void **comm) {
  void *device = NULL;
  return BOTH(connect(0, handle, comm, &device), connect(net->ctx, 0, handle, comm, &device));
}
ncclResult_t net_accept(struct net *net, void *listening, void **comm) {
  void *device = NULL;
  return BOTH(accept(listening, comm, &device), accept(listening, comm, &device));
}
void *net_register(struct net *net, void *comm, void *data, size_t size) {
  void *mhandle = NULL;
  MUST(BOTH(regMr(comm, data, size, NCCL_PTR_HOST, &mhandle), regMr(comm, data, size, NCCL_PTR_HOST, &mhandle)));
  return mhandle;
}
void net_deregister(struct net *net, void *comm, void *mhandle) {
  MUST(BOTH(deregMr(comm, mhandle), deregMr(comm, mhandle)));
}
ncclResult_t net_isend(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request) {
  return BOTH(isend(comm, data, (int)size, tag, mhandle, request), isend(comm, data, size, tag, mhandle, NULL, request));
}
ncclResult_t net_irecv(struct net *net, void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request) {
  int small[8];
  for (int i = 0; i < n && i < 8; i++) small[i] = (int)sizes[i];
  return BOTH(irecv(comm, n, data, small, tags, mhandles, request), irecv(comm, n, data, sizes, tags, mhandles, NULL, request));
}
ncclResult_t net_flush(struct net *net, void *comm, void *data, int size, void *mhandle, void **request) {
  return BOTH(iflush(comm, 1, &data, &size, &mhandle, request), iflush(comm, 1, &data, &size, &mhandle, request));
}
ncclResult_t net_test(struct net *net, void *request, int *done, int *sizes) {
  return BOTH(test(request, done, sizes), test(request, done, sizes));
}
void net_close_send(struct net *net, void *comm) { MUST(BOTH(closeSend(comm), closeSend(comm))); }
void net_close_recv(struct net *net, void *comm) { MUST(BOTH(closeRecv(comm), closeRecv(comm))); }

/* All listen first; then connect and accept are called in turns until each has given a comm, as NCCL's proxies do. */
void net_mesh(struct net *net, struct board *board, int rank, int ranks, char links[MAX_RANKS][MAX_RANKS], void **send, void **recv) {
  void *listening[MAX_RANKS] = {0};
  for (int from = 0; from < ranks; from++)
    if (links[from][rank]) {
      MUST(net_listen(net, board->handle[from][rank], &listening[from]));
      board->ready[from][rank] = 1;
    }
  for (int missing = 1; missing;) {
    missing = 0;
    for (int peer = 0; peer < ranks; peer++) {
      if (links[rank][peer] && !send[peer]) {
        missing = 1;
        if (board->ready[rank][peer]) MUST(net_connect(net, board->handle[rank][peer], &send[peer]));
      }
      if (links[peer][rank] && !recv[peer]) {
        missing = 1;
        MUST(net_accept(net, listening[peer], &recv[peer]));
        if (recv[peer]) MUST(BOTH(closeListen(listening[peer]), closeListen(listening[peer])));
      }
    }
    sched_yield();
  }
}

void meet(struct board *board, int ranks, int round) {
  board->arrived++;
  while (board->arrived < ranks * (round + 1)) sched_yield();
}
