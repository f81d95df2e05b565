// Guest page lookup of a virtual machine monitor: a three-level table in memory, optionally with the core's CAM as a cache.
// This is software translation by the monitor, which the CAM accelerates, not the processor's own.
// Source: Su et al., 2012, on the CAM; the table is the form of every 64-bit processor's.
#ifndef TRANSLATION_H
#define TRANSLATION_H

#include "../include/longma_registers.h"
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEVEL_BITS = 9, LEVELS = 3 };

static inline void *translation_table(void) {
    return memset(allocate(sizeof(uint64_t) << LEVEL_BITS), 0, sizeof(uint64_t) << LEVEL_BITS);
}

// The entry of `page`; creates missing tables.
static inline uint64_t *translation_entry(uint64_t *root, uint64_t page) {
    uint64_t *at = root;
    for (int level = LEVELS - 1; level > 0; level--) {
        uint64_t *entry = &at[page >> (level * LEVEL_BITS) & ((1 << LEVEL_BITS) - 1)];
        if (!*entry) *entry = (uint64_t)(uintptr_t)translation_table();
        at = (uint64_t *)(uintptr_t)*entry;
    }
    return &at[page & ((1 << LEVEL_BITS) - 1)];
}

static inline uint64_t walk(const uint64_t *root, uint64_t page) {
    const uint64_t *at = root;
    for (int level = LEVELS - 1; level > 0; level--)
        at = (const uint64_t *)(uintptr_t)at[page >> (level * LEVEL_BITS) & ((1 << LEVEL_BITS) - 1)];
    return at[page & ((1 << LEVEL_BITS) - 1)];
}

// A core's CAM; a new entry replaces the oldest.
struct cam {
    volatile uint64_t *registers;
    uint64_t entries, next, misses;
};

static inline uint64_t cam_get(const struct cam *cam, unsigned offset) { return cam->registers[offset / 8]; }
static inline void cam_set(const struct cam *cam, unsigned offset, uint64_t value) { cam->registers[offset / 8] = value; }

static inline void cam_empty(struct cam *cam) {
    for (uint64_t i = 0; i < cam->entries; i++) cam_set(cam, CAM_INDEX, i), cam_set(cam, CAM_COMMAND, CAM_COMMAND_CLEAR);
    cam->next = 0;
}

// Maps and clears the CAM of core `core`; returns 0, or -1 with errno.
static inline int cam_open(struct cam *cam, int core) {
    char name[40];
    snprintf(name, sizeof name, "/dev/longma/cam%d", core);
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return -1;
    cam->registers = mmap(NULL, CAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (cam->registers == MAP_FAILED) return -1;
    cam->entries = cam_get(cam, CAM_IDENTITY) & CAM_IDENTITY_ENTRIES_MASK;
    cam_empty(cam);
    return 0;
}

// Adds an entry for a page to the address space selected by SPACE.
static inline void cam_enter(struct cam *cam, uint64_t page, uint64_t place) {
    cam_set(cam, CAM_KEY, page), cam_set(cam, CAM_MASK, ~0ull), cam_set(cam, CAM_VALUE, place);
    cam_set(cam, CAM_INDEX, cam->next);
    cam_set(cam, CAM_COMMAND, CAM_COMMAND_WRITE);
    cam->next = (cam->next + 1) % cam->entries;
}

// Searches the CAM; on a miss, walks the table and adds the entry.
static inline uint64_t cam_search(struct cam *cam, const uint64_t *root, uint64_t page) {
    cam_set(cam, CAM_SEARCH, page);
    if (cam_get(cam, CAM_RESULT) & CAM_RESULT_HIT) return cam_get(cam, CAM_VALUE);
    cam->misses++;
    uint64_t place = walk(root, page);
    cam_enter(cam, page, place);
    return place;
}

#endif
