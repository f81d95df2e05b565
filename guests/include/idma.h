/*
 * idma.h: a core's IDMA engine and in-core store, accessed through the registers of longma_registers.h. Every function is a few
 * register accesses in the required order.
 *
 *	struct idma engine;
 *	if (idma_open(&engine, 0)) ...                      errno says why: ENOENT is a machine without an engine
 *	idma_describe(&engine, channel, &transfer);         registers of a transfer, except CONTROL
 *	idma_start(&engine, channel, flags);                flags of CONTROL in addition to START
 *	idma_tags(&engine, channel, 0)                      tags 0 to 63: a bit is 1 once the core may use the piece
 *	idma_take, idma_give                                pause at a piece, and resume there
 *	idma_save, idma_restore                             for a context switch
 *	idma_wait_interrupt(&engine)                        sleep until the engine interrupts
 *
 * Addresses are the program's virtual addresses. The in-core store is plain memory at engine.store.
 */
#ifndef IDMA_H
#define IDMA_H

#include "longma_registers.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { IDMA_STORE_BYTES = 4096, IDMA_READERS = 3, IDMA_WRITER = 3, IDMA_BEAT = 32 };

struct idma {
	volatile uint8_t *registers;
	uint8_t *store;
	int file, store_file;
};

/* A transfer. Zeros mean: one block, one row, all tags, the largest piece. */
struct idma_transfer {
	const volatile void *source;
	volatile void *destination;
	uint64_t length;
	uint32_t block_bytes, block_count;
	int32_t source_stride, destination_stride;
	int32_t source_row_stride, destination_row_stride;
	uint8_t first_tag, tags;
	uint16_t piece;
};

/* The channel state saved by idma_save. */
struct idma_saved {
	uint64_t registers[8], position, mask[2], tags[2];
	int goes_on;
};

/* A full barrier: orders all memory accesses before it and after it, for all observers. */
static inline void idma_barrier(void)
{
#if defined(__loongarch__)
	__asm__ volatile("dbar 0" ::: "memory");
#else
	__sync_synchronize();
#endif
}

#ifdef IDMA_STAND_IN
#include "idma_stand_in.h"
#else
static inline uint64_t idma_read(const struct idma *engine, unsigned offset)
{
	return *(volatile uint64_t *)(engine->registers + offset);
}

static inline void idma_write(const struct idma *engine, unsigned offset, uint64_t value)
{
	*(volatile uint64_t *)(engine->registers + offset) = value;
}

/* Maps the engine and in-core store of core `core` and binds the calling thread to that core. Returns 0, or -1 with errno. */
static inline int idma_open(struct idma *engine, int core)
{
	char name[40];
	cpu_set_t only;
	CPU_ZERO(&only);
	CPU_SET(core, &only);
	snprintf(name, sizeof name, "/dev/longma/idma%d", core);
	engine->file = open(name, O_RDWR | O_CLOEXEC);
	snprintf(name, sizeof name, "/dev/longma/store%d", core);
	engine->store_file = open(name, O_RDWR | O_CLOEXEC);
	if (engine->file < 0 || engine->store_file < 0 || sched_setaffinity(0, sizeof only, &only))
		return -1;
	engine->registers = (volatile uint8_t *)mmap(NULL, IDMA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, engine->file, 0);
	engine->store = (uint8_t *)mmap(NULL, IDMA_STORE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, engine->store_file, 0);
	return engine->registers == MAP_FAILED || engine->store == MAP_FAILED ? -1 : 0;
}
#endif

static inline uint64_t idma_get(const struct idma *engine, int channel, unsigned reg)
{
	return idma_read(engine, IDMA_CHANNEL(channel) + reg);
}

static inline void idma_set(const struct idma *engine, int channel, unsigned reg, uint64_t value)
{
	idma_write(engine, IDMA_CHANNEL(channel) + reg, value);
}

/* The two signed halves of a stride register. */
static inline uint64_t idma_pair(int32_t source, int32_t destination)
{
	return (uint64_t)(uint32_t)destination << 32 | (uint32_t)source;
}

/* Writes a transfer's registers without starting it. */
static inline void idma_describe(const struct idma *engine, int channel, const struct idma_transfer *t)
{
	idma_set(engine, channel, IDMA_CHANNEL_SOURCE, (uint64_t)(uintptr_t)t->source);
	idma_set(engine, channel, IDMA_CHANNEL_DESTINATION, (uint64_t)(uintptr_t)t->destination);
	idma_set(engine, channel, IDMA_CHANNEL_LENGTH, t->length);
	idma_set(engine, channel, IDMA_CHANNEL_BLOCK, (uint64_t)t->block_count << 32 | t->block_bytes);
	idma_set(engine, channel, IDMA_CHANNEL_STRIDE, idma_pair(t->source_stride, t->destination_stride));
	idma_set(engine, channel, IDMA_CHANNEL_ROW_STRIDE, idma_pair(t->source_row_stride, t->destination_row_stride));
	idma_set(engine, channel, IDMA_CHANNEL_TAG, (uint64_t)t->piece << 16 | (uint64_t)t->tags << 8 | t->first_tag);
}

/* Starts the described transfer. The engine sees all earlier stores of the core. */
static inline void idma_start(const struct idma *engine, int channel, uint64_t flags)
{
	idma_barrier();
	idma_set(engine, channel, IDMA_CHANNEL_CONTROL, IDMA_CHANNEL_CONTROL_START | flags);
}

/* Tags 64 * word to 64 * word + 63. Later loads see the data of pieces that are ready. */
static inline uint64_t idma_tags(const struct idma *engine, int channel, int word)
{
	uint64_t tags = idma_get(engine, channel, IDMA_CHANNEL_TAGS0 + 8u * (unsigned)word);
	idma_barrier();
	return tags;
}

/* Gives pieces to the engine, which sees all earlier stores of the core. */
static inline void idma_give(const struct idma *engine, int channel, int word, uint64_t tags)
{
	idma_barrier();
	idma_set(engine, channel, IDMA_CHANNEL_GIVE0 + 8u * (unsigned)word, tags);
}

/* Takes pieces for the core; the channel pauses there. */
static inline void idma_take(const struct idma *engine, int channel, int word, uint64_t tags)
{
	idma_set(engine, channel, IDMA_CHANNEL_TAKE0 + 8u * (unsigned)word, tags);
}

static inline uint64_t idma_status(const struct idma *engine, int channel)
{
	return idma_get(engine, channel, IDMA_CHANNEL_STATUS);
}

/* The cause of a fault, or 0. */
static inline unsigned idma_error(uint64_t status)
{
	return (unsigned)((status & IDMA_CHANNEL_STATUS_ERROR_MASK) >> IDMA_CHANNEL_STATUS_ERROR_SHIFT);
}

/* Polls until a channel is done or faulted; returns its status. */
static inline uint64_t idma_finish(const struct idma *engine, int channel)
{
	uint64_t status;
	do
		status = idma_status(engine, channel);
	while (!(status & (IDMA_CHANNEL_STATUS_DONE | IDMA_CHANNEL_STATUS_FAULTED)) || status & IDMA_CHANNEL_STATUS_BUSY);
	idma_barrier();
	return status;
}

/* Sleeps until the engine interrupts; clears and returns the causes. */
static inline uint64_t idma_wait_interrupt(const struct idma *engine)
{
	uint64_t count, causes;
	while (read(engine->file, &count, sizeof count) < 0 && errno == EINTR)
		;
	causes = idma_read(engine, IDMA_INTERRUPT);
	idma_write(engine, IDMA_INTERRUPT, causes);
	idma_barrier();
	return causes;
}

/* Stops a channel before its next piece and saves its state, to resume on this or another core. */
static inline void idma_save(const struct idma *engine, int channel, struct idma_saved *saved)
{
	uint64_t status = idma_status(engine, channel);
	saved->goes_on = (status & (IDMA_CHANNEL_STATUS_RUNNING | IDMA_CHANNEL_STATUS_DONE)) != 0;
	for (unsigned i = 0; i < 8; i++)
		saved->registers[i] = idma_get(engine, channel, 8 * i);
	if (status & IDMA_CHANNEL_STATUS_RUNNING)
		idma_set(engine, channel, IDMA_CHANNEL_CONTROL, saved->registers[7] | IDMA_CHANNEL_CONTROL_STOP);
	while (idma_status(engine, channel) & (IDMA_CHANNEL_STATUS_BUSY | IDMA_CHANNEL_STATUS_RUNNING))
		;
	saved->position = idma_get(engine, channel, IDMA_CHANNEL_POSITION);
	for (unsigned i = 0; i < 2; i++) {
		saved->mask[i] = idma_get(engine, channel, IDMA_CHANNEL_MASK0 + 8 * i);
		saved->tags[i] = idma_get(engine, channel, IDMA_CHANNEL_TAGS0 + 8 * i);
	}
}

/* Restores the state of idma_save; writes CONTROL, which resumes, last. */
static inline void idma_restore(const struct idma *engine, int channel, const struct idma_saved *saved)
{
	for (unsigned i = 0; i < 2; i++) {
		idma_set(engine, channel, IDMA_CHANNEL_TAGS0 + 8 * i, saved->tags[i]);
		idma_set(engine, channel, IDMA_CHANNEL_MASK0 + 8 * i, saved->mask[i]);
	}
	idma_set(engine, channel, IDMA_CHANNEL_POSITION, saved->position);
	for (unsigned i = 0; i < 7; i++)
		idma_set(engine, channel, 8 * i, saved->registers[i]);
	idma_barrier();
	idma_set(engine, channel, IDMA_CHANNEL_CONTROL, saved->registers[7] | (saved->goes_on ? IDMA_CHANNEL_CONTROL_RESUME : 0));
}

/* Start flags of the write channel that connect it to channel `reader`. */
static inline uint64_t idma_fed_by(int reader)
{
	return (uint64_t)(reader + 1) << IDMA_CHANNEL_CONTROL_FEED_SHIFT | IDMA_CHANNEL_CONTROL_RECYCLE;
}

#endif
