// A branch predictor like "gshare": two-bit counters indexed by the address and the global history (McFarling, DEC WRL
// TN-36, 1993).
#include "branches.h"

#define MAX_ENTRIES (1u << 20)
#define DEFAULT_ENTRIES 4096

// From -1, strongly not taken, to 2, strongly taken.
static int8_t counters[MAX_ENTRIES];
static uint64_t history, history_mask, mask, shift;

LONGMA_EXPORT("start")
void start(uint32_t table_entries, uint32_t history_bits) {
    uint32_t entries = table_entries ? table_entries : DEFAULT_ENTRIES, bits = 0;
    while (bits < 20 && (2u << bits) <= entries) bits++;
    uint32_t length = history_bits && history_bits < bits ? history_bits : bits;
    mask = (1u << bits) - 1;
    history_mask = (1u << length) - 1;
    shift = bits - length;
}

static int8_t *counter(uint64_t address) {
    return &counters[(address >> 2 ^ history << shift) & mask];
}

LONGMA_EXPORT("predict")
uint32_t predict(uint64_t address, uint64_t target) {
    (void)target;
    return *counter(address) > 0;
}

LONGMA_EXPORT("train")
void train(uint64_t address, uint64_t target, uint32_t taken) {
    (void)target;
    int8_t *trained = counter(address);
    if (taken && *trained < 2) ++*trained;
    if (!taken && *trained > -1) --*trained;
    history = (history << 1 | taken) & history_mask;
}
