/* The plugin, loaded: one set of calls for versions 8 and 12, and a place where ranks find each other's handles. */
#ifndef API_H
#define API_H
#include "net.h"
#include <stdatomic.h>

#define MAX_RANKS 8
#define MUST(call) do { ncclResult_t r_ = (call); if (r_) fail(#call, r_); } while (0)

/* What ranks share: NCCL's bootstrap would carry it. */
struct board {
  unsigned char handle[MAX_RANKS][MAX_RANKS][NCCL_NET_HANDLE_MAXSIZE]; /* from, to */
  atomic_int ready[MAX_RANKS][MAX_RANKS];
  atomic_int arrived;
};

struct net {
  int version;
  void *library, *ctx;
  const ncclNet_v8_t *v8;
  const ncclNet_v12_t *v12;
};

void fail(const char *what, int result) __attribute__((noreturn));
extern atomic_int warnings; /* what the plugin has logged */

void net_open(struct net *net, const char *path, int version);
void net_close(struct net *net);
ncclResult_t net_listen(struct net *net, void *handle, void **comm);
ncclResult_t net_connect(struct net *net, void *handle, void **comm);
ncclResult_t net_accept(struct net *net, void *listening, void **comm);
void *net_register(struct net *net, void *comm, void *data, size_t size);
void net_deregister(struct net *net, void *comm, void *mhandle);
ncclResult_t net_isend(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
ncclResult_t net_irecv(struct net *net, void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
ncclResult_t net_flush(struct net *net, void *comm, void *data, int size, void *mhandle, void **request);
ncclResult_t net_test(struct net *net, void *request, int *done, int *sizes);
void net_close_send(struct net *net, void *comm);
void net_close_recv(struct net *net, void *comm);
/* Makes the connections of a rank: `send[to]` and `recv[from]` where `links[from][to]`. */
void net_mesh(struct net *net, struct board *board, int rank, int ranks, char links[MAX_RANKS][MAX_RANKS], void **send, void **recv);
/* All ranks are here. */
void meet(struct board *board, int ranks, int round);
#endif
