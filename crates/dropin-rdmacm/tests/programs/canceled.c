/*
 * Threads that are cancelled: while they wait for an event of connection management, and before they call verbs and
 * sockets. Prints "ok", or where it failed.
 */
#define _GNU_SOURCE
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			_exit(1);                                              \
		}                                                              \
	} while (0)

static struct rdma_event_channel *channel;
static struct sockaddr_in local = { .sin_family = AF_INET };

static void *waits(void *unused)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && !rdma_ack_cm_event(event));
	return unused;
}

/* Until the first call that could have ended it: then this thread is to be cancelled, but within none of ours. */
static void *makes(void *unused)
{
	struct rdma_cm_id *id, *listener;
	struct rdma_addrinfo *info;

	CHECK(!pthread_cancel(pthread_self()));
	struct rdma_event_channel *own = rdma_create_event_channel();
	CHECK(own);
	CHECK(!rdma_create_id(own, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&local) && !rdma_listen(listener, 1));
	CHECK(!rdma_destroy_id(listener));
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", NULL, &info));
	rdma_freeaddrinfo(info);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&local, 1000) && !rdma_resolve_route(id, 1000));
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	CHECK(pd && !ibv_dealloc_pd(pd));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(own);
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0);
	CHECK(!rbind(listening, (struct sockaddr *)&local, sizeof(local)) && !rlisten(listening, 1));
	/* Nobody connects. */
	CHECK(!rfcntl(listening, F_SETFL, O_NONBLOCK));
	CHECK(raccept(listening, NULL, NULL) == -1 && errno == EAGAIN);
	struct pollfd fd = { .fd = listening, .events = POLLIN };
	CHECK(!rpoll(&fd, 1, 10));
	CHECK(!rclose(listening));
	pthread_testcancel();
	return unused;
}

int main(void)
{
	struct rdma_cm_id *id;
	pthread_t thread;
	void *ended;

	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK((channel = rdma_create_event_channel()));
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	for (int i = 0; i < 10; i++) {
		/* Before it waits, or while it does. */
		CHECK(!pthread_create(&thread, NULL, waits, NULL));
		if (i % 2)
			usleep(10000);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &ended) && ended == PTHREAD_CANCELED);
	}
	/* What happens afterwards is still reported. */
	CHECK(!pthread_create(&thread, NULL, waits, NULL));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&local, 1000));
	CHECK(!pthread_join(thread, &ended) && !ended);
	for (int i = 0; i < 10; i++) {
		CHECK(!pthread_create(&thread, NULL, makes, NULL) && !pthread_join(thread, &ended));
		CHECK(ended == PTHREAD_CANCELED);
	}
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
