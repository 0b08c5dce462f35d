/*
 * signals: waits for events while signals come: five whose handler has SA_RESTART, and one whose handler has not.
 * Prints how each wait ended, and how many signals had come.
 */
#include "loopback.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t signals, waiting;
static pthread_t waiter;

static void count(int signal)
{
	(void)signal;
	signals = signals + 1;
}

static void *send_signals(void *unused)
{
	for (int i = 0; waiting; i++) {
		usleep(20000);
		pthread_kill(waiter, i < 5 ? SIGUSR1 : SIGUSR2);
		while (waiting && signals <= i)
			usleep(1000);
	}
	return unused;
}

#define WAIT(call)                                                                         \
	do {                                                                               \
		pthread_t sender;                                                          \
		signals = 0;                                                               \
		waiting = 1;                                                               \
		CHECK(!pthread_create(&sender, NULL, send_signals, NULL));                 \
		int result = call, error = errno;                                          \
		waiting = 0;                                                               \
		CHECK(!pthread_join(sender, NULL));                                        \
		printf("%s: %s after %d signals\n", #call, result ? strerror(error) : "0", (int)signals); \
	} while (0)

int main(void)
{
	struct sigaction restarted = { .sa_handler = count, .sa_flags = SA_RESTART }, not_restarted = { .sa_handler = count };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct rdma_event_channel *cm_channel;
	struct ibv_async_event event;
	struct rdma_cm_event *cm_event;
	struct ibv_cq *cq;
	void *cq_context;

	waiter = pthread_self();
	CHECK(list && list[0]);
	CHECK((context = ibv_open_device(list[0])));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cm_channel = rdma_create_event_channel()));
	CHECK(!sigaction(SIGUSR1, &restarted, NULL));
	CHECK(!sigaction(SIGUSR2, &not_restarted, NULL));
	WAIT(ibv_get_cq_event(channel, &cq, &cq_context));
	WAIT(ibv_get_async_event(context, &event));
	WAIT(rdma_get_cm_event(cm_channel, &cm_event));
	return 0;
}
