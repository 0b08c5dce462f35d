/*
 * Kinds of objects that a process makes of a protection domain of another one: windows, implicit on-demand regions, XRC
 * receive queues; and an original that its own process gives back. Each case is named on the command line, and prints "ok".
 */
#include "shared.h"

/* A process that has a domain, and one that imports it; each has a queue pair, connected to the other's. */
struct side {
	int other;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char *memory;
	struct ibv_mr *mr;
};

static void meet_and_connect(struct side *side)
{
	struct end end;

	side->cq = new_cq(side->context);
	side->qp = new_qp(side->pd, side->cq);
	CHECK(side->qp);
	end = end_of(side->qp);
	say(side->other, &end, sizeof(end));
	hear(side->other, &end, sizeof(end));
	connect_to(side->qp, end);
	side->memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	side->mr = registered(side->pd, side->memory, LARGE, ACCESS | IBV_ACCESS_MW_BIND);
	meet(side->other);
}

static struct side exporting(int other)
{
	struct side side = { .other = other, .context = open_device() };

	side.pd = ibv_alloc_pd(side.context);
	CHECK(side.pd);
	say_fd(other, side.context->cmd_fd);
	say(other, &side.pd->handle, sizeof(side.pd->handle));
	meet_and_connect(&side);
	return side;
}

static struct side importing(int other)
{
	struct side side = { .other = other, .context = ibv_import_device(hear_fd(other)) };
	uint32_t handle;

	CHECK(side.context);
	hear(other, &handle, sizeof(handle));
	side.pd = ibv_import_pd(side.context, handle);
	CHECK(side.pd);
	meet_and_connect(&side);
	return side;
}

/* What is left at the end: nothing of it is in use. */
static void give_up(struct side *side)
{
	CHECK(!ibv_destroy_qp(side->qp));
	CHECK(!ibv_destroy_cq(side->cq));
	CHECK(!ibv_dereg_mr(side->mr));
}

/* The importer's end: the domain stays its exporter's. */
static void leave_domain(struct side *side)
{
	give_up(side);
	ibv_unimport_pd(side->pd);
	CHECK(!ibv_close_device(side->context));
	meet(side->other);
}

/* The exporter's end, once nobody else has anything of the domain. */
static void end_domain(struct side *side, pid_t child)
{
	meet(side->other);
	give_up(side);
	CHECK(!ibv_dealloc_pd(side->pd));
	ends_well(child);
}

/*
 * Windows of either type, allocated in the imported domain and bound to a region that was registered in it. One of type 1
 * is open to every queue pair of the domain, in either process; one of type 2 to the queue pair that bound it.
 */
static void window_owner(int exporter)
{
	struct side side = importing(exporter);
	struct ibv_mw *one = ibv_alloc_mw(side.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(side.pd, IBV_MW_TYPE_2);
	struct ibv_mw *unbound = ibv_alloc_mw(side.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { side.mr, (uintptr_t)side.memory, SMALL, IBV_ACCESS_REMOTE_WRITE } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct memory windows[2];

	CHECK(one && two && unbound);
	CHECK(!ibv_bind_mw(side.qp, one, &bind));
	CHECK(!completion(side.cq));
	wr.bind_mw.mw = two;
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info = bind.bind_info;
	wr.bind_mw.bind_info.addr += SMALL;
	CHECK(!ibv_post_send(side.qp, &wr, &bad));
	CHECK(!completion(side.cq));
	windows[0] = (struct memory){ (uintptr_t)side.memory, one->rkey };
	windows[1] = (struct memory){ (uintptr_t)side.memory + SMALL, wr.bind_mw.rkey };
	say(exporter, windows, sizeof(windows));
	meet(exporter);
	CHECK(is_filled(side.memory, SMALL, 1));
	CHECK(is_filled(side.memory + SMALL, SMALL, 2));
	/* A region with windows is in use, whoever has them. */
	REFUSED(ibv_dereg_mr(side.mr), EBUSY);
	/* Unbound, the key leads nowhere. */
	bind.bind_info.length = 0;
	CHECK(!ibv_bind_mw(side.qp, one, &bind));
	CHECK(!completion(side.cq));
	meet(exporter);
	meet(exporter);
	/* Windows keep the domain, also when all else is gone. */
	CHECK(!ibv_dealloc_mw(one));
	CHECK(!ibv_dealloc_mw(two));
	give_up(&side);
	REFUSED(ibv_dealloc_pd(side.pd), EBUSY);
	meet(exporter);
	meet(exporter);
	CHECK(!ibv_dealloc_mw(unbound));
	ibv_unimport_pd(side.pd);
	CHECK(!ibv_close_device(side.context));
	meet(exporter);
}

static void windows(void)
{
	int other;
	pid_t child = start(window_owner, &other);
	struct side side = exporting(other);
	struct ibv_cq *cq = new_cq(side.context);
	struct ibv_qp *asks = new_qp(side.pd, cq), *answers = new_qp(side.pd, cq);
	struct memory windows[2], from = memory_of(side.mr);

	CHECK(asks && answers);
	connect_to(asks, end_of(answers));
	connect_to(answers, end_of(asks));
	hear(other, windows, sizeof(windows));
	/* Through the queue pair that bound them. */
	fill(side.memory, SMALL, 2);
	CHECK(!post(side.qp, IBV_WR_RDMA_WRITE, from, SMALL, windows[1]));
	/* Through one of this process: its domain is the same. */
	fill(side.memory, SMALL, 1);
	CHECK(!post(asks, IBV_WR_RDMA_WRITE, from, SMALL, windows[0]));
	meet(other);
	meet(other);
	CHECK(post(asks, IBV_WR_RDMA_WRITE, from, SMALL, windows[0]) == IBV_WC_REM_ACCESS_ERR);
	meet(other);
	CHECK(!ibv_destroy_qp(asks));
	CHECK(!ibv_destroy_qp(answers));
	CHECK(!ibv_destroy_cq(cq));
	give_up(&side);
	meet(other);
	REFUSED(ibv_dealloc_pd(side.pd), EBUSY);
	meet(other);
	meet(other);
	CHECK(!ibv_dealloc_pd(side.pd));
	ends_well(child);
}

/*
 * Implicit on-demand regions: all memory of the process that registered them, whichever process names it.
 */
static struct ibv_mr *everything(struct ibv_pd *pd)
{
	return registered(pd, NULL, SIZE_MAX, ACCESS | IBV_ACCESS_ON_DEMAND);
}

static void pager(int exporter)
{
	struct side side = importing(exporter);
	struct ibv_mr *all = everything(side.pd), *again;
	struct memory mine = { (uintptr_t)side.memory, all->lkey }, theirs, nowhere = { 0 };
	char *later;

	say(exporter, &mine, sizeof(mine));
	hear(exporter, &theirs, sizeof(theirs));
	again = ibv_import_mr(side.pd, theirs.key);
	CHECK(again && !again->addr && again->length == SIZE_MAX && again->lkey == theirs.key);
	meet(exporter);
	CHECK(is_filled(side.memory, LARGE, 1));
	/* From memory that came after the region did. */
	later = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(later, LARGE, 2);
	CHECK(!post(side.qp, IBV_WR_RDMA_WRITE, (struct memory){ (uintptr_t)later, all->lkey }, LARGE, theirs));
	/* The exporter's memory by the exporter's key: a SEND of it, and a RECV into it. */
	meet(exporter);
	CHECK(!post(side.qp, IBV_WR_SEND, theirs, LARGE, nowhere));
	receive_into(side.qp, theirs, LARGE);
	meet(exporter);
	CHECK(!completion(side.cq));
	meet(exporter);
	/* Where the exporter has nothing there is nothing. */
	CHECK(post(side.qp, IBV_WR_SEND, (struct memory){ 4096, theirs.key }, SMALL, nowhere) == IBV_WC_LOC_PROT_ERR);
	ibv_unimport_mr(again);
	CHECK(!ibv_dereg_mr(all));
	leave_domain(&side);
}

static void implicit(void)
{
	int other;
	pid_t child = start(pager, &other);
	struct side side = exporting(other);
	struct ibv_mr *all = everything(side.pd);
	struct ibv_cq *cq = new_cq(side.context);
	struct ibv_qp *asks = new_qp(side.pd, cq), *answers = new_qp(side.pd, cq);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct memory mine = { (uintptr_t)memory, all->lkey }, theirs, from = memory_of(side.mr);

	CHECK(asks && answers);
	connect_to(asks, end_of(answers));
	connect_to(answers, end_of(asks));
	say(other, &mine, sizeof(mine));
	hear(other, &theirs, sizeof(theirs));
	/* Through a queue pair of this process, to the memory of the one that registered the region. */
	fill(side.memory, LARGE, 1);
	CHECK(!post(asks, IBV_WR_RDMA_WRITE, from, LARGE, theirs));
	meet(other);
	receive_into(side.qp, from, LARGE);
	meet(other);
	CHECK(!completion(side.cq));
	CHECK(is_filled(memory, LARGE, 2) && is_filled(side.memory, LARGE, 2));
	meet(other);
	fill(side.memory, LARGE, 3);
	CHECK(!post(side.qp, IBV_WR_SEND, from, LARGE, (struct memory){ 0 }));
	meet(other);
	CHECK(is_filled(memory, LARGE, 3));
	CHECK(!ibv_destroy_qp(asks));
	CHECK(!ibv_destroy_qp(answers));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(all));
	end_domain(&side, child);
}

/*
 * An XRC receive queue of the imported domain, filled with the memory of both processes.
 */
static struct ibv_xrcd *new_xrcd(struct ibv_context *context)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr);

	CHECK(xrcd);
	return xrcd;
}

static void post_srq(struct ibv_srq *srq, struct memory to, uint32_t length)
{
	struct ibv_sge sge = { to.addr, length, to.key };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void xrc_server(int exporter)
{
	struct side side = importing(exporter);
	struct ibv_xrcd *xrcd = new_xrcd(side.context);
	struct ibv_srq_init_attr_ex of_srq = {
		.attr = { .max_wr = 8, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC, .pd = side.pd, .xrcd = xrcd, .cq = side.cq,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(side.context, &of_srq);
	struct ibv_qp_init_attr_ex of_qp = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					     .xrcd = xrcd };
	struct ibv_qp *target = ibv_create_qp_ex(side.context, &of_qp);
	struct memory mine = memory_of(side.mr), theirs;
	struct end end;
	uint32_t number;

	CHECK(srq && target);
	CHECK(!ibv_get_srq_num(srq, &number));
	end = end_of(target);
	say(exporter, &end, sizeof(end));
	say(exporter, &number, sizeof(number));
	hear(exporter, &end, sizeof(end));
	hear(exporter, &theirs, sizeof(theirs));
	connect_to(target, end);
	post_srq(srq, mine, LARGE);
	post_srq(srq, theirs, LARGE);
	post_srq(srq, theirs, SMALL);
	/* A key of nobody. */
	post_srq(srq, (struct memory){ mine.addr, 0x12345678 }, SMALL);
	meet(exporter);
	CHECK(!completion(side.cq));
	CHECK(!completion(side.cq));
	CHECK(!completion(side.cq));
	CHECK(is_filled(side.memory, LARGE, 1));
	meet(exporter);
	CHECK(completion(side.cq) == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_destroy_qp(target));
	/* A receive queue keeps the domain. */
	REFUSED(ibv_dealloc_pd(side.pd), EBUSY);
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_close_xrcd(xrcd));
	leave_domain(&side);
}

static enum ibv_wc_status send_to_srq(struct ibv_qp *qp, struct memory from, uint32_t length, uint32_t srq)
{
	struct ibv_sge sge = { from.addr, length, from.key };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = srq }, *bad;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	return completion(qp->send_cq);
}

static void xrc(void)
{
	int other;
	pid_t child = start(xrc_server, &other);
	struct side side = exporting(other);
	struct ibv_cq *cq = new_cq(side.context);
	struct ibv_qp_init_attr_ex of_qp = {
		.send_cq = cq, .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = side.pd,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(side.context, &of_qp);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct ibv_mr *mr = registered(side.pd, memory, LARGE, IBV_ACCESS_LOCAL_WRITE);
	struct memory from = memory_of(side.mr), mine = memory_of(mr);
	struct end end, own;
	uint32_t srq;

	CHECK(qp);
	hear(other, &end, sizeof(end));
	hear(other, &srq, sizeof(srq));
	own = end_of(qp);
	say(other, &own, sizeof(own));
	say(other, &mine, sizeof(mine));
	connect_to(qp, end);
	meet(other);
	fill(side.memory, LARGE, 1);
	CHECK(!send_to_srq(qp, from, LARGE, srq));
	CHECK(!send_to_srq(qp, from, LARGE, srq));
	fill(side.memory, SMALL, 2);
	CHECK(!send_to_srq(qp, from, SMALL, srq));
	meet(other);
	CHECK(is_filled(memory, SMALL, 2));
	CHECK(!memcmp(memory + SMALL, side.memory + SMALL, LARGE - SMALL));
	CHECK(send_to_srq(qp, from, SMALL, srq) == IBV_WC_REM_OP_ERR);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	end_domain(&side, child);
}

/*
 * Who made an object may give its handle back like anybody else: "without calling the kernel", so it is there for the others.
 */
static void stays(struct ibv_context *context, uint32_t pd_handle, uint32_t dm_handle)
{
	struct ibv_pd *pd = ibv_import_pd(context, pd_handle);
	struct ibv_dm *dm = ibv_import_dm(context, dm_handle);
	struct ibv_mr *mr;
	char text[8];

	CHECK(pd && dm);
	CHECK(!ibv_memcpy_from_dm(text, dm, 0, 8) && !strcmp(text, "export"));
	mr = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_free_dm(dm), EBUSY);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_free_dm(dm));
	CHECK(!ibv_dealloc_pd(pd));
	FAILS(ibv_import_pd(context, pd_handle), ENOENT);
	FAILS(ibv_import_dm(context, dm_handle), ENOENT);
}

static void keeper(int exporter)
{
	struct ibv_context *context = ibv_import_device(hear_fd(exporter));
	uint32_t handles[2];

	CHECK(context);
	hear(exporter, handles, sizeof(handles));
	stays(context, handles[0], handles[1]);
	CHECK(!ibv_close_device(context));
	meet(exporter);
}

static void let_go(struct ibv_context *context, uint32_t handles[2])
{
	struct ibv_alloc_dm_attr size = { .length = 64 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_dm *dm = ibv_alloc_dm(context, &size);
	struct ibv_cq *cq = new_cq(context);
	struct ibv_qp *qp = new_qp(pd, cq);

	CHECK(dm && qp);
	CHECK(!ibv_memcpy_to_dm(dm, 0, "export\0", 8));
	handles[0] = pd->handle;
	handles[1] = dm->handle;
	ibv_unimport_dm(dm);
	ibv_unimport_pd(pd);
	FAILS(new_qp(pd, cq), EINVAL);
	/* It was given back, and is none any more. */
	REFUSED(ibv_dealloc_pd(pd), EINVAL);
	/* Handles before what was made with them. */
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
}

static void original(void)
{
	int other;
	pid_t child = start(keeper, &other);
	struct ibv_context *context = open_device();
	uint32_t handles[2];

	let_go(context, handles);
	say_fd(other, context->cmd_fd);
	say(other, handles, sizeof(handles));
	meet(other);
	ends_well(child);

	/* Within the process all is as between two. */
	context = ibv_import_device(dup(context->cmd_fd));
	CHECK(context);
	let_go(context, handles);
	stays(context, handles[0], handles[1]);
	/* What others have destroyed makes room: more than a process can have at once. */
	for (int i = 0; i < 5000; i++) {
		struct ibv_alloc_dm_attr size = { .length = 64 };
		struct ibv_dm *dm = ibv_alloc_dm(context, &size);

		CHECK(dm);
		handles[1] = dm->handle;
		ibv_unimport_dm(dm);
		dm = ibv_import_dm(context, handles[1]);
		CHECK(dm && !ibv_free_dm(dm));
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "windows"))
		windows();
	else if (!strcmp(argv[1], "implicit"))
		implicit();
	else if (!strcmp(argv[1], "xrc"))
		xrc();
	else if (!strcmp(argv[1], "original"))
		original();
	else
		CHECK(!"a case");
	puts("ok");
	return 0;
}
