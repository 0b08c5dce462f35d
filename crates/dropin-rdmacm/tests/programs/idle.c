/*
 * An idle connection whose peer is killed: "idle server" and "idle client ADDRESS" connect, and print "established". Then
 * they wait, and print "disconnected" when the event comes.
 */
#include <rdma/rdma_cma.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
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

static struct rdma_cm_id *wait_for(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != wanted)
		fprintf(stderr, "%s\n", rdma_event_str(event->event));
	CHECK(event->event == wanted);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	CHECK(!rdma_create_qp(id, NULL, &init));
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *id;

	channel = rdma_create_event_channel();
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (argc == 2) {
		CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 1));
		id = wait_for(RDMA_CM_EVENT_CONNECT_REQUEST);
		create_qp(id);
		CHECK(!rdma_accept(id, &param));
	} else {
		CHECK(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000));
		wait_for(RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(id, 5000));
		wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED);
		create_qp(id);
		CHECK(!rdma_connect(id, &param));
	}
	wait_for(RDMA_CM_EVENT_ESTABLISHED);
	puts("established");
	fflush(stdout);
	wait_for(RDMA_CM_EVENT_DISCONNECTED);
	puts("disconnected");
	return 0;
}
