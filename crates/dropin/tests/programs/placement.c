/*
 * One queue pair, connected to itself, that writes and then flushes what it wrote. Prints "ok", or where it failed.
 *
 * FLUSH is newer than the headers (rdma-core 45): what they lack of it is below.
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

enum { ACCESS_FLUSH_GLOBAL = 1 << 8, WC_FLUSH = 8, FLUSH_GLOBAL = 1, FLUSH_PERSISTENT = 2, FLUSH_RANGE = 0, FLUSH_MR = 1 };
static const uint64_t WITH_FLUSH = 1 << 11;

struct qp_ex {
	struct ibv_qp_ex ex;
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
			 uint8_t level);
};

enum { LENGTH = 4096 };
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | ACCESS_FLUSH_GLOBAL;

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	CHECK(!ibv_query_port(qp->context, 1, &port));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = port.lid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1);
	return wc;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	uint64_t value = 0x0123456789abcdef;
	static uint64_t memory[LENGTH / 8];

	CHECK(list && list[0]);
	CHECK((context = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	CHECK(mr);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1, .max_inline_data = 8 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
	};

	/* One without it, whose structure may end where the headers say. */
	struct ibv_qp *without = ibv_create_qp_ex(context, &init);
	CHECK(without && !ibv_destroy_qp(without));
	init.send_ops_flags |= WITH_FLUSH;
	struct ibv_qp *base = ibv_create_qp_ex(context, &init);
	CHECK(base);
	connect_to_itself(base);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(base);
	struct qp_ex *later = (struct qp_ex *)qp;
	CHECK(later && later->wr_flush);

	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = 0;
	ibv_wr_atomic_write(qp, mr->rkey, (uintptr_t)&memory[8], &value);
	qp->wr_id = 2;
	qp->wr_flags = IBV_SEND_SIGNALED;
	later->wr_flush(qp, mr->rkey, (uintptr_t)&memory[8], 64, FLUSH_GLOBAL, FLUSH_RANGE);
	CHECK(!ibv_wr_complete(qp));
	struct ibv_wc wc = next(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2 && wc.opcode == (enum ibv_wc_opcode)WC_FLUSH);
	CHECK(memory[8] == value);

	ibv_wr_start(qp);
	qp->wr_id = 3;
	later->wr_flush(qp, mr->rkey, 0, 0, FLUSH_GLOBAL, FLUSH_MR);
	CHECK(!ibv_wr_complete(qp));
	CHECK(next(cq).status == IBV_WC_SUCCESS);

	/* The region has no right to persistence. */
	ibv_wr_start(qp);
	qp->wr_id = 4;
	later->wr_flush(qp, mr->rkey, (uintptr_t)&memory[8], 64, FLUSH_PERSISTENT, FLUSH_RANGE);
	CHECK(!ibv_wr_complete(qp));
	CHECK(next(cq).status == IBV_WC_REM_ACCESS_ERR);

	CHECK(!ibv_destroy_qp(base));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("ok");
	return 0;
}
