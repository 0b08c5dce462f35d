/*
 * faulty SENDS EVENTS: a queue pair that is connected to itself sends SENDS messages, one after the other, and sleeps until
 * each has completed at both ends. Prints what each verb and completion came to, and then EVENTS asynchronous events.
 *
 * A verb that fails is an answer here, not the end.
 */
#include "loopback.h"

enum { LENGTH = 64 };
static char memory[2 * LENGTH];

static void wait_for_completion(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	struct ibv_cq *of;
	void *context;
	int found;

	CHECK(!ibv_req_notify_cq(cq, 0));
	while (!(found = ibv_poll_cq(cq, 1, &wc))) {
		CHECK(!ibv_get_cq_event(channel, &of, &context));
		ibv_ack_cq_events(of, 1);
		CHECK(!ibv_req_notify_cq(cq, 0));
	}
	if (found < 0)
		printf("poll: %s\n", strerror(-found));
	else
		printf("%s %lu: %s\n", wc.wr_id >= 1000 ? "recv" : "send", (unsigned long)wc.wr_id % 1000,
		       ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 3 && list && list[0]);
	CHECK((context = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 1000, NULL, channel, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1, .max_recv_wr = 8, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	CHECK((qp = ibv_create_qp(pd, &init)));
	connect_to_itself(qp, 0);

	for (int i = 0; i < atoi(argv[1]); i++) {
		struct ibv_sge from = { (uintptr_t)memory, LENGTH, mr->lkey };
		struct ibv_sge to = { (uintptr_t)memory + LENGTH, LENGTH, mr->lkey };
		struct ibv_send_wr send = { .wr_id = i, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
		struct ibv_recv_wr recv = { .wr_id = 1000 + i, .sg_list = &to, .num_sge = 1 }, *bad_recv;
		int refused;

		if ((refused = ibv_post_recv(qp, &recv, &bad_recv))) {
			printf("recv %d refused: %s\n", i, strerror(refused));
			continue;
		}
		if ((refused = ibv_post_send(qp, &send, &bad_send))) {
			printf("send %d refused: %s\n", i, strerror(refused));
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
			CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
			wait_for_completion(channel, cq);
			break;
		}
		wait_for_completion(channel, cq);
		wait_for_completion(channel, cq);
	}
	for (int i = 0; i < atoi(argv[2]); i++) {
		struct ibv_async_event event;

		CHECK(!ibv_get_async_event(context, &event));
		printf("event: %s\n", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("done");
	return 0;
}
