// Collective operations of Gloo over its ibverbs transport, which PyTorch uses for its distributed work: a rank is a
// process, ranks find each other by files in a folder, and every result is compared with what it must be.
//
// usage: gloo_collectives DEVICE RANKS OPERATION

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/pairwise_exchange.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

namespace {

const int rounds = 10;

// Algorithms and what they work on live as long as the process: Gloo does not wait for the completions of its
// notifications, and its buffers may not be destroyed before those have come.
template <class T, class... Arguments>
T& make_lasting(Arguments&&... arguments) {
  static std::vector<std::unique_ptr<T>> all;
  all.push_back(std::make_unique<T>(std::forward<Arguments>(arguments)...));
  return *all.back();
}

using Values = std::vector<float>;
using Context = std::shared_ptr<gloo::Context>;

bool all_are(const Values& values, const std::function<float(int)>& expected) {
  for (size_t i = 0; i < values.size(); i++) {
    if (values[i] != expected(i)) {
      std::fprintf(stderr, "value %zu of %zu is %g, not %g\n", i, values.size(), values[i], expected(i));
      return false;
    }
  }
  return true;
}

template <class Allreduce>
bool allreduce(const Context& context) {
  const int ranks = context->size;
  for (int count : {1, 100, 10000, 1000000}) {
    Values& values = make_lasting<Values>(count);
    Allreduce& algorithm = make_lasting<Allreduce>(context, std::vector<float*>{values.data()}, count);
    for (int round = 0; round < rounds; round++) {
      for (int i = 0; i < count; i++) values[i] = (context->rank + 1) * round + i % 8;
      algorithm.run();
      if (!all_are(values, [&](int i) { return ranks * (ranks + 1) / 2 * round + ranks * (i % 8); })) return false;
    }
  }
  return true;
}

bool broadcast(const Context& context) {
  for (int root = 0; root < context->size; root++) {
    Values& values = make_lasting<Values>(50000);
    auto& algorithm = make_lasting<gloo::BroadcastOneToAll<float>>(
        context, std::vector<float*>{values.data()}, values.size(), root);
    for (int round = 0; round < rounds; round++) {
      auto expected = [&](int i) { return root * 1000 + round * 100 + i % 100; };
      for (size_t i = 0; i < values.size(); i++) values[i] = context->rank == root ? expected(i) : -1;
      algorithm.run();
      if (!all_are(values, expected)) return false;
    }
  }
  return true;
}

bool barrier(const Context& context) {
  auto& algorithm = make_lasting<gloo::BarrierAllToAll>(context);
  for (int round = 0; round < 100 * rounds; round++) algorithm.run();
  return true;
}

// What the ranks send to each other goes through as many pairs as there are steps.
bool pairwise_exchange(const Context& context) {
  auto& algorithm = make_lasting<gloo::PairwiseExchange>(context, 1 << 20, 2);
  for (int round = 0; round < rounds; round++) algorithm.run();
  return true;
}

bool run(const std::string& folder, const std::string& device_name, int rank, int ranks, const std::string& operation) {
  gloo::transport::ibverbs::attr attributes;
  attributes.name = device_name;
  attributes.port = 1;
  attributes.index = 0;
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  auto& context = make_lasting<std::shared_ptr<gloo::rendezvous::Context>>(
      std::make_shared<gloo::rendezvous::Context>(rank, ranks));
  gloo::rendezvous::FileStore store(folder);
  context->connectFullMesh(store, device);

  if (operation == "allreduce_ring") return allreduce<gloo::AllreduceRing<float>>(context);
  if (operation == "allreduce_ring_chunked") return allreduce<gloo::AllreduceRingChunked<float>>(context);
  if (operation == "allreduce_halving_doubling") return allreduce<gloo::AllreduceHalvingDoubling<float>>(context);
  if (operation == "broadcast") return broadcast(context);
  if (operation == "barrier") return barrier(context);
  if (operation == "pairwise_exchange") return pairwise_exchange(context);
  std::fprintf(stderr, "%s: no such operation\n", operation.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s DEVICE RANKS OPERATION\n", argv[0]);
    return 2;
  }
  const int ranks = std::atoi(argv[2]);
  char folder[] = "gloo_XXXXXX";
  int results[2], end[2];
  if (!mkdtemp(folder) || pipe(results) != 0 || pipe(end) != 0) {
    std::perror(argv[0]);
    return 1;
  }
  for (int rank = 0; rank < ranks; rank++) {
    if (fork() != 0) continue;
    close(results[0]);
    close(end[1]);
    char good = 0;
    try {
      good = run(folder, argv[1], rank, ranks, argv[3]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    if (write(results[1], &good, 1) != 1) _exit(1);
    // Others may still wait for what this one has sent: it stays until all are done.
    char none;
    _exit(good && read(end[0], &none, 1) == 0 ? 0 : 1);
  }
  close(results[1]);
  close(end[0]);
  int good = 0;
  char one;
  while (good < ranks && read(results[0], &one, 1) == 1 && one) good++;
  close(end[1]);
  for (int rank = 0; rank < ranks; rank++) wait(nullptr);
  std::printf("%s: %d of %d ok\n", argv[3], good, ranks);
  return good == ranks ? 0 : 1;
}
