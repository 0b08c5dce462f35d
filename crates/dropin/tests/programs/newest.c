/*
 * A program of rdma-core 65: buffers, DMA handles, the speed of a port and completion counters. Prints "ok", or where it
 * failed.
 */
#include "newest.h"
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
static struct ibv_pd *pd;

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


/* The counter reaches the value without a poll; the test ends a program that hangs. */
static void wait_for(int (*read)(struct ibv_comp_cntr *, uint64_t *), struct ibv_comp_cntr *counter, uint64_t wanted)
{
	uint64_t value;

	do {
		CHECK(!read(counter, &value));
		CHECK(value <= wanted);
	} while (value < wanted);
}

static struct ibv_comp_cntr *new_counter(void)
{
	struct ibv_comp_cntr_init_attr attr = { .type = IBV_COMP_CNTR_TYPE_BYTES };
	struct ibv_comp_cntr *counter;

	CHECK(!ibv_create_comp_cntr(context, &attr) && errno == EOPNOTSUPP);
	attr.type = IBV_COMP_CNTR_TYPE_WRS;
	attr.flags = 1;
	CHECK(!ibv_create_comp_cntr(context, &attr) && errno == EINVAL);
	attr.flags = 0;
	counter = ibv_create_comp_cntr(context, &attr);
	CHECK(counter && counter->context == context);
	CHECK(counter->comp_count_max_value == UINT64_MAX);
	return counter;
}

static void post(struct ibv_qp *qp, struct ibv_mr *mr, enum ibv_wr_opcode opcode, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t) mr->addr, 8, mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t) mr->addr + 4096, rkey },
	};

	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t) mr->addr + 2048, 8, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void counters(struct ibv_mr *mr)
{
	struct ibv_comp_cntr *sent = new_counter(), *received = new_counter(), *written = new_counter();
	struct ibv_qp_attach_comp_cntr_attr ops = { .op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_SEND };
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_comp_cntr_caps caps;
	struct ibv_qp *qp[2];
	struct ibv_wc wc[64];
	uint64_t value;
	int i, n, successes = 0, errors = 0;

	CHECK(!_ibv_query_comp_cntr_caps(context, &caps, sizeof(caps)));
	CHECK(caps.max_value == UINT64_MAX && caps.max_counters >= 3);
	CHECK(caps.supported_qp_attach_ops & IBV_QP_ATTACH_COMP_CNTR_OP_SEND);
	CHECK(!(caps.supported_qp_attach_ops & IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE));
	CHECK(cq);
	for (i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		qp[i] = ibv_create_qp(pd, &init);
		CHECK(qp[i]);
	}
	CHECK(!ibv_qp_attach_comp_cntr(qp[0], sent, &ops));
	CHECK(ibv_qp_attach_comp_cntr(qp[0], written, &ops) == EBUSY);
	ops.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE;
	CHECK(ibv_qp_attach_comp_cntr(qp[0], written, &ops) == EOPNOTSUPP);
	ops.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ;
	CHECK(!ibv_qp_attach_comp_cntr(qp[0], written, &ops));
	ops.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
	CHECK(!ibv_qp_attach_comp_cntr(qp[1], received, &ops));
	CHECK(ibv_destroy_comp_cntr(sent) == EBUSY);
	connect_to(qp[0], qp[1]);
	connect_to(qp[1], qp[0]);
	ops.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
	CHECK(ibv_qp_attach_comp_cntr(qp[1], sent, &ops) == EINVAL);

	/* Nobody polls. */
	for (i = 0; i < 3; i++)
		receive(qp[1], mr);
	for (i = 0; i < 3; i++)
		post(qp[0], mr, IBV_WR_SEND, 0);
	post(qp[0], mr, IBV_WR_RDMA_WRITE, mr->rkey);
	post(qp[0], mr, IBV_WR_RDMA_READ, mr->rkey);
	wait_for(ibv_read_comp_cntr, sent, 3);
	wait_for(ibv_read_comp_cntr, received, 3);
	wait_for(ibv_read_comp_cntr, written, 2);
	CHECK(!ibv_read_err_comp_cntr(written, &value) && value == 0);

	/* A key that there is not: one error, and the receive WR that waits is flushed when its queue pair is failed. */
	receive(qp[1], mr);
	post(qp[0], mr, IBV_WR_RDMA_WRITE, mr->rkey ^ 0x00abcd00);
	wait_for(ibv_read_err_comp_cntr, written, 1);
	CHECK(!ibv_modify_qp(qp[1], &(struct ibv_qp_attr) { .qp_state = IBV_QPS_ERR }, IBV_QP_STATE));
	wait_for(ibv_read_err_comp_cntr, received, 1);
	/* A poll finds each completion once, and counts none again. */
	while (successes + errors < 10) {
		n = ibv_poll_cq(cq, 64, wc);
		CHECK(n >= 0);
		for (i = 0; i < n; i++)
			*(wc[i].status == IBV_WC_SUCCESS ? &successes : &errors) += 1;
	}
	CHECK(successes == 8 && errors == 2);
	CHECK(!ibv_read_comp_cntr(sent, &value) && value == 3);
	CHECK(!ibv_read_comp_cntr(received, &value) && value == 3);

	CHECK(!ibv_set_comp_cntr(sent, 40) && !ibv_inc_comp_cntr(sent, 2));
	CHECK(!ibv_set_err_comp_cntr(sent, 7) && !ibv_inc_err_comp_cntr(sent, 1));
	CHECK(!ibv_read_comp_cntr(sent, &value) && value == 42);
	CHECK(!ibv_read_err_comp_cntr(sent, &value) && value == 8);
	CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]));
	CHECK(!ibv_destroy_comp_cntr(sent) && !ibv_destroy_comp_cntr(received) && !ibv_destroy_comp_cntr(written));
	CHECK(ibv_destroy_comp_cntr(sent) == EINVAL);
	CHECK(!ibv_destroy_cq(cq));
}

static void regions(void)
{
	struct ibv_dmah_init_attr hints = { .comp_mask = IBV_DMAH_INIT_ATTR_MASK_PH, .ph = 4 };
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr_init_attr attr = { .length = 8192, .access = IBV_ACCESS_LOCAL_WRITE };
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
	struct ibv_mr *mr;
	char *memory;

	CHECK(!ibv_alloc_buf(pd, 0, &buf) && errno == EINVAL);
	memory = ibv_alloc_buf(pd, 8192, &buf);
	CHECK(memory);
	memset(memory, 'a', 8192);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_reg_buf_mr(other, buf, memory, 8192, 0) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, memory + 1, 8192, 0) && errno == EINVAL);
	mr = ibv_reg_buf_mr(pd, buf, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr && mr->addr == memory && mr->length == 8192);
	counters(mr);
	CHECK(!memcmp(memory + 4096, "aaaaaaaa", 8));
	CHECK(!ibv_dereg_mr(mr));

	CHECK(!ibv_alloc_dmah(context, &hints) && errno == EINVAL);
	hints.ph = 2;
	dmah = ibv_alloc_dmah(context, &hints);
	CHECK(dmah && dmah->context == context);
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
	attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF;
	attr.addr = memory;
	attr.iova = 0x10000;
	attr.dmah = dmah;
	attr.buf = buf;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr && mr->length == 8192 && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_dmah(dmah) && ibv_dealloc_dmah(dmah) == EINVAL);
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
	attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	CHECK(ibv_dm_export_dmabuf_fd(NULL) == -1 && errno == EOPNOTSUPP);
	ibv_free_buf(buf);
	CHECK(!ibv_dealloc_pd(other));
}

/* The structure of a later release is longer, and the program does not clear it. */
static void longer_port_attributes(void)
{
	struct {
		struct ibv_port_attr attr;
		uint32_t later, after;
	} place;

	memset(&place, 0xa5, sizeof(place));
	CHECK(!verbs_get_ctx(context)->query_port(context, 1, &place.attr, sizeof(place.attr) + sizeof(place.later)));
	CHECK(place.attr.active_speed == 32 && place.later == 0 && place.after == 0xa5a5a5a5);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	uint64_t speed;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context && !ibv_query_port(context, 1, &port));
	/* Four lanes of EDR, as ibv_query_port has it. */
	CHECK(port.active_width == 2 && port.active_speed == 32);
	CHECK(!ibv_query_port_speed(context, 1, &speed) && speed == 1000);
	CHECK(ibv_query_port_speed(context, 2, &speed) == EINVAL);
	longer_port_attributes();
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	regions();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("ok");
	return 0;
}
