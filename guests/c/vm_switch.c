// Virtual machines that take turns on one core, its IDMA engine and its CAM. Each has a copy in progress and translates addresses.
// Measures the cost of a switch, with and without saving the engine's channels and the translations.
// Arguments:
//   handling of a copy at a switch: copy (no engine: the core copies a part in each turn), wait (until it is done, as with DMA
//   that cannot be stopped), restart (stopped and restarted, after three restarts waited for), save (saved and restored; default)
//   address translation: table (walked; default), flush (a CAM without address spaces, flushed at each switch),
//   cam (a CAM with address spaces)
//   VMS (default 4), KIB of each copy (default 512), LOOKUPS in each turn (default 400)
#include "../include/idma.h"
#include "../include/longma.h"
#include "copy_plain.h"
#include "guest.h"
#include "translation.h"

enum { MOST_VMS = 16, PAGES = 16, PART = 4096, MOST_RESTARTS = 3 };
enum copying { COPY, WAIT, RESTART, SAVE };
enum translating { TABLE, FLUSH, CAM };

struct vm {
    unsigned char *from, *to;
    size_t bytes, copied;
    uint64_t pages[PAGES], *root, seed;
    struct idma_saved reader, writer;
    int running, done, saved, restarts;
    uint64_t sum, wanted;
};

static struct idma engine;
static struct cam cam;
static struct { uint64_t switches, restarts; double parked; } counted;

// The address of a VM's page: a function against which the table is checked.
static uint64_t host_page(size_t vm, uint64_t page) { return (page * 0x9e3779b9 + vm) & 0xffffffff; }

static void start_copy(const struct vm *vm) {
    struct idma_transfer in = {.source = vm->from, .destination = engine.store, .length = vm->bytes};
    struct idma_transfer out = {.destination = vm->to, .length = vm->bytes};
    idma_describe(&engine, 0, &in);
    idma_start(&engine, 0, IDMA_CHANNEL_CONTROL_GIVE);
    idma_describe(&engine, IDMA_WRITER, &out);
    idma_start(&engine, IDMA_WRITER, IDMA_CHANNEL_CONTROL_GIVE | idma_fed_by(0));
}

static void stop(int channel) {
    uint64_t control = idma_get(&engine, channel, IDMA_CHANNEL_CONTROL);
    idma_set(&engine, channel, IDMA_CHANNEL_CONTROL, control | IDMA_CHANNEL_CONTROL_STOP);
    while (idma_status(&engine, channel) & (IDMA_CHANNEL_STATUS_BUSY | IDMA_CHANNEL_STATUS_RUNNING)) {}
}

// Ends a VM's turn and handles its copy in progress.
static void park(struct vm *vm, enum copying how) {
    if (vm->done || how == COPY) return;
    if (idma_status(&engine, IDMA_WRITER) & IDMA_CHANNEL_STATUS_DONE) {
        vm->done = 1;
    } else if (how == SAVE) {
        // Stop the reader first; the writer then drains the store.
        idma_save(&engine, 0, &vm->reader);
        while (!(idma_status(&engine, IDMA_WRITER) & IDMA_CHANNEL_STATUS_DONE) &&
               idma_get(&engine, IDMA_WRITER, IDMA_CHANNEL_POSITION) < vm->reader.position) {}
        idma_save(&engine, IDMA_WRITER, &vm->writer);
        // All data read has been written: no tag of the reader is set.
        vm->reader.tags[0] = vm->reader.tags[1] = 0;
        vm->saved = 1;
    } else if (how == RESTART && vm->restarts < MOST_RESTARTS) {
        stop(0), stop(IDMA_WRITER);
        vm->restarts++, counted.restarts++;
        vm->running = 0;
    } else {
        idma_finish(&engine, IDMA_WRITER);
        vm->done = 1;
    }
}

static void unpark(struct vm *vm, enum copying how) {
    if (vm->done) return;
    if (how == COPY) {
        size_t part = vm->bytes - vm->copied < PART ? vm->bytes - vm->copied : PART;
        copy_plain(vm->to + vm->copied, vm->from + vm->copied, part);
        vm->copied += part;
        vm->done = vm->copied == vm->bytes;
    } else if (vm->saved) {
        idma_restore(&engine, 0, &vm->reader);
        idma_restore(&engine, IDMA_WRITER, &vm->writer);
        vm->saved = 0;
    } else if (!vm->running) {
        start_copy(vm);
        vm->running = 1;
    }
}

static void turn(struct vm *vm, size_t number, uint64_t lookups, enum translating how) {
    for (uint64_t i = 0; i < lookups; i++) {
        uint64_t page = vm->pages[random_next(&vm->seed) >> 60];
        vm->sum += how == TABLE ? walk(vm->root, page) : cam_search(&cam, vm->root, page);
        vm->wanted += host_page(number, page);
    }
}

// The index of argument `index` in `words`.
static int choice(int argc, char **argv, int index, int fallback, const char *const *words, int count) {
    if (index >= argc) return fallback;
    for (int i = 0; i < count; i++)
        if (strcmp(argv[index], words[i]) == 0) return i;
    fprintf(stderr, "%s: argument %d is '%s': say ", argv[0], index, argv[index]);
    for (int i = 0; i < count; i++) fprintf(stderr, "%s%s", words[i], i + 1 < count ? ", " : "\n");
    exit(2);
}

static void open_devices(enum copying copying, enum translating translating) {
    if (copying != COPY && idma_open(&engine, 0)) {
        perror("vm_switch: no IDMA engine with an in-core store, name a machine that has one (/dev/longma/idma0)");
        exit(1);
    }
    if (translating == TABLE) return;
    if (cam_open(&cam, 0)) {
        perror("vm_switch: no CAM table, name a machine that has one (/dev/longma/cam0)");
        exit(1);
    }
}

static void create(struct vm *vm, size_t number, size_t bytes) {
    *vm = (struct vm){.from = allocate(bytes), .to = allocate(bytes), .bytes = bytes, .seed = 77 + number};
    vm->root = translation_table();
    for (size_t i = 0; i < bytes; i++) vm->from[i] = (unsigned char)(random_next(&vm->seed) >> 32), vm->to[i] = 0;
    for (size_t i = 0; i < PAGES; i++) {
        vm->pages[i] = random_next(&vm->seed) & ((1u << LEVELS * LEVEL_BITS) - 1);
        *translation_entry(vm->root, vm->pages[i]) = host_page(number, vm->pages[i]);
    }
}

int main(int argc, char **argv) {
    static const char *const COPYING[] = {"copy", "wait", "restart", "save"}, *const TRANSLATING[] = {"table", "flush", "cam"};
    enum copying copying = (enum copying)choice(argc, argv, 1, SAVE, COPYING, 4);
    enum translating translating = (enum translating)choice(argc, argv, 2, TABLE, TRANSLATING, 3);
    size_t vms = argument(argc, argv, 3, 4, 1, MOST_VMS), bytes = argument(argc, argv, 4, 512, 1, 65536) << 10;
    uint64_t lookups = argument(argc, argv, 5, 400, 1, 1000000);
    static struct vm all[MOST_VMS];
    open_devices(copying, translating);
    for (size_t v = 0; v < vms; v++) create(&all[v], v, bytes);
    longma_roi_begin();
    double begin = seconds();
    for (size_t done = 0; done < vms;) {
        for (size_t v = 0; v < vms; v++) {
            struct vm *vm = &all[v];
            double before = seconds();
            if (translating == CAM) cam_set(&cam, CAM_SPACE, v);
            if (translating == FLUSH) cam_empty(&cam);
            unpark(vm, copying);
            double ready = seconds();
            turn(vm, v, lookups, translating);
            double over = seconds();
            park(vm, copying);
            counted.parked += (seconds() - over) + (ready - before);
            counted.switches++;
        }
        done = 0;
        for (size_t v = 0; v < vms; v++) done += (size_t)all[v].done;
    }
    double took = seconds() - begin;
    longma_roi_end();
    int good = 1;
    for (size_t v = 0; v < vms; v++) good &= memcmp(all[v].from, all[v].to, bytes) == 0 && all[v].sum == all[v].wanted;
    fprintf(stderr, "%.2f us in all, %.3f us a switch, %.3f us a turn, %llu switches, %llu restarts, %llu CAM misses\n", took * 1e6,
            counted.parked / (double)counted.switches * 1e6, took / (double)counted.switches * 1e6, (unsigned long long)counted.switches,
            (unsigned long long)counted.restarts, (unsigned long long)cam.misses);
    printf("vm_switch: %zu machines %s\n", vms, good ? "right" : "wrong");
    return !good;
}
