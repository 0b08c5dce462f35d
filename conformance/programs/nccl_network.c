/* nccl_network: NCCL with one rank, as far as it goes on a machine without a GPU. NCCL's log says which network it takes.
 * nccl_network id: makes an id for a communicator, for which NCCL 2.21 loads the plugin.
 * nccl_network communicator: makes a communicator, for which it initialises the plugin and chooses a network. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct id {
  char bytes[128];
};

static void *find(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "there is no %s\n", name);
    exit(1);
  }
  return found;
}

int main(int count, char **words) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW);
  if (count != 2 || !library) {
    fprintf(stderr, "usage: nccl_network id|communicator; %s\n", library ? "" : dlerror());
    return 2;
  }
  int (*make_id)(struct id *) = find(library, "ncclGetUniqueId");
  int (*init_rank)(void **, int, struct id, int) = find(library, "ncclCommInitRank");
  const char *(*last_error)(void *) = find(library, "ncclGetLastError");
  struct id id;
  int result = make_id(&id);
  printf("ncclGetUniqueId: %d\n", result);
  if (result || strcmp(words[1], "communicator")) return result;
  void *communicator = NULL;
  result = init_rank(&communicator, 1, id, 0);
  printf("ncclCommInitRank: %d, %s\n", result, last_error(NULL));
  fflush(stdout);
  /* A communicator cannot be made without a GPU: the network is what counts. */
  _Exit(0);
}
