/* A token goes around a ring of ranks, in messages of every size from 1 byte to 4 MiB. Each rank adds to it, and
 * checks the whole message. The last line says ok. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char pattern(size_t at, int hop, size_t size)
{
	return (unsigned char)(at * 31 + (size_t)hop * 7 + size);
}

static void check(const unsigned char *message, size_t size, int hop)
{
	for (size_t at = 0; at < size; at++) {
		if (message[at] != pattern(at, hop, size)) {
			fprintf(stderr, "byte %zu of %zu is wrong at hop %d\n", at, size, hop);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
}

int main(int argc, char **argv)
{
	const size_t largest = (size_t)4 << 20;
	int rank, ranks;
	unsigned char *message = malloc(largest);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
	for (size_t size = 1; size <= largest; size *= 4) {
		if (rank != 0) {
			MPI_Recv(message, (int)size, MPI_BYTE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			check(message, size, rank - 1);
		}
		for (size_t at = 0; at < size; at++)
			message[at] = pattern(at, rank, size);
		MPI_Send(message, (int)size, MPI_BYTE, right, 1, MPI_COMM_WORLD);
		if (rank == 0) {
			MPI_Recv(message, (int)size, MPI_BYTE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			check(message, size, ranks - 1);
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ring of %d ok\n", ranks);
	MPI_Finalize();
	free(message);
	return 0;
}
