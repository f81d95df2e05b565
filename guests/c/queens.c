// Counts the ways to place N queens so that none attacks another: with bit masks and with arrays.
// Exercises deep recursion: calls, returns and small stack frames.
// Arguments: QUEENS (default 8), REPEATS (default 1500).
#include "../include/longma.h"
#include "guest.h"

static uint64_t by_masks(unsigned all, unsigned columns, unsigned left, unsigned right) {
    if (columns == all) return 1;
    uint64_t ways = 0;
    for (unsigned open = all & ~(columns | left | right); open; open &= open - 1) {
        unsigned place = open & -open;
        ways += by_masks(all, columns | place, (left | place) << 1, (right | place) >> 1);
    }
    return ways;
}

static uint64_t by_arrays(int n, int row, int *column_of, uint64_t *sum) {
    if (row == n) {
        for (int i = 0; i < n; i++) *sum = (*sum ^ (uint64_t)column_of[i]) * 0x100000001b3u;
        return 1;
    }
    uint64_t ways = 0;
    for (int column = 0; column < n; column++) {
        int safe = 1;
        for (int above = 0; above < row && safe; above++)
            safe = column_of[above] != column && abs(column_of[above] - column) != row - above;
        if (safe) {
            column_of[row] = column;
            ways += by_arrays(n, row + 1, column_of, sum);
        }
    }
    return ways;
}

int main(int argc, char **argv) {
    int n = (int)argument(argc, argv, 1, 8, 1, 16);
    uint64_t repeats = argument(argc, argv, 2, 1500, 1, 1000000);
    uint64_t sum = CHECKSUM_START, ways = 0;
    int column_of[16];
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        ways = by_masks((1u << n) - 1, 0, 0, 0);
        if (by_arrays(n, 0, column_of, &sum) != ways) {
            puts("queens: the two counts differ");
            return 1;
        }
    }
    longma_roi_end();
    printf("queens %d: %llu ways, ", n, (unsigned long long)ways);
    print_checksum("checksum", sum);
    return 0;
}
