/*
 * What the programs between two hosts share: a TCP connection to the peer, data that both sides compute, and errors that end
 * the program.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a side tells its peer before queue pairs connect. */
struct side {
	uint64_t addr;
	uint32_t rkey, qpn, psn;
	union ibv_gid gid;
};

static int tcp;
static uint64_t bytes; /* checked */
static char doing[160] = "begin";

static void die(const char *format, ...)
{
	va_list words;
	va_start(words, format);
	fprintf(stderr, "%s: %s: ", program_invocation_short_name, doing);
	vfprintf(stderr, format, words);
	fprintf(stderr, "\n");
	va_end(words);
	exit(1);
}

static void *must(void *object, const char *what)
{
	if (!object)
		die("%s: %s", what, strerror(errno));
	return object;
}

static void zero(int err, const char *what)
{
	if (err)
		die("%s: %s", what, strerror(err < 0 ? errno : err));
}

static uint64_t now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

/* Both sides compute the same bytes from the same seed. */
static uint64_t mix(uint64_t value)
{
	value += 0x9e3779b97f4a7c15;
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
	value = (value ^ value >> 27) * 0x94d049bb133111eb;
	return value ^ value >> 31;
}

static void fill(uint8_t *at, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = mix(seed + i);
		memcpy(at + i, &word, length - i < 8 ? length - i : 8);
	}
}

static void check(const uint8_t *at, size_t length, uint64_t seed, const char *what)
{
	for (size_t i = 0; i < length; i++) {
		uint8_t want = (uint8_t)(mix(seed + i / 8 * 8) >> i % 8 * 8);
		if (at[i] != want)
			die("%s: byte %zu of %zu is %#x instead of %#x", what, i, length, at[i], want);
	}
	bytes += length;
}

static void tell(const void *from, size_t length)
{
	if (write(tcp, from, length) != (ssize_t)length)
		die("the peer is gone");
}

static void hear(void *to, size_t length)
{
	if (recv(tcp, to, length, MSG_WAITALL) != (ssize_t)length)
		die("the peer is gone");
}

static void meet(void)
{
	char mine = 'm', theirs;
	tell(&mine, 1);
	hear(&theirs, 1);
}

/* Connects to the server `host`, or waits for a client if `host` is null. */
static void connect_tcp(const char *host, int port_number)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE, .ai_family = AF_INET };
	struct addrinfo *found;
	char port[16];
	int one = 1;
	snprintf(port, sizeof port, "%d", port_number);
	if (getaddrinfo(host, port, &hints, &found))
		die("no address for %s", host ? host : "all");
	tcp = socket(found->ai_family, SOCK_STREAM, 0);
	if (host) {
		for (int tries = 0; connect(tcp, found->ai_addr, found->ai_addrlen); tries++) {
			if (tries == 300)
				die("connect: %s", strerror(errno));
			close(tcp);
			usleep(100000);
			tcp = socket(found->ai_family, SOCK_STREAM, 0);
		}
	} else {
		int listener = tcp;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		zero(bind(listener, found->ai_addr, found->ai_addrlen), "bind");
		zero(listen(listener, 1), "listen");
		tcp = accept(listener, NULL, NULL);
		if (tcp < 0)
			die("accept: %s", strerror(errno));
		close(listener);
	}
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	freeaddrinfo(found);
}

/* Opens the device of this name, or the first one if `name` is null. */
static struct ibv_context *open_context(const char *name)
{
	struct ibv_device **list = must(ibv_get_device_list(NULL), "ibv_get_device_list");
	struct ibv_device *device = NULL;
	for (int i = 0; list[i]; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name)) {
			device = list[i];
			break;
		}
	if (!device)
		die("there is no device %s", name ? name : "at all");
	struct ibv_context *opened = must(ibv_open_device(device), "ibv_open_device");
	ibv_free_device_list(list);
	return opened;
}

static enum ibv_mtu mtu_of(int size)
{
	enum ibv_mtu mtu = IBV_MTU_256;
	while (128 << mtu < size)
		mtu++;
	return mtu;
}
