// An MPI program that checks its results: messages of many lengths, probes, collective operations.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                    \
        }                                                                                    \
    } while (0)

static int rank, ranks;

static void ping_pong(void) {
    for (int length = 0; length <= 1 << 20; length = length * 3 + 1) {
        char *bytes = malloc(length + 1);
        for (int round = 0; round < 10; round++) {
            memset(bytes, rank == 0 ? round : 99, length);
            if (rank == 0) MPI_Send(bytes, length, MPI_CHAR, 1, round, MPI_COMM_WORLD);
            if (rank < 2) MPI_Recv(bytes, length, MPI_CHAR, 1 - rank, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; rank < 2 && i < length; i++) CHECK(bytes[i] == (rank == 0 ? round + 1 : round));
            memset(bytes, round + 1, length);
            if (rank == 1) MPI_Send(bytes, length, MPI_CHAR, 0, round, MPI_COMM_WORLD);
        }
        free(bytes);
    }
}

// Any source and any tag. Open MPI 4.1 does not acknowledge a synchronous send that a matched probe receives, over any
// provider, so these are not combined.
static void probes(int synchronous) {
    static char bytes[100000];
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank > 0) {
        for (int i = 0; i < 50; i++) {
            int length = i * 2000;
            memset(bytes, rank + i, length);
            if (synchronous) MPI_Ssend(bytes, length, MPI_CHAR, 0, i, MPI_COMM_WORLD);
            else MPI_Send(bytes, length, MPI_CHAR, 0, i, MPI_COMM_WORLD);
        }
    } else {
        for (int i = 0; i < 50 * (ranks - 1); i++) {
            MPI_Status status;
            int length;
            MPI_Message message;
            if (synchronous) MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            else MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_CHAR, &length);
            CHECK(length == status.MPI_TAG * 2000);
            if (synchronous) MPI_Recv(bytes, length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            else MPI_Mrecv(bytes, length, MPI_CHAR, &message, MPI_STATUS_IGNORE);
            for (int k = 0; k < length; k++) CHECK(bytes[k] == (char)(status.MPI_SOURCE + status.MPI_TAG));
        }
    }
}

static void collectives(void) {
    for (int round = 0; round < 50; round++) {
        int count = 1 + round * 371 % 20000;
        double *own = malloc(count * sizeof *own), *sums = malloc(count * sizeof *sums);
        for (int i = 0; i < count; i++) own[i] = rank + i + round;
        MPI_Allreduce(own, sums, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) CHECK(sums[i] == ranks * (double)(i + round) + ranks * (ranks - 1) / 2);
        int *out = malloc(ranks * count * sizeof *out), *in = malloc(ranks * count * sizeof *in);
        for (int i = 0; i < ranks * count; i++) out[i] = rank * 1000000 + i;
        MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            for (int i = 0; i < count; i++) CHECK(in[from * count + i] == from * 1000000 + rank * count + i);
        free(own), free(sums), free(out), free(in);
    }
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ping_pong();
    probes(0);
    probes(1);
    collectives();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) puts("all right");
    MPI_Finalize();
    return 0;
}
