/*
 * What connection management and sockets answer when the process has no more descriptors: a sequence of calls is run in a
 * child with room for none, for one, for two, and so on until all of them succeed. The first that fails must say EMFILE.
 * Prints "ok".
 */
#define _GNU_SOURCE
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			_exit(1);                                              \
		}                                                              \
	} while (0)

/* How a child ends. */
enum { ALL = 0, SHORT = 42 };

/* A call that may fail for want of descriptors, and of nothing else. */
#define MAY_FAIL(failed)                         \
	do {                                     \
		errno = 0;                       \
		if (failed) {                    \
			CHECK(errno == EMFILE); \
			return SHORT;            \
		}                                \
	} while (0)

static struct sockaddr_in local = { .sin_family = AF_INET };
static struct sockaddr *const to = (struct sockaddr *)&local;

static int fillers[256], filler_count;

/* Leaves room for so many descriptors. */
static void leave_descriptors(int count)
{
	struct rlimit limit = { 256, 256 };

	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while ((fillers[filler_count] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
		filler_count++;
	CHECK(errno == EMFILE && filler_count >= count);
	while (count--)
		CHECK(!close(fillers[--filler_count]));
}

static void free_descriptors(void)
{
	while (filler_count)
		CHECK(!close(fillers[--filler_count]));
}

/* Ids, and what they need. */
struct ids {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *own, *asker;
};

static int make_ids(struct ids *i)
{
	struct rdma_cm_event *event;
	struct rdma_addrinfo *info;

	MAY_FAIL(!(i->channel = rdma_create_event_channel()));
	MAY_FAIL(rdma_create_id(i->channel, &i->listener, NULL, RDMA_PS_TCP));
	MAY_FAIL(rdma_create_id(NULL, &i->own, NULL, RDMA_PS_TCP));
	MAY_FAIL(rdma_bind_addr(i->listener, to));
	MAY_FAIL(rdma_listen(i->listener, 1));
	MAY_FAIL(rdma_getaddrinfo("127.0.0.1", "7471", NULL, &info));
	rdma_freeaddrinfo(info);
	MAY_FAIL(rdma_create_id(i->channel, &i->asker, NULL, RDMA_PS_TCP));
	MAY_FAIL(rdma_resolve_addr(i->asker, NULL, to, 1000));
	CHECK(!rdma_get_cm_event(i->channel, &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event));
	MAY_FAIL(rdma_resolve_route(i->asker, 1000));
	CHECK(!rdma_get_cm_event(i->channel, &event) && event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_ack_cm_event(event));
	return ALL;
}

static void destroy_ids(struct ids *i)
{
	CHECK(!i->asker || !rdma_destroy_id(i->asker));
	CHECK(!i->own || !rdma_destroy_id(i->own));
	CHECK(!i->listener || !rdma_destroy_id(i->listener));
	if (i->channel)
		rdma_destroy_event_channel(i->channel);
	memset(i, 0, sizeof(*i));
}

static int ids(int room)
{
	struct ids i = { 0 };

	leave_descriptors(room);
	int end = make_ids(&i);
	destroy_ids(&i);
	if (end == SHORT) {
		free_descriptors();
		CHECK(make_ids(&i) == ALL);
		destroy_ids(&i);
	}
	return end;
}

/* Sockets that are not connected. */
static int make_sockets(int sockets[3])
{
	for (int i = 0; i < 3; i++)
		sockets[i] = -1;
	MAY_FAIL((sockets[0] = rsocket(AF_INET, SOCK_STREAM, 0)) < 0);
	MAY_FAIL(rbind(sockets[0], to, sizeof(local)));
	MAY_FAIL(rlisten(sockets[0], 1));
	MAY_FAIL((sockets[1] = rsocket(AF_INET, SOCK_DGRAM, 0)) < 0);
	MAY_FAIL(rbind(sockets[1], to, sizeof(local)));
	MAY_FAIL((sockets[2] = rsocket(AF_INET, SOCK_STREAM, 0)) < 0);
	return ALL;
}

static int sockets(int room)
{
	int made[3];

	leave_descriptors(room);
	int end = make_sockets(made);
	for (int i = 0; i < 3; i++)
		CHECK(made[i] < 0 || !rclose(made[i]));
	if (end == SHORT) {
		free_descriptors();
		CHECK(make_sockets(made) == ALL);
		for (int i = 0; i < 3; i++)
			CHECK(!rclose(made[i]));
	}
	return end;
}

/* With more and more room, until there is enough; it is not enough at once. */
static void sweep(int (*what)(int))
{
	int room, end = SHORT;

	for (room = 0; end == SHORT; room++) {
		int status;
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid)
			exit(what(room));
		CHECK(waitpid(pid, &status, 0) == pid);
		if (!WIFEXITED(status))
			fprintf(stderr, "room for %d: signal %d\n", room, WTERMSIG(status));
		CHECK(WIFEXITED(status));
		end = WEXITSTATUS(status);
		CHECK(end == ALL || end == SHORT);
	}
	CHECK(room > 2);
}

static double seconds(clockid_t clock)
{
	struct timespec time;

	CHECK(!clock_gettime(clock, &time));
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *connects(void *port)
{
	struct sockaddr_in address = local;
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);
	char c = 'c';

	address.sin_port = *(in_port_t *)port;
	CHECK(socket >= 0 && !rconnect(socket, (struct sockaddr *)&address, sizeof(address)));
	CHECK(rsend(socket, &c, 1, 0) == 1 && rrecv(socket, &c, 1, 0) == 1 && c == 'd');
	CHECK(!rclose(socket));
	return NULL;
}

/* A request that comes while there are no descriptors for it waits until there are some, and costs nothing meanwhile. */
static void requests(void)
{
	struct sockaddr_in address;
	socklen_t length = sizeof(address);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), go[2], status;
	char c;

	CHECK(listener >= 0 && !rbind(listener, to, sizeof(local)) && !rlisten(listener, 1));
	CHECK(!rgetsockname(listener, (struct sockaddr *)&address, &length));
	CHECK(!pipe(go));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!close(go[1]) && read(go[0], &c, 1) == 0);
		connects(&address.sin_port);
		exit(0);
	}
	leave_descriptors(0);
	CHECK(!close(go[0]) && !close(go[1]));
	/* The two that were closed are used up as well. */
	leave_descriptors(0);
	double ran = seconds(CLOCK_PROCESS_CPUTIME_ID), begin = seconds(CLOCK_MONOTONIC);
	while (seconds(CLOCK_MONOTONIC) - begin < 1)
		usleep(100000);
	CHECK(seconds(CLOCK_PROCESS_CPUTIME_ID) - ran < 0.25);
	free_descriptors();
	int socket = raccept(listener, NULL, NULL);
	CHECK(socket >= 0 && rrecv(socket, &c, 1, 0) == 1 && c == 'c');
	c = 'd';
	CHECK(rsend(socket, &c, 1, 0) == 1);
	CHECK(!rclose(socket) && !rclose(listener));
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

int main(void)
{
	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sweep(ids);
	sweep(sockets);
	requests();
	puts("ok");
	return 0;
}
