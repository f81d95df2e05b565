// A stride prefetcher, like the kind "stride": an instruction whose misses advance twice by the same stride is expected
// to continue (Chen and Baer, IEEE Transactions on Computers 44(5), 1995).
#include "prefetcher.h"

#define MAX_ENTRIES 1024

static struct {
    uint64_t instruction, last;
    int64_t stride;
} entries[MAX_ENTRIES];
static uint64_t mask;
static int64_t degree, distance;

LONGMA_EXPORT("start")
void start(uint32_t line_bytes, uint64_t page_lines, uint32_t lines, uint32_t ahead, uint32_t streams) {
    (void)line_bytes, (void)page_lines;
    uint64_t count = 1;
    while (count < streams && count < MAX_ENTRIES) count *= 2;
    mask = count - 1;
    degree = lines;
    distance = ahead;
}

LONGMA_EXPORT("observe")
void observe(uint64_t line, uint64_t instruction, uint32_t event) {
    if (event == LONGMA_HIT) return;
    uint64_t at = (instruction >> 2) & mask;
    if (entries[at].instruction != instruction) {
        entries[at].instruction = instruction;
        entries[at].last = line;
        entries[at].stride = 0;
        return;
    }
    int64_t stride = (int64_t)(line - entries[at].last);
    int confirmed = stride != 0 && stride == entries[at].stride;
    entries[at].last = line;
    entries[at].stride = stride;
    if (!confirmed) return;
    for (int64_t n = 0; n < degree; n++) longma_prefetch(line + (uint64_t)(stride * (distance + n)));
}
