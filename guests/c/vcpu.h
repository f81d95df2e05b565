// Places the virtual CPUs of a guest according to the environment variable `vcpus`. A thread represents a
// virtual CPU and binds itself, because a modelled host has no scheduler that moves threads between nodes.
// "0,1;8,9" has two steps, the first with CPU 0 for virtual CPU 0 and CPU 1 for virtual CPU 1. Without the variable, threads are not bound.
#ifndef VCPU_H
#define VCPU_H

#include "guest.h"
#include <sched.h>

enum { MOST_VCPUS = 64, MOST_STEPS = 256 };

static int vcpu_cpus[MOST_STEPS][MOST_VCPUS];
static unsigned vcpu_steps;

// Reads the variable; there must be a CPU for each of `count` virtual CPUs in every step.
static inline void vcpu_read(unsigned count) {
    const char *text = getenv("vcpus");
    for (; text && vcpu_steps < MOST_STEPS; vcpu_steps++) {
        for (unsigned vcpu = 0; vcpu < count; vcpu++) {
            char *end;
            unsigned long cpu = strtoul(text, &end, 10);
            char wanted = vcpu + 1 < count ? ',' : ';';
            if (end == text || cpu >= CPU_SETSIZE || (*end != wanted && !(wanted == ';' && !*end))) {
                fprintf(stderr, "vcpus: step %u has no CPU for virtual CPU %u: give as in \"0,1;8,9\"\n", vcpu_steps, vcpu);
                exit(2);
            }
            vcpu_cpus[vcpu_steps][vcpu] = (int)cpu;
            text = *end ? end + 1 : NULL;
        }
    }
}

// Binds a thread (0: the caller) to the CPU of virtual CPU `vcpu` in a step; steps repeat after the last.
static inline void vcpu_put(int thread, unsigned vcpu, unsigned step) {
    if (vcpu_steps == 0) return;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(vcpu_cpus[step % vcpu_steps][vcpu], &cpus);
    if (sched_setaffinity(thread, sizeof cpus, &cpus) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

// How many of `count` virtual CPUs change their CPU from one step to the next.
static inline unsigned vcpu_changes(unsigned count, unsigned step) {
    unsigned changes = 0;
    for (unsigned vcpu = 0; vcpu_steps != 0 && vcpu < count; vcpu++)
        changes += vcpu_cpus[step % vcpu_steps][vcpu] != vcpu_cpus[(step + 1) % vcpu_steps][vcpu];
    return changes;
}

#endif
