/*
 * One queue pair, connected to itself, with an extended completion queue that reports to a channel: what comes
 * while a poll is under way is reported, whether that takes it or leaves it. Prints "ok", or where it failed.
 */
#include <infiniband/verbs.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			exit(1);                                               \
		}                                                              \
	} while (0)

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp;

static void connect_to_itself(void)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
	};

	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 12;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = port.lid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC |
						IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Makes two completions: of a RECV and of the SEND that it takes. */
static void message(void)
{
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;

	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
}

static int reported(int timeout_ms)
{
	struct pollfd event = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *which;
	void *cq_context;

	if (poll(&event, 1, timeout_ms) == 0)
		return 0;
	CHECK(!ibv_get_cq_event(channel, &which, &cq_context));
	CHECK(which == ibv_cq_ex_to_cq(cq));
	ibv_ack_cq_events(which, 1);
	return 1;
}

static void arm(void)
{
	CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
}

int main(void)
{
	struct ibv_poll_cq_attr none = {};
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_pd *pd;
	int i, n;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .channel = channel };

	cq = ibv_create_cq_ex(context, &cq_attr);
	CHECK(cq);
	struct ibv_qp_init_attr init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8 },
	};

	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	connect_to_itself();

	for (i = 0; i < 20; i++) {
		/* Armed behind the first message; another comes while the first is polled, and is taken as well. Its
		 * event may find nothing, and comes once. */
		message();
		arm();
		CHECK(!ibv_start_poll(cq, &none));
		message();
		usleep(3000);
		for (n = 1; !ibv_next_poll(cq); n++)
			;
		ibv_end_poll(cq);
		CHECK(n == 4);
		CHECK(reported(10000));
		message();
		CHECK(!reported(20));
		for (n = 0; n < 2; n++) {
			CHECK(!ibv_start_poll(cq, &none));
			ibv_end_poll(cq);
		}
		/* Another comes while the first is polled, and is left. */
		message();
		arm();
		CHECK(!ibv_start_poll(cq, &none));
		message();
		usleep(3000);
		ibv_end_poll(cq);
		CHECK(reported(10000));
		for (n = 0; n < 3; n++) {
			CHECK(!ibv_start_poll(cq, &none));
			ibv_end_poll(cq);
		}
		CHECK(ibv_start_poll(cq, &none) == ENOENT);
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("ok");
	return 0;
}
