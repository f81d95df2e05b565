/*
 * idma_stand_in.h: an IDMA engine in software, to run programs for idma.h without one (-DIDMA_STAND_IN).
 * It moves as much as possible at every register access, has no timing and no faults. Included by idma.h only.
 */
#ifndef IDMA_STAND_IN_H
#define IDMA_STAND_IN_H

struct stand_in_channel {
	uint64_t registers[8], moved, mask[2], tags[2];
	int running;
};

static struct stand_in_channel stand_in[IDMA_READERS + 1];
static _Alignas(64) uint8_t stand_in_store[IDMA_STORE_BYTES];

static inline uint8_t *stand_in_address(const struct stand_in_channel *c, uint64_t base, int half, uint64_t offset)
{
	uint64_t block = (uint32_t)c->registers[3], count = c->registers[3] >> 32;
	int64_t stride = (int32_t)(c->registers[4] >> 32 * half), row = (int32_t)(c->registers[5] >> 32 * half);
	if (!block)
		return (uint8_t *)(uintptr_t)(base + offset);
	uint64_t number = offset / block, line = count ? number / count : 0;
	int64_t along = (int64_t)line * row + (int64_t)(number - line * count) * stride;
	return (uint8_t *)(uintptr_t)(base + (uint64_t)along + offset % block);
}

/* Moves one piece of a channel, if possible. */
static inline int stand_in_step(int number)
{
	struct stand_in_channel *c = &stand_in[number];
	uint64_t tag = c->registers[6], first = tag & 255, ring = tag >> 8 & 255, piece = tag >> 16 & 65535;
	uint64_t length = c->registers[2], feed = c->registers[7] >> 8 & 15;
	piece = piece ? piece : IDMA_BEAT;
	ring = ring ? ring : 128 - first;
	if (c->running && c->moved * piece >= length)
		c->running = 0;
	if (!c->running)
		return 0;
	uint64_t mine = first + c->moved % ring;
	struct stand_in_channel *from = feed ? &stand_in[feed - 1] : NULL;
	uint64_t from_tag = from ? from->registers[6] : 0, from_ring = from_tag >> 8 & 255;
	uint64_t theirs = from ? (from_tag & 255) + c->moved % (from_ring ? from_ring : 128 - (from_tag & 255)) : 0;
	if (c->tags[mine / 64] >> mine % 64 & 1 || (from && !(from->tags[theirs / 64] >> theirs % 64 & 1)))
		return 0;
	for (uint64_t i = 0, at = c->moved * piece; i < piece && at < length; i++, at++) {
		uint64_t round = at % (ring * piece);
		const uint8_t *source = number == IDMA_WRITER
			? from ? stand_in_address(from, from->registers[1], 1, at % ((from_ring ? from_ring : 128) * piece))
			       : stand_in_address(c, c->registers[0], 0, round)
			: stand_in_address(c, c->registers[0], 0, at);
		*stand_in_address(c, c->registers[1], 1, number == IDMA_WRITER ? at : round) = *source;
	}
	c->moved++;
	if (!(c->registers[7] & IDMA_CHANNEL_CONTROL_RECYCLE))
		c->tags[mine / 64] |= 1ull << mine % 64;
	if (from)
		from->tags[theirs / 64] &= ~(1ull << theirs % 64);
	return 1;
}

static inline void stand_in_run(void)
{
	int any = 1;
	while (any)
		for (int number = any = 0; number <= IDMA_WRITER; number++)
			any |= stand_in_step(number);
}

static inline uint64_t idma_read(const struct idma *engine, unsigned offset)
{
	(void)engine;
	stand_in_run();
	struct stand_in_channel *c = &stand_in[offset / 0x100 % 4];
	offset %= 0x100;
	if (offset == IDMA_CHANNEL_STATUS)
		return c->running ? IDMA_CHANNEL_STATUS_RUNNING : IDMA_CHANNEL_STATUS_DONE;
	if (offset == IDMA_CHANNEL_TAGS0 || offset == IDMA_CHANNEL_TAGS1)
		return c->tags[offset / 8 % 2];
	return offset == IDMA_CHANNEL_POSITION ? c->moved : offset < 64 ? c->registers[offset / 8] : 0;
}

static inline void idma_write(const struct idma *engine, unsigned offset, uint64_t value)
{
	(void)engine;
	struct stand_in_channel *c = &stand_in[offset / 0x100 % 4];
	unsigned reg = offset % 0x100, word = reg / 8 % 2;
	if (offset >= 0x400)
		return;
	if (reg < 64)
		c->registers[reg / 8] = value;
	if (reg == IDMA_CHANNEL_TAGS0 || reg == IDMA_CHANNEL_TAGS1)
		c->tags[word] = value;
	if (reg == IDMA_CHANNEL_GIVE0 || reg == IDMA_CHANNEL_GIVE1)
		c->tags[word] &= ~value;
	if (reg == IDMA_CHANNEL_TAKE0 || reg == IDMA_CHANNEL_TAKE1)
		c->tags[word] |= value;
	if (reg == IDMA_CHANNEL_POSITION)
		c->moved = value;
	if (reg == IDMA_CHANNEL_CONTROL && value & (IDMA_CHANNEL_CONTROL_START | IDMA_CHANNEL_CONTROL_RESUME)) {
		c->running = 1;
		c->moved = value & IDMA_CHANNEL_CONTROL_START ? 0 : c->moved;
		if (value & IDMA_CHANNEL_CONTROL_GIVE)
			c->tags[0] = c->tags[1] = 0;
	}
	if (reg == IDMA_CHANNEL_CONTROL && value & IDMA_CHANNEL_CONTROL_STOP)
		c->running = 0;
	stand_in_run();
}

static inline int idma_open(struct idma *engine, int core)
{
	(void)core;
	engine->registers = NULL;
	engine->store = stand_in_store;
	return 0;
}

#endif
