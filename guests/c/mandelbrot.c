// Counts the steps until each point of the plane escapes (the Mandelbrot set).
// Exercises long dependency chains of floating-point multiply and add with a data-dependent exit.
// Arguments: SIDE of the picture (default 320), LIMIT of steps (default 200).
#include "../include/longma.h"
#include "guest.h"

int main(int argc, char **argv) {
    uint64_t side = argument(argc, argv, 1, 320, 1, 1u << 16);
    uint64_t limit = argument(argc, argv, 2, 200, 1, 1000000);
    uint64_t inside = 0, sum = CHECKSUM_START;
    longma_roi_begin();
    for (uint64_t row = 0; row < side; row++)
        for (uint64_t column = 0; column < side; column++) {
            double cr = 3.0 * (double)column / (double)side - 2.0, ci = 2.0 * (double)row / (double)side - 1.0;
            double zr = 0, zi = 0;
            uint64_t step = 0;
            for (; step < limit; step++) {
                double rr = zr * zr, ii = zi * zi;
                if (rr + ii > 4.0) break;
                zi = 2.0 * zr * zi + ci;
                zr = rr - ii + cr;
            }
            inside += step == limit;
            sum = (sum ^ step) * 0x100000001b3u;
        }
    longma_roi_end();
    printf("mandelbrot %llu inside, ", (unsigned long long)inside);
    print_checksum("checksum", sum);
    return 0;
}
