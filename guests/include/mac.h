/*
 * mac.h: an Ethernet MAC and the line lock of a shared cache, accessed through the registers of longma_registers.h.
 *
 *	struct mac mac;
 *	if (mac_open(&mac, "eth0")) ...         errno says why
 *	mac_write(&mac, MAC_RX_BASE, ...)       addresses are the program's virtual addresses
 *	mac_wait(&mac, milliseconds)            sleep until the MAC interrupts, or this long; -1: no limit
 */
#ifndef MAC_H
#define MAC_H

#include "longma_registers.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* A descriptor of a ring. */
struct mac_descriptor {
	uint64_t address;
	uint32_t control, status;
};

#define MAC_SEND_COMPLETE (1u << 29)
#define MAC_SEND_FIRST (1u << 30)
#define MAC_SEND_LAST (1u << 31)
#define MAC_STATUS_LENGTH 0xffffu
#define MAC_STATUS_SUM_WRONG (1u << 22)
#define MAC_STATUS_ERROR (1u << 28)
#define MAC_STATUS_LAST (1u << 29)
#define MAC_STATUS_FIRST (1u << 30)
#define MAC_STATUS_OWN (1u << 31)

struct mac {
	volatile uint8_t *registers;
	int file;
	/* Software handlers of accesses and waits, instead of a device. */
	uint64_t (*software)(unsigned offset, int is_write, uint64_t value);
};

/* A full barrier: orders all memory accesses before it and after it, for all observers. */
static inline void mac_barrier(void)
{
#if defined(__loongarch__)
	__asm__ volatile("dbar 0" ::: "memory");
#else
	__sync_synchronize();
#endif
}

static inline uint64_t mac_read(const struct mac *mac, unsigned offset)
{
	return mac->software ? mac->software(offset, 0, 0) : *(volatile uint64_t *)(mac->registers + offset);
}

static inline void mac_write(const struct mac *mac, unsigned offset, uint64_t value)
{
	if (mac->software)
		mac->software(offset, 1, value);
	else
		*(volatile uint64_t *)(mac->registers + offset) = value;
}

/* Maps the registers of a device in /dev/longma. Returns 0, or -1 with errno. */
static inline int device_map(const char *device, volatile uint8_t **registers, int *file)
{
	char name[64];
	snprintf(name, sizeof name, "/dev/longma/%s", device);
	*file = open(name, O_RDWR | O_CLOEXEC);
	if (*file < 0)
		return -1;
	*registers = (volatile uint8_t *)mmap(NULL, MAC_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
	return *registers == MAP_FAILED ? -1 : 0;
}

static inline int mac_open(struct mac *mac, const char *device)
{
	mac->software = NULL;
	return device_map(device, &mac->registers, &mac->file);
}

/* Sleeps until the MAC interrupts; returns 1, or 0 after this many milliseconds. */
static inline int mac_wait(const struct mac *mac, int milliseconds)
{
	uint64_t count;
	struct pollfd ready = {.fd = mac->file, .events = POLLIN};
	if (mac->software)
		return (int)mac->software(~0u, 0, (uint64_t)milliseconds);
	if (milliseconds >= 0 && poll(&ready, 1, milliseconds) == 0)
		return 0;
	while (read(mac->file, &count, sizeof count) < 0 && errno == EINTR)
		;
	return 1;
}

/* Opens window `window` of the lock of shared cache 0 over `bytes` at `base`, both aligned to `bytes`, a power of two. */
static inline void lock_window(volatile uint8_t *lock, unsigned window, const volatile void *base, uint64_t bytes)
{
	volatile uint64_t *at = (volatile uint64_t *)(lock + CACHE_LOCK_WINDOW(window));
	at[CACHE_LOCK_WINDOW_MASK / 8] = CACHE_LOCK_WINDOW_MASK_MASK_MASK & ~(bytes - 1);
	at[CACHE_LOCK_WINDOW_ADDRESS / 8] =
		CACHE_LOCK_WINDOW_ADDRESS_VALID | ((uint64_t)(uintptr_t)base & CACHE_LOCK_WINDOW_ADDRESS_ADDRESS_MASK);
}

#endif
