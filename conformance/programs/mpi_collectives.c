/* Sums over all ranks of vectors from 1 to 256 Ki elements, and an exchange of all with all, each checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void expect(long found, long expected, const char *what, int size)
{
	if (found != expected) {
		fprintf(stderr, "%s of %d: %ld, not %ld\n", what, size, found, expected);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

int main(int argc, char **argv)
{
	const int largest = 1 << 18;
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long *in = malloc(sizeof(long) * (size_t)largest), *out = malloc(sizeof(long) * (size_t)largest);

	for (int size = 1; size <= largest; size *= 8) {
		for (int at = 0; at < size; at++)
			in[at] = (long)at * (rank + 1);
		MPI_Allreduce(in, out, size, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		for (int at = 0; at < size; at++)
			expect(out[at], (long)at * ranks * (ranks + 1) / 2, "sum", size);
	}
	for (int size = 1; size * ranks <= largest; size *= 8) {
		for (int at = 0; at < size * ranks; at++)
			in[at] = rank * 1000000L + at;
		MPI_Alltoall(in, size, MPI_LONG, out, size, MPI_LONG, MPI_COMM_WORLD);
		for (int at = 0; at < size * ranks; at++)
			expect(out[at], (at / size) * 1000000L + rank * size + at % size, "exchange", size);
	}
	if (rank == 0)
		printf("collectives of %d ok\n", ranks);
	MPI_Finalize();
	free(in);
	free(out);
	return 0;
}
