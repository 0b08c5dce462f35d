/*
 * What programs of many scenarios between two hosts share. Each scenario has queue pairs of its own, and each side is the
 * requester in turn.
 */
#include "wire_peer.h"

enum { SLOT = 8192, AREA = 64 * SLOT, QKEY = 0x11111111, GRH = 40, DEPTH = 32, INLINE = 128 };
/* Where the memory begins that a requester reads, the buffers of receives, and what a requester sends or reads into. */
enum { SOURCE = 16 * SLOT, RECEIVES = 32 * SLOT, LOCAL = 48 * SLOT };
/* Exponent of the ACK timeout, 4.096 us * 2^N: some 70 ms. Seconds for a completion. */
enum { TIMEOUT = 14, PATIENCE_S = 60, PIECES_MAX = 4 };

struct scenario {
	const char *name;
	void (*ask)(const struct scenario *);
	void (*respond)(const struct scenario *);
	bool has_srq, has_no_receive;
	/* Of a request that must fail: the statuses of which the requester must get one, or 0. */
	enum ibv_wc_status statuses[2];
	enum ibv_wr_opcode opcode;
	enum { KEY = 1, RANGE, RIGHTS, ALIGNMENT } wrong;
};

static struct {
	const char *device, *host, *type;
	int gid_index, mtu, port;
} options = { .mtu = 1024, .port = 18600, .type = "rc" };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static uint8_t *area;
static struct side me, peer;

static enum ibv_qp_type qp_type(void)
{
	return !strcmp(options.type, "uc") ? IBV_QPT_UC : !strcmp(options.type, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
}

static void open_device(void)
{
	context = open_context(options.device);
	pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
	area = must(aligned_alloc(4096, AREA), "aligned_alloc");
	mr = must(ibv_reg_mr(pd, area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND), "ibv_reg_mr");
}

static void create_qp(const struct scenario *scenario)
{
	channel = must(ibv_create_comp_channel(context), "ibv_create_comp_channel");
	send_cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
	recv_cq = must(ibv_create_cq(context, DEPTH, NULL, channel, 0), "ibv_create_cq");
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = PIECES_MAX } };
	srq = scenario->has_srq ? must(ibv_create_srq(pd, &shared), "ibv_create_srq") : NULL;
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .qp_type = qp_type(),
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = PIECES_MAX, .max_recv_sge = PIECES_MAX,
			 .max_inline_data = INLINE } };
	qp = must(ibv_create_qp(pd, &init), "ibv_create_qp");
	me = (struct side){ .addr = (uintptr_t)area, .rkey = mr->rkey, .qpn = qp->qp_num, .psn = 0xfffffe };
	zero(ibv_query_gid(context, 1, options.gid_index, &me.gid), "ibv_query_gid");
}

static void connect_qp(void)
{
	bool rc = qp_type() == IBV_QPT_RC, ud = qp_type() == IBV_QPT_UD;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (rc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) };
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
	     "ibv_modify_qp to INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu_of(options.mtu), .dest_qp_num = peer.qpn,
		.rq_psn = peer.psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer.gid, .sgid_index = (uint8_t)options.gid_index, .hop_limit = 64 } } };
	int mask = IBV_QP_STATE;
	ah = ud ? must(ibv_create_ah(pd, &attr.ah_attr), "ibv_create_ah") : NULL;
	if (!ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	zero(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTR");
	/* RNR NAKs are answered twice, so that a SEND without a receive fails. No other scenario lacks a receive. */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = me.psn, .timeout = TIMEOUT, .retry_cnt = 6,
		.rnr_retry = 2, .max_rd_atomic = 4 };
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
			   (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)),
	     "ibv_modify_qp to RTS");
}

static void destroy_qp(void)
{
	zero(ibv_destroy_qp(qp), "ibv_destroy_qp");
	if (ah)
		zero(ibv_destroy_ah(ah), "ibv_destroy_ah");
	if (srq)
		zero(ibv_destroy_srq(srq), "ibv_destroy_srq");
	zero(ibv_destroy_cq(send_cq), "ibv_destroy_cq");
	zero(ibv_destroy_cq(recv_cq), "ibv_destroy_cq");
	zero(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}

/* The next completion, with any status. */
static struct ibv_wc ended(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	uint64_t deadline = now_ms() + PATIENCE_S * 1000;
	for (int count; !(count = ibv_poll_cq(cq, 1, &wc));)
		if (count < 0 || now_ms() > deadline)
			die("no completion within %d s", PATIENCE_S);
	return wc;
}

static struct ibv_wc completed(struct ibv_cq *cq, uint64_t id)
{
	struct ibv_wc wc = ended(cq);
	if (wc.status)
		die("completion %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	if (wc.wr_id != id)
		die("completion %llu instead of %llu", (unsigned long long)wc.wr_id, (unsigned long long)id);
	return wc;
}

static void go(void)
{
	tell("g", 1);
}

static void wait_for_peer(void)
{
	char word;
	hear(&word, 1);
}

/* Memory of a message in pieces, each in a slot of its own. */
struct pieces {
	int count;
	struct ibv_sge sge[PIECES_MAX];
};

static struct pieces pieces_at(size_t offset, int count, const uint32_t *lengths)
{
	struct pieces pieces = { .count = count };
	for (int i = 0; i < count; i++)
		pieces.sge[i] = (struct ibv_sge){ (uintptr_t)area + offset + (size_t)i * SLOT, lengths[i], mr->lkey };
	return pieces;
}

static struct pieces one_piece(size_t offset, uint32_t length)
{
	return pieces_at(offset, 1, &length);
}

/* Copies a message out of its pieces, or into them. Returns its length. */
static size_t copy_message(const struct pieces *pieces, uint8_t *message, bool into)
{
	size_t length = 0;
	for (int i = 0; i < pieces->count; length += pieces->sge[i++].length) {
		uint8_t *piece = (uint8_t *)(uintptr_t)pieces->sge[i].addr;
		memcpy(into ? piece : message + length, into ? message + length : piece, pieces->sge[i].length);
	}
	return length;
}

static uint8_t message[AREA];

static void fill_pieces(const struct pieces *pieces, uint64_t seed)
{
	fill(message, sizeof message, seed);
	copy_message(pieces, message, true);
}

static void check_pieces(const struct pieces *pieces, uint64_t seed, const char *what)
{
	check(message, copy_message(pieces, message, false), seed, what);
}

static void post_recv(uint64_t id, struct pieces pieces)
{
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = pieces.sge, .num_sge = pieces.count }, *bad;
	zero(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad), "posting a receive");
}

/* A signaled request to the peer's memory at `offset`, or a message to its receive. */
static struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct pieces *pieces, size_t offset)
{
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = pieces->sge, .num_sge = pieces->count, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32((uint32_t)id) };
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = peer.addr + offset;
		wr.wr.atomic.rkey = peer.rkey;
	} else {
		wr.wr.rdma.remote_addr = peer.addr + offset;
		wr.wr.rdma.rkey = peer.rkey;
	}
	return wr;
}

static void post(struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

static void run(const struct scenario *scenario, bool asking)
{
	snprintf(doing, sizeof doing, "%s, %s", scenario->name, asking ? "requester" : "responder");
	create_qp(scenario);
	tell(&me, sizeof me);
	hear(&peer, sizeof peer);
	connect_qp();
	meet();
	if (asking)
		scenario->ask(scenario);
	else
		scenario->respond(scenario);
	meet();
	destroy_qp();
}

static void parse(int argc, char **argv)
{
	for (int option; (option = getopt(argc, argv, "d:g:m:p:t:")) != -1;) {
		switch (option) {
		case 'd': options.device = optarg; break;
		case 'g': options.gid_index = atoi(optarg); break;
		case 'm': options.mtu = atoi(optarg); break;
		case 'p': options.port = atoi(optarg); break;
		case 't': options.type = optarg; break;
		default: exit(2);
		}
	}
	options.host = argv[optind];
}

/* Runs the scenarios, with each side as the requester in turn. */
static void run_all(const struct scenario *scenarios, size_t count)
{
	for (int turn = 0; turn < 2; turn++)
		for (size_t i = 0; i < count; i++)
			run(&scenarios[i], turn == (options.host ? 0 : 1));
	printf("%s: %zu scenarios, %llu bytes checked\n", program_invocation_short_name, 2 * count, (unsigned long long)bytes);
}
