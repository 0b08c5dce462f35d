/* Calls the plugin as NCCL does, without NCCL and without GPUs: driver PLUGIN VERSION SCENARIO RANKS BYTES WHERE
 * WHERE is "processes" or "threads". Prints "ok" and exits with 0 when all data was right. */
#define _GNU_SOURCE
#include "api.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct job {
  const char *plugin, *scenario;
  int version, ranks, rank;
  size_t bytes;
  struct board *board;
};

static unsigned char pattern(int rank, int round, size_t at) { return (unsigned char)(at * 131 + at / 251 + rank * 7 + round * 13 + 1); }
static void fill(unsigned char *p, size_t bytes, int rank, int round) {
  for (size_t i = 0; i < bytes; i++) p[i] = pattern(rank, round, i);
}
static void check(const unsigned char *p, size_t bytes, int rank, int round) {
  for (size_t i = 0; i < bytes; i++)
    if (p[i] != pattern(rank, round, i)) {
      fprintf(stderr, "byte %zu of %zu of rank %d, round %d\n", i, bytes, rank, round);
      fail("data", p[i]);
    }
}

static void *memory(size_t bytes) {
  void *p = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail("mmap", (int)(bytes >> 20));
  return p;
}

/* Waits for a request; gives the sizes. */
static void finish(struct net *net, void *request, int *sizes) {
  for (int done = 0; !done;) {
    MUST(net_test(net, request, &done, sizes));
    if (!done) sched_yield();
  }
}
static void *send_all(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle) {
  for (void *request = NULL;;) {
    MUST(net_isend(net, comm, data, size, tag, mhandle, &request));
    if (request) return request;
    sched_yield();
  }
}
static void *recv_one(struct net *net, void *comm, void *data, size_t size, int tag, void *mhandle) {
  for (void *request = NULL;;) {
    MUST(net_irecv(net, comm, 1, &data, &size, &tag, &mhandle, &request));
    if (request) return request;
    sched_yield();
  }
}

/* Each rank sends to the next; a send may be shorter than its receive, and empty. */
static void ring(struct net *net, struct job *job, void **send, void **recv) {
  int next = (job->rank + 1) % job->ranks, last = (job->rank + job->ranks - 1) % job->ranks;
  size_t sizes[] = {0, 1, 7, 127, 128, 129, 4096, 65539, job->bytes};
  unsigned char *from = memory(job->bytes + 64), *to = memory(job->bytes + 64);
  void *from_mr = net_register(net, send[next], from, job->bytes + 64), *to_mr = net_register(net, recv[last], to, job->bytes + 64);
  for (int round = 0; round < 9; round++) {
    size_t bytes = sizes[round];
    if (bytes > job->bytes) continue;
    fill(from, bytes, job->rank, round);
    memset(to, 0, bytes + 64);
    void *receive = recv_one(net, recv[last], to, bytes + 64, last, to_mr);
    void *sending = send_all(net, send[next], bytes ? from : NULL, bytes, job->rank, from_mr);
    int came = -1, sent = -1;
    finish(net, receive, &came);
    finish(net, sending, &sent);
    if ((size_t)came != bytes || (size_t)sent != bytes) fail("size", came);
    check(to, bytes, last, round);
    if (bytes) {
      void *flush = NULL;
      MUST(net_flush(net, recv[last], to, came, to_mr, &flush));
      if (flush) finish(net, flush, NULL);
    }
  }
  net_deregister(net, send[next], from_mr);
  net_deregister(net, recv[last], to_mr);
  munmap(from, job->bytes + 65);
  munmap(to, job->bytes + 65);
}

/* Sums go up a binary tree, the result comes down. */
static void tree(struct net *net, struct job *job, void **send, void **recv) {
  size_t words = job->bytes / 8 ? job->bytes / 8 : 1;
  uint64_t *sum = memory(words * 8), *other = memory(words * 8);
  for (size_t i = 0; i < words; i++) sum[i] = i + (uint64_t)job->rank;
  int parent = (job->rank - 1) / 2, first = 2 * job->rank + 1;
  for (int child = first; child < first + 2 && child < job->ranks; child++) {
    void *mr = net_register(net, recv[child], other, words * 8);
    finish(net, recv_one(net, recv[child], other, words * 8, child, mr), NULL);
    for (size_t i = 0; i < words; i++) sum[i] += other[i];
    net_deregister(net, recv[child], mr);
  }
  if (job->rank) {
    void *up = net_register(net, send[parent], sum, words * 8), *down = net_register(net, recv[parent], sum, words * 8);
    finish(net, send_all(net, send[parent], sum, words * 8, job->rank, up), NULL);
    finish(net, recv_one(net, recv[parent], sum, words * 8, parent, down), NULL);
    net_deregister(net, send[parent], up);
    net_deregister(net, recv[parent], down);
  }
  for (int child = first; child < first + 2 && child < job->ranks; child++) {
    void *mr = net_register(net, send[child], sum, words * 8);
    finish(net, send_all(net, send[child], sum, words * 8, job->rank, mr), NULL);
    net_deregister(net, send[child], mr);
  }
  uint64_t ranks = (uint64_t)job->ranks;
  for (size_t i = 0; i < words; i++)
    if (sum[i] != ranks * i + ranks * (ranks - 1) / 2) fail("sum", (int)i);
}

/* Groups of eight receives whose sends come in another order; tags that do not match get no request. */
static void groups(struct net *net, struct job *job, void **send, void **recv) {
  size_t each = job->bytes;
  unsigned char *data = memory(8 * each);
  if (job->rank == 0) {
    void *mr = net_register(net, send[1], data, 8 * each), *requests[8];
    for (int round = 0; round < 20; round++) {
      for (int i = 0; i < 8; i++) {
        int tag = (i * 3 + round) % 8;
        size_t size = tag == 5 ? 0 : each - (size_t)tag;
        fill(data + (size_t)tag * each, size, tag, round);
        requests[tag] = send_all(net, send[1], data + (size_t)tag * each, size, tag, mr);
        void *none = NULL;
        if (i < 7) MUST(net_isend(net, send[1], data, 1, 99, mr, &none));
        if (none) fail("a send whose tag nobody posted", 99);
      }
      for (int i = 0; i < 8; i++) finish(net, requests[i], NULL);
    }
    net_deregister(net, send[1], mr);
  } else {
    void *mr = net_register(net, recv[0], data, 8 * each);
    for (int round = 0; round < 20; round++) {
      void *parts[8], *mrs[8], *request = NULL;
      size_t sizes[8];
      int tags[8], came[8];
      for (int i = 0; i < 8; i++) parts[i] = data + (size_t)i * each, sizes[i] = each, tags[i] = i, mrs[i] = mr;
      while (!request) MUST(net_irecv(net, recv[0], 8, parts, sizes, tags, mrs, &request));
      finish(net, request, came);
      for (int i = 0; i < 8; i++) {
        size_t size = i == 5 ? 0 : each - (size_t)i;
        if ((size_t)came[i] != size) fail("size of a part", came[i]);
        check(parts[i], size, i, round);
      }
    }
    net_deregister(net, recv[0], mr);
  }
}

/* 32 requests under way on each side, for many rounds; then as many as the plugin takes. */
static void outstanding(struct net *net, struct job *job, void **send, void **recv) {
  unsigned char *data = memory(32 * job->bytes);
  void *comm = job->rank ? recv[0] : send[1], *requests[1024];
  void *mr = net_register(net, comm, data, 32 * job->bytes);
  for (int round = 0; round < 50; round++) {
    if (!job->rank)
      for (int i = 0; i < 32; i++) fill(data + (size_t)i * job->bytes, job->bytes, i, round);
    for (int i = 0; i < 32; i++) {
      unsigned char *part = data + (size_t)i * job->bytes;
      requests[i] = job->rank ? recv_one(net, comm, part, job->bytes, 0, mr) : send_all(net, comm, part, job->bytes, 0, mr);
    }
    for (int i = 31; i >= 0; i--) finish(net, requests[i], NULL);
    if (job->rank)
      for (int i = 0; i < 32; i++) check(data + (size_t)i * job->bytes, job->bytes, i, round);
  }
  int count = 0;
  if (job->rank) {
    void *part = data;
    size_t size = job->bytes;
    int tag = 0;
    for (; count < 1024; count++) {
      requests[count] = NULL;
      MUST(net_irecv(net, comm, 1, &part, &size, &tag, &mr, &requests[count]));
      if (!requests[count]) break;
    }
    if (count != 256) fail("receives until request == NULL", count);
  } else
    for (; count < 256; count++) {
      void *request = send_all(net, comm, data, job->bytes, 0, mr);
      finish(net, request, NULL);
    }
  for (int i = 0; job->rank && i < count; i++) finish(net, requests[i], NULL);
  net_deregister(net, comm, mr);
}

/* The last rank dies with requests of its peers under way: these must fail, with a reason in the log, and not hang. */
static void killed(struct net *net, struct job *job, void **send, void **recv) {
  unsigned char *data = memory(job->bytes);
  int peer = 1 - job->rank;
  void *to = net_register(net, recv[peer], data, job->bytes), *from = net_register(net, send[peer], data, job->bytes);
  if (job->rank) {
    finish(net, send_all(net, send[peer], data, job->bytes, 1, from), NULL);
    kill(getpid(), SIGKILL);
  }
  void *first = recv_one(net, recv[peer], data, job->bytes, 1, to), *second = recv_one(net, recv[peer], data, job->bytes, 1, to);
  finish(net, first, NULL);
  int done = 0;
  while (!net_test(net, second, &done, NULL) && !done) sched_yield();
  if (done) fail("a receive that nobody sent", done);
  void *request = NULL;
  while (!net_isend(net, send[peer], data, job->bytes, 0, from, &request) && !request) sched_yield();
  if (request) fail("a send that nobody receives", 0);
  if (warnings < 2) fail("reasons in the log", warnings);
  net_close_send(net, send[peer]);
  net_close_recv(net, recv[peer]);
  send[peer] = recv[peer] = NULL;
}

static void links_of(struct job *job, char links[MAX_RANKS][MAX_RANKS]) {
  for (int rank = 0; rank < job->ranks; rank++) {
    if (!strcmp(job->scenario, "tree")) {
      if (rank) links[rank][(rank - 1) / 2] = links[(rank - 1) / 2][rank] = 1;
    } else
      links[rank][(rank + 1) % job->ranks] = 1;
  }
}

static void once(struct job *job, int round) {
  struct net net;
  net_open(&net, job->plugin, job->version);
  void *send[MAX_RANKS] = {0}, *recv[MAX_RANKS] = {0};
  char links[MAX_RANKS][MAX_RANKS] = {{0}};
  links_of(job, links);
  net_mesh(&net, job->board, job->rank, job->ranks, links, send, recv);
  if (!strcmp(job->scenario, "tree")) tree(&net, job, send, recv);
  else if (!strcmp(job->scenario, "groups")) groups(&net, job, send, recv);
  else if (!strcmp(job->scenario, "outstanding")) outstanding(&net, job, send, recv);
  else if (!strcmp(job->scenario, "killed")) killed(&net, job, send, recv);
  else ring(&net, job, send, recv);
  for (int peer = 0; peer < job->ranks; peer++) {
    if (send[peer]) net_close_send(&net, send[peer]);
    if (recv[peer]) net_close_recv(&net, recv[peer]);
    /* The next round listens anew, at other handles. */
    job->board->ready[peer][job->rank] = 0;
  }
  if (!strcmp(job->scenario, "reload")) meet(job->board, job->ranks, round);
  net_close(&net);
}

static void *run(void *argument) {
  struct job *job = argument;
  int rounds = strcmp(job->scenario, "reload") ? 1 : 4;
  for (int round = 0; round < rounds; round++) once(job, round);
  return NULL;
}

int main(int count, char **arguments) {
  if (count != 7) return 2;
  alarm(300);
  struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct job job = {.plugin = arguments[1], .version = atoi(arguments[2]), .scenario = arguments[3], .ranks = atoi(arguments[4]),
                    .bytes = strtoull(arguments[5], NULL, 10), .board = board};
  if (board == MAP_FAILED || job.ranks < 1 || job.ranks > MAX_RANKS) return 2;
  int as_threads = !strcmp(arguments[6], "threads"), wrong = 0;
  struct job jobs[MAX_RANKS];
  pthread_t threads[MAX_RANKS];
  pid_t children[MAX_RANKS];
  for (int rank = 0; rank < job.ranks; rank++) {
    jobs[rank] = job;
    jobs[rank].rank = rank;
    if (as_threads) pthread_create(&threads[rank], NULL, run, &jobs[rank]);
    else if (!(children[rank] = fork())) {
      alarm(300);
      run(&jobs[rank]);
      exit(0);
    }
  }
  for (int rank = 0; rank < job.ranks; rank++) {
    int status = 0;
    if (as_threads) pthread_join(threads[rank], NULL);
    else waitpid(children[rank], &status, 0);
    int meant = !strcmp(job.scenario, "killed") && rank == 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    wrong |= status && !meant;
  }
  if (!wrong) puts("ok");
  return wrong;
}
