/* OpenSHMEM: puts and gets of symmetric memory, static and of the heap, atomics that all processing elements do on one
 * word, a lock, a wait for a neighbour's flag, and a reduction. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 14, ROUNDS = 500 };

static long in_segment[ELEMENTS], counter, guarded, lock, flag;
static long sums[ELEMENTS], sync_words[SHMEM_REDUCE_SYNC_SIZE];
static long work[ELEMENTS / 2 + 1 + SHMEM_REDUCE_MIN_WRKDATA_SIZE];

static void expect(long found, long expected, const char *what)
{
	if (found != expected) {
		fprintf(stderr, "%s: %ld, not %ld\n", what, found, expected);
		shmem_global_exit(1);
	}
}

int main(void)
{
	shmem_init();
	int me = shmem_my_pe(), all = shmem_n_pes();
	int right = (me + 1) % all, left = (me + all - 1) % all;
	long *heap = shmem_malloc(sizeof(long) * ELEMENTS), *mine = malloc(sizeof(long) * ELEMENTS);

	for (int at = 0; at < SHMEM_REDUCE_SYNC_SIZE; at++)
		sync_words[at] = SHMEM_SYNC_VALUE;
	for (int at = 0; at < ELEMENTS; at++)
		mine[at] = me * 1000000L + at;
	shmem_barrier_all();

	shmem_long_put(in_segment, mine, ELEMENTS, right);
	shmem_long_put(heap, mine, ELEMENTS, right);
	shmem_barrier_all();
	for (int at = 0; at < ELEMENTS; at++) {
		expect(in_segment[at], left * 1000000L + at, "put into a static array");
		expect(heap[at], left * 1000000L + at, "put into the heap");
	}
	shmem_long_get(mine, heap, ELEMENTS, right);
	for (int at = 0; at < ELEMENTS; at++)
		expect(mine[at], me * 1000000L + at, "get");

	for (int round = 0; round < ROUNDS; round++) {
		shmem_long_atomic_inc(&counter, 0);
		expect(shmem_long_atomic_fetch_add(&counter, 1, 0) < 2L * all * ROUNDS, 1, "fetch and add");
	}
	for (int round = 0; round < ROUNDS / 10; round++) {
		shmem_set_lock(&lock);
		long value = shmem_long_g(&guarded, 0);
		shmem_long_p(&guarded, value + 1, 0);
		shmem_quiet();
		shmem_clear_lock(&lock);
	}
	shmem_barrier_all();
	expect(shmem_long_g(&counter, 0), 2L * all * ROUNDS, "the counter");
	expect(shmem_long_g(&guarded, 0), (long)all * (ROUNDS / 10), "what the lock guards");

	/* Around the ring, each after the one before it. */
	if (me > 0)
		shmem_long_wait_until(&flag, SHMEM_CMP_EQ, me);
	shmem_long_p(&flag, me + 1, right);
	shmem_barrier_all();
	expect(shmem_long_g(&flag, 0), all, "the flag that went around");

	shmem_long_sum_to_all(sums, heap, ELEMENTS, 0, 0, all, work, sync_words);
	for (int at = 0; at < ELEMENTS; at++)
		expect(sums[at], (long)all * (all - 1) / 2 * 1000000L + (long)all * at, "sum");
	shmem_barrier_all();
	if (me == 0)
		printf("symmetric of %d ok\n", all);
	shmem_finalize();
	return 0;
}
