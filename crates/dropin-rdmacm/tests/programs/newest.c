/*
 * What librdmacm has in rdma-core 65 and not in the headers that this is compiled with: address resolution by events, a
 * program's own events, and epoll for rsockets. Prints "ok", or where it failed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER = 18, RAI_SA = 0x10 };

int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);
int repoll_create(int flags);
int repoll_ctl(int set, int op, int fd, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int max_events, int timeout);

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			exit(1);                                               \
		}                                                              \
	} while (0)
#define FAILS(call, error) CHECK((errno = 0, (call)) == -1 && errno == (error))

static int next_event(struct rdma_event_channel *channel, int *status, uint64_t *arg)
{
	struct rdma_cm_event *event;
	int kind;

	CHECK(!rdma_get_cm_event(channel, &event));
	kind = event->event;
	*status = event->status;
	memcpy(arg, &event->param, sizeof(*arg));
	CHECK(!rdma_ack_cm_event(event));
	return kind;
}

static void events(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_SA, .ai_port_space = RDMA_PS_TCP };
	struct rdma_cm_id *id;
	uint64_t arg;
	int status;

	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_write_cm_event(id, USER, 7, 0x55667788aabbccdd));
	CHECK(next_event(channel, &status, &arg) == USER && status == 7 && arg == 0x55667788aabbccdd);
	FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	CHECK(!strcmp(rdma_event_str(USER), "RDMA_CM_EVENT_USER"));

	FAILS(rdma_query_addrinfo(id, &info), EINVAL);
	FAILS(rdma_resolve_addrinfo(id, NULL, "7", &hints), EOPNOTSUPP);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(!rdma_resolve_addrinfo(id, "not an address", "7000", &hints));
	CHECK(next_event(channel, &status, &arg) == ADDRINFO_ERROR && status < 0);
	FAILS(rdma_query_addrinfo(id, &info), EINVAL);
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7000", &hints));
	CHECK(next_event(channel, &status, &arg) == ADDRINFO_RESOLVED && !status);
	CHECK(!rdma_query_addrinfo(id, &info));
	CHECK(((struct sockaddr_in *) info->ai_dst_addr)->sin_port == htons(7000));
	CHECK(info->ai_port_space == RDMA_PS_TCP && info->ai_qp_type == IBV_QPT_RC);
	rdma_freeaddrinfo(info);
	/* One that nobody asks for. */
	CHECK(!rdma_resolve_addrinfo(id, "127.0.0.1", "7000", &hints));
	CHECK(next_event(channel, &status, &arg) == ADDRINFO_RESOLVED);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static struct sockaddr_in address = { .sin_family = AF_INET };

static void *client(void *unused)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte;

	(void) unused;
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *) &address, sizeof(address)));
	CHECK(rsend(fd, "x", 1, 0) == 1);
	CHECK(rrecv(fd, &byte, 1, 0) == 1 && byte == 'y');
	CHECK(!rclose(fd));
	return NULL;
}

static void *writes(void *fd)
{
	CHECK(write(*(int *) fd, "z", 1) == 1);
	return NULL;
}

static void sockets(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), set = repoll_create(EPOLL_CLOEXEC), peer, ends[2];
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 11 }, got[4];
	socklen_t length = sizeof(address);
	pthread_t thread;
	char byte;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(listener >= 0 && set >= 0 && !pipe(ends));
	FAILS(repoll_create(77), EINVAL);
	CHECK(!rbind(listener, (struct sockaddr *) &address, sizeof(address)) && !rlisten(listener, 1));
	CHECK(!rgetsockname(listener, (struct sockaddr *) &address, &length));
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
	FAILS(repoll_ctl(set, EPOLL_CTL_ADD, listener, &event), EEXIST);
	FAILS(repoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event), ENOENT);
	FAILS(repoll_ctl(listener, EPOLL_CTL_ADD, set, &event), EBADF);
	FAILS(repoll_wait(set, got, 0, 0), EINVAL);
	CHECK(repoll_wait(set, got, 4, 0) == 0);

	CHECK(!pthread_create(&thread, NULL, client, NULL));
	CHECK(repoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 11 && got[0].events & EPOLLIN);
	peer = raccept(listener, NULL, NULL);
	CHECK(peer >= 0);
	event.data.u64 = 12;
	event.events = EPOLLIN | EPOLLONESHOT;
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, peer, &event));
	CHECK(repoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 12);
	/* Once means once, though the byte is still there. */
	CHECK(repoll_wait(set, got, 4, 0) == 0);
	CHECK(rrecv(peer, &byte, 1, 0) == 1 && byte == 'x' && rsend(peer, "y", 1, 0) == 1);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!repoll_ctl(set, EPOLL_CTL_DEL, peer, NULL));

	/* Other descriptors, too. */
	event.data.u64 = 13;
	event.events = EPOLLIN;
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
	CHECK(!pthread_create(&thread, NULL, writes, &ends[1]));
	CHECK(repoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 13);
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rclose(set) && !rclose(peer) && !rclose(listener));
	FAILS(repoll_wait(set, got, 4, 0), EBADF);
}

int main(void)
{
	events();
	sockets();
	puts("ok");
	return 0;
}
