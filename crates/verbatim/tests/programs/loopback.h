/* What the test programs share: checks, and a queue pair that is connected to itself. */
#include <infiniband/verbs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			printf("%s: %s\n", #condition, strerror(errno));       \
			exit(1);                                               \
		}                                                              \
	} while (0)

/* `access` is what the queue pair allows requesters. */
__attribute__((unused)) static void connect_to_itself_from_psn(struct ibv_qp *qp, int access, uint32_t sq_psn)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };

	CHECK(!ibv_query_port(qp->context, 1, &port));
	CHECK(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 22; /* 20.48 ms */
	attr.max_dest_rd_atomic = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = port.lid;
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		/* The first address of IPv4. */
		int index = 0;
		do
			CHECK(!ibv_query_gid(qp->context, 1, index, &attr.ah_attr.grh.dgid));
		while (attr.ah_attr.grh.dgid.raw[10] != 0xff && ++index);
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 1;
		attr.ah_attr.grh.sgid_index = index;
	}
	CHECK(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 6;
	attr.max_rd_atomic = 1;
	attr.sq_psn = sq_psn;
	CHECK(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)));
}

__attribute__((unused)) static void connect_to_itself(struct ibv_qp *qp, int access)
{
	connect_to_itself_from_psn(qp, access, 0);
}
