// The Sun and four planets under gravity, by the symplectic Euler method.
// Exercises floating-point divide and square root in a short loop.
// Arguments: STEPS (default 250000).
// Source: positions and velocities from JPL's ephemeris DE405, in AU and AU a year, masses in 4 pi^2.
#include "../include/longma.h"
#include "guest.h"
#include <math.h>

enum { BODIES = 5 };
#define PI 3.141592653589793
#define SOLAR (4 * PI * PI)
#define YEAR 365.24

static struct body {
    double x[3], v[3], mass;
} body[BODIES] = {
    {{0, 0, 0}, {0, 0, 0}, SOLAR},
    {{4.84143144246472090e+00, -1.16032004402742839e+00, -1.03622044471123109e-01},
     {1.66007664274403694e-03 * YEAR, 7.69901118419740425e-03 * YEAR, -6.90460016972063023e-05 * YEAR},
     9.54791938424326609e-04 * SOLAR},
    {{8.34336671824457987e+00, 4.12479856412430479e+00, -4.03523417114321381e-01},
     {-2.76742510726411021e-03 * YEAR, 4.99852801234917238e-03 * YEAR, 2.30417297573763929e-05 * YEAR},
     2.85885980666130812e-04 * SOLAR},
    {{1.28943695621391310e+01, -1.51111514016986312e+01, -2.23307578892655734e-01},
     {2.96460137564761618e-03 * YEAR, 2.37847173959480950e-03 * YEAR, -2.96589568540237556e-05 * YEAR},
     4.36624404335156298e-05 * SOLAR},
    {{1.53796971148509165e+01, -2.59193146099879641e+01, 1.79258772950371181e-01},
     {2.68067772490389322e-03 * YEAR, 1.62824170038242295e-03 * YEAR, -9.51592254519715870e-05 * YEAR},
     5.15138902046611451e-05 * SOLAR},
};

static void advance(double dt) {
    for (int i = 0; i < BODIES; i++)
        for (int j = i + 1; j < BODIES; j++) {
            double d[3], square = 0;
            for (int k = 0; k < 3; k++) {
                d[k] = body[i].x[k] - body[j].x[k];
                square += d[k] * d[k];
            }
            double pull = dt / (square * sqrt(square));
            for (int k = 0; k < 3; k++) {
                body[i].v[k] -= d[k] * body[j].mass * pull;
                body[j].v[k] += d[k] * body[i].mass * pull;
            }
        }
    for (int i = 0; i < BODIES; i++)
        for (int k = 0; k < 3; k++) body[i].x[k] += dt * body[i].v[k];
}

static double energy(void) {
    double total = 0;
    for (int i = 0; i < BODIES; i++) {
        double speed = 0;
        for (int k = 0; k < 3; k++) speed += body[i].v[k] * body[i].v[k];
        total += 0.5 * body[i].mass * speed;
        for (int j = i + 1; j < BODIES; j++) {
            double square = 0;
            for (int k = 0; k < 3; k++) square += (body[i].x[k] - body[j].x[k]) * (body[i].x[k] - body[j].x[k]);
            total -= body[i].mass * body[j].mass / sqrt(square);
        }
    }
    return total;
}

int main(int argc, char **argv) {
    uint64_t steps = argument(argc, argv, 1, 250000, 0, 1ull << 40);
    double momentum[3] = {0};
    for (int i = 0; i < BODIES; i++)
        for (int k = 0; k < 3; k++) momentum[k] += body[i].v[k] * body[i].mass;
    for (int k = 0; k < 3; k++) body[0].v[k] = -momentum[k] / SOLAR;
    printf("nbody energy %.9f ", energy());
    longma_roi_begin();
    for (uint64_t s = 0; s < steps; s++) advance(0.01);
    longma_roi_end();
    printf("then %.9f ", energy());
    print_checksum("checksum", checksum(CHECKSUM_START, bits_of(energy())));
    return 0;
}
