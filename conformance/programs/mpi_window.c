/* One-sided communication: puts and gets between fences, puts under a lock, and counters that all ranks add to
 * with accumulate, fetch_and_op and compare_and_swap. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 16, ROUNDS = 200 };

static void expect(long found, long expected, const char *what)
{
	if (found != expected) {
		fprintf(stderr, "%s: %ld, not %ld\n", what, found, expected);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Win window;
	long *memory, *mine;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	mine = malloc(sizeof(long) * ELEMENTS);
	MPI_Win_allocate(sizeof(long) * ELEMENTS, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

	for (int at = 0; at < ELEMENTS; at++)
		mine[at] = rank * 1000000L + at;
	MPI_Win_fence(0, window);
	MPI_Put(mine, ELEMENTS, MPI_LONG, right, 0, ELEMENTS, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int at = 0; at < ELEMENTS; at++)
		expect(memory[at], left * 1000000L + at, "put");
	MPI_Get(mine, ELEMENTS, MPI_LONG, right, 0, ELEMENTS, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int at = 0; at < ELEMENTS; at++)
		expect(mine[at], rank * 1000000L + at, "get");

	MPI_Win_fence(0, window);
	for (int at = 0; at < 4; at++)
		memory[at] = 0;
	MPI_Win_fence(0, window);
	long one = 1, before;
	MPI_Win_lock_all(0, window);
	for (int round = 0; round < ROUNDS; round++) {
		MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, window);
		MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 1, MPI_SUM, window);
		MPI_Win_flush(0, window);
		if (before < 0 || before >= (long)ranks * ROUNDS)
			expect(before, 0, "a counter before it was added to");
	}
	for (int round = 0; round < ROUNDS; round++) {
		long seen = 0, found;
		for (;;) {
			long next = seen + 1;
			MPI_Compare_and_swap(&next, &seen, &found, MPI_LONG, 0, 2, window);
			MPI_Win_flush(0, window);
			if (found == seen)
				break;
			seen = found;
		}
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		for (int at = 0; at < 3; at++)
			expect(memory[at], (long)ranks * ROUNDS, "a counter");
		MPI_Win_unlock(0, window);
	}

	/* Each writes its place at every other rank, under a lock. */
	MPI_Win_fence(0, window);
	for (int to = 0; to < ranks; to++) {
		long word = rank * 100 + to;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, window);
		MPI_Put(&word, 1, MPI_LONG, to, 8 + rank, 1, MPI_LONG, window);
		MPI_Win_unlock(to, window);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	for (int from = 0; from < ranks; from++)
		expect(memory[8 + from], from * 100 + rank, "put under a lock");
	MPI_Win_unlock(rank, window);
	MPI_Win_free(&window);
	if (rank == 0)
		printf("windows of %d ok\n", ranks);
	MPI_Finalize();
	free(mine);
	return 0;
}
