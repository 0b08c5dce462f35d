/*
 * refused WHAT: one work request that fails, on a queue pair that is connected to itself, or one verb that is refused.
 * Prints the failed completions.
 *
 * WHAT is one of the names below.
 */
#include "loopback.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { LENGTH = 64, ROOM = 4 * LENGTH };
static char memory[2 * ROOM] __attribute__((aligned(8)));

/* The arguments are a queue pair and a receive work request. */
static void *post_recv_later(void *args)
{
	struct ibv_recv_wr *bad;

	usleep(100000);
	CHECK(!ibv_post_recv(((void **)args)[0], ((void **)args)[1], &bad));
	return NULL;
}

/* Acknowledges an event of the completion queue after 2.5 seconds. */
static void *acknowledge_later(void *cq)
{
	usleep(2500000);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

/* Posts 64 WRITEs to a completion queue with 2 entries, and polls none of them. */
static int overrun(struct ibv_pd *pd, struct ibv_mr *mr, struct ibv_qp_init_attr init)
{
	struct ibv_async_event event;
	struct ibv_cq *cq = ibv_create_cq(pd->context, 2, NULL, NULL, 0);
	struct ibv_qp *qp;

	CHECK(cq);
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = 64;
	CHECK((qp = ibv_create_qp(pd, &init)));
	connect_to_itself(qp, IBV_ACCESS_REMOTE_WRITE);
	for (int i = 0; i < 64; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
		struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					    .send_flags = IBV_SEND_SIGNALED }, *bad;
		send.wr.rdma.remote_addr = (uintptr_t)memory + LENGTH;
		send.wr.rdma.rkey = mr->rkey;
		CHECK(!ibv_post_send(qp, &send, &bad));
	}
	CHECK(!ibv_get_async_event(pd->context, &event));
	ibv_ack_async_event(&event);
	return 0;
}

/* Sends a datagram to its own queue pair, with another Q_Key than that has. */
static int send_with_wrong_qkey(struct ibv_pd *pd, struct ibv_mr *mr, struct ibv_qp_init_attr init)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	struct ibv_ah_attr to = { .port_num = 1, .grh.hop_limit = 1 };
	struct ibv_port_attr port;
	struct ibv_ah *ah;
	struct ibv_qp *qp;
	struct ibv_wc wc;

	init.qp_type = IBV_QPT_UD;
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(!ibv_query_port(pd->context, 1, &port));
	to.dlid = port.lid;
	CHECK((ah = ibv_create_ah(pd, &to)));
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
				    .wr.ud = { ah, qp->qp_num, 0x22 } }, *bad;
	CHECK(!ibv_post_send(qp, &send, &bad));
	for (int i = 0; i < 100; i++) {
		CHECK(ibv_poll_cq(init.send_cq, 1, &wc) >= 0);
		usleep(1000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *read_only;
	struct ibv_qp *qp;
	const int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	CHECK(argc == 2 && list && list[0]);
	const char *what = argv[1];
	CHECK((context = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, ROOM, IBV_ACCESS_LOCAL_WRITE | remote)));
	CHECK((read_only = ibv_reg_mr(pd, memory + ROOM, ROOM, IBV_ACCESS_REMOTE_READ)));
	if (!strcmp(what, "no-local-write"))
		return !!ibv_reg_mr(pd, memory, ROOM, IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1, .max_recv_wr = 8, .max_recv_sge = 1 },
	};
	if (!strcmp(what, "too-many-sges")) {
		init.cap.max_send_sge = 1000;
		return !!ibv_create_qp(pd, &init);
	}
	if (!strcmp(what, "cq-overrun"))
		return overrun(pd, mr, init);
	if (!strcmp(what, "wrong-qkey"))
		return send_with_wrong_qkey(pd, mr, init);
	if (!strcmp(what, "recv-with-srq")) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
		CHECK((init.srq = ibv_create_srq(pd, &attr)));
	}
	CHECK((qp = ibv_create_qp(pd, &init)));
	if (!strcmp(what, "no-transition")) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
		return !ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	}
	if (!strcmp(what, "recv-in-reset")) {
		struct ibv_recv_wr recv = { .wr_id = 8 }, *bad;
		return ibv_post_recv(qp, &recv, &bad) != EINVAL;
	}
	connect_to_itself_from_psn(qp, strcmp(what, "qp-access") ? remote : IBV_ACCESS_REMOTE_READ, strcmp(what, "psn") ? 0 : 5);

	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	send.wr.rdma.remote_addr = (uintptr_t)memory;
	send.wr.rdma.rkey = mr->rkey;
	struct ibv_sge place = { (uintptr_t)memory, LENGTH / 2, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 8, .sg_list = &place, .num_sge = 1 }, *bad_recv;
	uint64_t last = 7; /* the work request whose completion ends the program */

	if (!strcmp(what, "recv-with-srq"))
		return ibv_post_recv(qp, &recv, &bad_recv) != EINVAL;
	if (!strcmp(what, "recv-too-many-sges")) {
		recv.num_sge = 2;
		return ibv_post_recv(qp, &recv, &bad_recv) != EINVAL;
	}
	if (!strcmp(what, "inline-read")) {
		send.opcode = IBV_WR_RDMA_READ;
		send.send_flags |= IBV_SEND_INLINE;
		sge.length = 0;
		return ibv_post_send(qp, &send, &bad_send) != EINVAL;
	}
	if (!strcmp(what, "events") || !strcmp(what, "unacknowledged")) {
		/* No event yet, and then one that the program waits for. */
		struct ibv_async_event event;
		struct ibv_cq *of;
		void *cq_context;
		CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
		CHECK(ibv_get_cq_event(channel, &of, &cq_context) == -1 && errno == EAGAIN);
		CHECK(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
		CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
		CHECK(!fcntl(channel->fd, F_SETFL, 0));
		CHECK(!ibv_req_notify_cq(cq, 0));
		struct ibv_send_wr slow = send;
		slow.opcode = IBV_WR_SEND; /* Completes when the receive work request arrives. */
		CHECK(!ibv_post_send(qp, &slow, &bad_send));
		place.length = LENGTH;
		pthread_t poster;
		CHECK(!pthread_create(&poster, NULL, post_recv_later, (void *[]){ qp, &recv }));
		CHECK(!ibv_get_cq_event(channel, &of, &cq_context));
		CHECK(!pthread_join(poster, NULL));
		if (!strcmp(what, "unacknowledged")) {
			CHECK(!ibv_destroy_qp(qp));
			CHECK(!pthread_create(&poster, NULL, acknowledge_later, cq));
			return ibv_destroy_cq(cq) || pthread_join(poster, NULL);
		}
		ibv_ack_cq_events(cq, 1);
		return 0;
	}
	if (!strcmp(what, "range"))
		send.wr.rdma.remote_addr += ROOM;
	else if (!strcmp(what, "rkey"))
		send.wr.rdma.rkey ^= 0xff;
	else if (!strcmp(what, "lkey"))
		sge.lkey ^= 0xff;
	else if (!strcmp(what, "access")) {
		send.wr.rdma.remote_addr = (uintptr_t)memory + ROOM;
		send.wr.rdma.rkey = read_only->rkey;
	} else if (!strcmp(what, "unaligned")) {
		send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sge.length = 8;
		send.wr.atomic.remote_addr = (uintptr_t)memory + 1;
		send.wr.atomic.rkey = mr->rkey;
	} else if (!strcmp(what, "short")) {
		send.opcode = IBV_WR_SEND;
		CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	} else if (!strcmp(what, "flushed")) {
		/* The first receive work request fails, and the second one is flushed. */
		struct ibv_recv_wr second = { .wr_id = 9 };
		recv.next = &second;
		send.opcode = IBV_WR_SEND;
		last = 9;
		CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	} else if (!strcmp(what, "no-receive"))
		send.opcode = IBV_WR_SEND;
	else
		CHECK(!strcmp(what, "qp-access") || !strcmp(what, "psn"));
	CHECK(!ibv_post_send(qp, &send, &bad_send));

	int is_done = 0;
	while (!is_done) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);

		CHECK(found >= 0);
		if (!found)
			continue;
		printf("wr_id %lu: %s, vendor_err 0x%x\n", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
		is_done = wc.wr_id == last;
	}
	return 0;
}
