// Static re-reference interval prediction with hit priority, like the replacement "rrip" (Jaleel, Theobald, Steely and
// Emer, ISCA 2010, section 4.1).
#include "replacement.h"

#define MAX_LINES (4u << 20)
// The highest of the two-bit values: the line is predicted to be used in the distant future.
#define DISTANT 3

static uint8_t intervals[MAX_LINES];
static uint32_t ways;

LONGMA_EXPORT("start")
void start(uint32_t sets, uint32_t ways_of_a_set, uint32_t line_bytes) {
    (void)line_bytes;
    ways = ways_of_a_set;
    if ((uint64_t)sets * ways > MAX_LINES) __builtin_trap();
}

LONGMA_EXPORT("used")
void used(uint32_t set, uint32_t way, uint64_t line, uint64_t instruction, uint32_t kind) {
    (void)line, (void)instruction, (void)kind;
    intervals[set * ways + way] = 0;
}

LONGMA_EXPORT("filled")
void filled(uint32_t set, uint32_t way, uint64_t line, uint64_t instruction, uint32_t kind) {
    (void)line, (void)instruction, (void)kind;
    intervals[set * ways + way] = DISTANT - 1;
}

LONGMA_EXPORT("victim")
uint32_t victim(uint32_t set, uint64_t allowed, uint64_t line, uint64_t instruction, uint32_t kind) {
    (void)line, (void)instruction, (void)kind;
    uint8_t *of_set = intervals + set * ways;
    for (;;) {
        for (uint32_t way = 0; way < ways; way++)
            if ((allowed >> way & 1) && of_set[way] == DISTANT) return way;
        for (uint32_t way = 0; way < ways; way++)
            if (allowed >> way & 1) of_set[way]++;
    }
}
