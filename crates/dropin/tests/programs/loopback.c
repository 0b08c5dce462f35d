/*
 * One process, two queue pairs, every path of verbs.h that a program takes: exported functions, functions
 * that are inline in the header, and macros. Prints "ok", or where it failed.
 */
#include <infiniband/verbs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			exit(1);                                               \
		}                                                              \
	} while (0)

static struct ibv_context *context;
static struct ibv_port_attr port;

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	union ibv_gid gid;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = port.lid;
	attr.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	attr.ah_attr.grh.dgid = gid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC |
						IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
	} while (n == 0);
	CHECK(n == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	return wc;
}

int main(void)
{
	static char memory[2][4096];
	int count, i, optional = IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_gid_entry entries[256], entry;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq, *got;
	struct ibv_mr *mr[2];
	struct ibv_qp *qp[2];
	struct ibv_wc wc;
	void *cq_context;
	enum ibv_fork_status forked;

	CHECK(list && count == 1 && list[0] && !list[1]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "softnic0"));
	CHECK(ibv_get_device_guid(list[0]));
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context);
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);

	CHECK(!ibv_query_gid_ex(context, 1, 0, &entry, 0));
	CHECK(entry.gid_type == (port.link_layer == IBV_LINK_LAYER_ETHERNET ?
					 IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB));
	CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 256, 0) >= 1);
	CHECK(!memcmp(&entries[0].gid, &entry.gid, sizeof(entry.gid)));
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK(ibv_get_pkey_index(context, 1, 0x1234) == -1);
	CHECK(!ibv_fork_init());
	forked = ibv_is_fork_initialized();
	CHECK(forked == IBV_FORK_UNNEEDED);

	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	CHECK(pd && channel && cq);
	/* Once by ibv_reg_mr_iova2, once by ibv_reg_mr, as the macro chooses. */
	mr[0] = ibv_reg_mr(pd, memory[0], sizeof(memory[0]), IBV_ACCESS_LOCAL_WRITE | optional);
	mr[1] = ibv_reg_mr_iova(pd, memory[1], sizeof(memory[1]), 0x1000,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr[0] && mr[1]);
	for (i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
				 .max_recv_sge = 1, .max_inline_data = 64 },
		};
		qp[i] = ibv_create_qp(pd, &init);
		CHECK(qp[i]);
	}
	connect_to(qp[0], qp[1]);
	connect_to(qp[1], qp[0]);

	struct ibv_sge to = { .addr = 0x1000, .length = 64, .lkey = mr[1]->lkey };
	struct ibv_recv_wr recv = { .wr_id = 7, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_sge from = { .addr = (uintptr_t)memory[0], .length = 6, .lkey = mr[0]->lkey };
	struct ibv_send_wr send = { .wr_id = 8, .sg_list = &from, .num_sge = 1,
				    .opcode = IBV_WR_SEND_WITH_IMM,
				    .send_flags = IBV_SEND_SIGNALED, .imm_data = 0x12345678 },
			   *bad_send;

	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_post_recv(qp[1], &recv, &bad_recv));
	strcpy(memory[0], "hello");
	CHECK(!ibv_post_send(qp[0], &send, &bad_send));
	CHECK(!ibv_get_cq_event(channel, &got, &cq_context));
	CHECK(got == cq);
	ibv_ack_cq_events(cq, 1);
	for (i = 0; i < 2; i++) {
		wc = completion(cq);
		if (wc.wr_id == 7)
			CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 6 &&
			      wc.imm_data == 0x12345678);
		else
			CHECK(wc.wr_id == 8 && wc.opcode == IBV_WC_SEND);
	}
	CHECK(!strcmp(memory[1], "hello"));

	/* One-sided, at the address that the region was given. */
	strcpy(memory[0], "world");
	send.opcode = IBV_WR_RDMA_WRITE;
	send.wr.rdma.remote_addr = 0x1000 + 100;
	send.wr.rdma.rkey = mr[1]->rkey;
	CHECK(!ibv_post_send(qp[0], &send, &bad_send));
	wc = completion(cq);
	CHECK(wc.opcode == IBV_WC_RDMA_WRITE && !strcmp(memory[1] + 100, "world"));

	/* A region that moves. */
	CHECK(ibv_rereg_mr(mr[1], 1 << 7, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(!ibv_rereg_mr(mr[1], IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory[1] + 1024, 1024, 0));
	CHECK(mr[1]->addr == memory[1] + 1024 && mr[1]->length == 1024);
	send.wr.rdma.remote_addr = (uintptr_t)memory[1] + 1024;
	send.wr.rdma.rkey = mr[1]->rkey;
	CHECK(!ibv_post_send(qp[0], &send, &bad_send));
	completion(cq);
	CHECK(!strcmp(memory[1] + 1024, "world"));

	CHECK(!ibv_resize_cq(cq, 32) && cq->cqe >= 32);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	for (i = 0; i < 2; i++) {
		CHECK(!ibv_destroy_qp(qp[i]));
		CHECK(!ibv_dereg_mr(mr[i]));
	}
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("ok");
	return 0;
}
