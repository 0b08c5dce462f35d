/*
 * Requests that must fail between two hosts: the status of the requester, the flush behind it, and memory that must not
 * change. Each side is the requester in turn.
 *
 *     wire_errors [options]           the server, which waits for a client
 *     wire_errors [options] HOST      the client
 *
 *     -d NAME   device                       -g N  GID index
 *     -p N      TCP port                     -m N  path MTU
 *
 * Both sides take the same options, but -d, -g and HOST. Exit status 0 when all is as it must be.
 */
#include "wire_scenario.h"

/* A region with the same memory as `mr`, and no right for peers; its key at the peer. */
static struct ibv_mr *shut;
static uint32_t shut_rkey;

/* Expects request 1 to fail with a status of the scenario. A WRITE behind it must be flushed, and not be executed. */
static void must_fail(const struct scenario *scenario)
{
	struct pieces from = one_piece(LOCAL, 64);
	post(request(2, IBV_WR_RDMA_WRITE, &from, 0));
	struct ibv_wc wc = ended(send_cq);
	if (wc.wr_id != 1 || !wc.status || (wc.status != scenario->statuses[0] && wc.status != scenario->statuses[1]))
		die("completion %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	wc = ended(send_cq);
	if (wc.wr_id != 2 || wc.status != IBV_WC_WR_FLUSH_ERR)
		die("completion %llu of the request behind it: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	go();
}

static void refused_ask(const struct scenario *scenario)
{
	struct pieces from = one_piece(LOCAL, scenario->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : 4000);
	bool atomic = scenario->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || scenario->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	struct ibv_send_wr wr = request(1, scenario->opcode, &from, 0);
	uint32_t *key = atomic ? &wr.wr.atomic.rkey : &wr.wr.rdma.rkey;
	uint64_t *address = atomic ? &wr.wr.atomic.remote_addr : &wr.wr.rdma.remote_addr;
	wr.wr.atomic.compare_add = atomic ? 3 : wr.wr.atomic.compare_add;
	switch (scenario->wrong) {
	case KEY: *key ^= 0xff; break;
	case RANGE: *address += AREA - 4; break;
	case RIGHTS: *key = shut_rkey; break;
	case ALIGNMENT: *address += 4; break;
	}
	memset(area + LOCAL, 0x66, SLOT);
	wait_for_peer();
	/* Soft-RoCE takes no such atomic in the first place (docs/soft-roce.md). */
	struct ibv_send_wr *bad;
	int err = ibv_post_send(qp, &wr, &bad);
	if (scenario->wrong == ALIGNMENT && err == EINVAL) {
		go();
		return;
	}
	zero(err, "ibv_post_send");
	must_fail(scenario);
}

/* Flushes the receive of a request that failed. */
static void receive_must_fail(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp to ERR");
	if (!ended(recv_cq).status)
		die("a receive of a request that failed has succeeded");
}

static void must_be_unchanged(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (area[i] != 0x55)
			die("byte %zu has changed", i);
}

static void refused_respond(const struct scenario *scenario)
{
	memset(area, 0x55, AREA);
	if (!scenario->has_no_receive)
		post_recv(1, one_piece(RECEIVES, SLOT));
	go();
	wait_for_peer();
	if (!scenario->has_no_receive)
		receive_must_fail();
	must_be_unchanged(0, RECEIVES);
	must_be_unchanged(RECEIVES + SLOT, AREA);
}

static void send_ask(const struct scenario *scenario)
{
	struct pieces from = one_piece(LOCAL, 4000);
	memset(area + LOCAL, 0x66, SLOT);
	wait_for_peer();
	post(request(1, IBV_WR_SEND, &from, 0));
	must_fail(scenario);
}

static void too_long_respond(const struct scenario *scenario)
{
	(void)scenario;
	memset(area, 0x55, AREA);
	post_recv(1, one_piece(RECEIVES, 2000));
	go();
	wait_for_peer();
	receive_must_fail();
	must_be_unchanged(0, RECEIVES);
	must_be_unchanged(RECEIVES + 2000, AREA);
}

static void bad_receive_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces outside = one_piece(AREA - 64, SLOT);
	memset(area, 0x55, AREA);
	post_recv(1, outside);
	go();
	wait_for_peer();
	receive_must_fail();
	must_be_unchanged(0, AREA);
}

static void gone_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	memset(area, 0x55, AREA);
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp to RESET");
	go();
	wait_for_peer();
	must_be_unchanged(0, AREA);
}

/*
 * The receive fails. The SEND may succeed, since it may be acknowledged before its key is looked at: Soft-RoCE does so
 * (docs/soft-roce.md). No request behind it succeeds then.
 */
static void invalidate_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces from = one_piece(LOCAL, 4000);
	memset(area + LOCAL, 0x66, SLOT);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_INV, &from, 0);
	wr.invalidate_rkey = peer.rkey ^ 0xff;
	wait_for_peer();
	post(wr);
	post(request(2, IBV_WR_RDMA_WRITE, &from, 0));
	struct ibv_wc wc = ended(send_cq);
	if (wc.wr_id != 1 || (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_REM_OP_ERR))
		die("completion %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	wc = ended(send_cq);
	if (wc.wr_id != 2 || !wc.status)
		die("completion %llu of the request behind it: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	go();
}

/* Invalidates the peer's memory window, and writes by its key. */
static void window_ask(const struct scenario *scenario)
{
	struct pieces from = one_piece(LOCAL, 64);
	uint32_t key;
	memset(area + LOCAL, 0x66, SLOT);
	hear(&key, sizeof key);
	struct ibv_send_wr send = request(3, IBV_WR_SEND_WITH_INV, &from, 0);
	send.invalidate_rkey = key;
	struct ibv_send_wr write = request(1, IBV_WR_RDMA_WRITE, &from, 0);
	write.wr.rdma.rkey = key;
	write.wr.rdma.remote_addr += SOURCE;
	post(write);
	completed(send_cq, 1);
	post(send);
	completed(send_cq, 3);
	write.wr.rdma.remote_addr = peer.addr;
	post(write);
	must_fail(scenario);
}

static void window_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct ibv_mw *mw = must(ibv_alloc_mw(pd, IBV_MW_TYPE_2), "ibv_alloc_mw");
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr bind = { .wr_id = 9, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = {
		.mw = mw, .rkey = key,
		.bind_info = { .mr = mr, .addr = (uintptr_t)area, .length = AREA, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } } };
	memset(area, 0x55, AREA);
	post(bind);
	completed(send_cq, 9);
	post_recv(1, one_piece(RECEIVES, SLOT));
	tell(&key, sizeof key);
	struct ibv_wc wc = completed(recv_cq, 1);
	if (wc.invalidated_rkey != key)
		die("key %#x is invalidated instead of %#x", wc.invalidated_rkey, key);
	wait_for_peer();
	must_be_unchanged(0, SOURCE);
	for (size_t i = SOURCE; i < SOURCE + 64; i++)
		if (area[i] != 0x66)
			die("byte %zu was not written while the window was valid", i);
	zero(ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

#define REFUSED(op, what, ...) \
	{ #op " with " #what, refused_ask, refused_respond, .opcode = IBV_WR_##op, .wrong = what, .statuses = { __VA_ARGS__ } }

static const struct scenario ERRORS[] = {
	REFUSED(RDMA_WRITE, KEY, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_WRITE, RANGE, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_WRITE, RIGHTS, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_WRITE_WITH_IMM, KEY, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_WRITE_WITH_IMM, RIGHTS, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_READ, KEY, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_READ, RANGE, IBV_WC_REM_ACCESS_ERR),
	REFUSED(RDMA_READ, RIGHTS, IBV_WC_REM_ACCESS_ERR),
	REFUSED(ATOMIC_FETCH_AND_ADD, KEY, IBV_WC_REM_ACCESS_ERR),
	REFUSED(ATOMIC_FETCH_AND_ADD, RIGHTS, IBV_WC_REM_ACCESS_ERR),
	REFUSED(ATOMIC_FETCH_AND_ADD, ALIGNMENT, IBV_WC_REM_INV_REQ_ERR),
	REFUSED(ATOMIC_CMP_AND_SWP, KEY, IBV_WC_REM_ACCESS_ERR),
	{ "a SEND that invalidates a wrong key", invalidate_ask, refused_respond },
	{ "a WRITE by the key of an invalidated window", window_ask, window_respond, .statuses = { IBV_WC_REM_ACCESS_ERR } },
	/* Soft-RoCE answers with NAK remote operational error (docs/soft-roce.md). */
	{ "a SEND longer than the receive", send_ask, too_long_respond,
	  .statuses = { IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR } },
	{ "a SEND to a receive outside its region", send_ask, bad_receive_respond, .statuses = { IBV_WC_REM_OP_ERR } },
	{ "a SEND without a receive", send_ask, refused_respond, .has_no_receive = true,
	  .statuses = { IBV_WC_RNR_RETRY_EXC_ERR } },
	{ "a SEND to a queue pair in RESET", send_ask, gone_respond, .statuses = { IBV_WC_RETRY_EXC_ERR } },
};

int main(int argc, char **argv)
{
	parse(argc, argv);
	open_device();
	shut = must(ibv_reg_mr(pd, area, AREA, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr without remote access");
	connect_tcp(options.host, options.port);
	tell(&shut->rkey, sizeof shut->rkey);
	hear(&shut_rkey, sizeof shut_rkey);
	run_all(ERRORS, sizeof ERRORS / sizeof *ERRORS);
	return 0;
}
