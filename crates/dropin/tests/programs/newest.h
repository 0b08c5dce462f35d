/*
 * What <infiniband/verbs.h> has in rdma-core 65 and not in the headers that this is compiled with, written down from the
 * man pages.
 */
#ifndef NEWEST_H
#define NEWEST_H

#include <infiniband/verbs.h>
#include <stddef.h>

struct ibv_dmah { struct ibv_context *context; };
struct ibv_dmah_init_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t tph_mem_type;
};
enum {
	IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0,
	IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
	IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
};
struct ibv_buf;
struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
};
enum {
	IBV_REG_MR_MASK_IOVA = 1 << 0,
	IBV_REG_MR_MASK_ADDR = 1 << 1,
	IBV_REG_MR_MASK_FD = 1 << 2,
	IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
	IBV_REG_MR_MASK_DMAH = 1 << 4,
	IBV_REG_MR_MASK_BUF = 1 << 5,
};
struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
	uint64_t comp_count_max_value;
	uint64_t err_count_max_value;
};
enum ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES };
struct ibv_comp_cntr_init_attr {
	uint32_t comp_mask;
	enum ibv_comp_cntr_type type;
	uint32_t flags;
};
struct ibv_comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops;
};
struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};
enum {
	IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
	IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
};

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *, struct ibv_dmah_init_attr *);
int ibv_dealloc_dmah(struct ibv_dmah *);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *, struct ibv_mr_init_attr *);
int ibv_dm_export_dmabuf_fd(struct ibv_dm *);
int ibv_query_port_speed(struct ibv_context *, uint32_t port_num, uint64_t *port_speed);
void *ibv_alloc_buf(struct ibv_pd *, size_t, struct ibv_buf **);
void ibv_free_buf(struct ibv_buf *);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *, struct ibv_buf *, void *, size_t, int access);
int _ibv_query_comp_cntr_caps(struct ibv_context *, struct ibv_comp_cntr_caps *, size_t);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *, struct ibv_comp_cntr_init_attr *);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *);
int ibv_qp_attach_comp_cntr(struct ibv_qp *, struct ibv_comp_cntr *, struct ibv_qp_attach_comp_cntr_attr *);
int ibv_set_comp_cntr(struct ibv_comp_cntr *, uint64_t);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *, uint64_t);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *, uint64_t);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *, uint64_t);
int ibv_read_comp_cntr(struct ibv_comp_cntr *, uint64_t *);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *, uint64_t *);

#endif
