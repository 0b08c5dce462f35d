/*
 * Every verb between two hosts, with all data checked. Each side is the requester in turn.
 *
 *     wire_verbs [options]            the server, which waits for a client
 *     wire_verbs [options] HOST       the client
 *
 *     -d NAME   device                       -g N  GID index
 *     -t rc|uc|ud                            -m N  path MTU
 *     -p N      TCP port                     -q N  first PSN, of both directions
 *     -s N,...  message sizes                -b N  bursts of mixed verbs behind each other (rc)
 *     -l        messages of uc and ud may be lost
 *     -e N      exponent of the ACK timeout     -k  the last request has a wrong R_Key (rc)
 *
 * Both sides take the same options, but -d, -g and HOST. Exit status 0 when all is as it must be.
 */
#include "wire_peer.h"

enum { AREA = 8 << 20, QKEY = 0x11111111, GRH = 40, BURST = 64, SLOT = 8192, DEPTH = 512 };
/* Seconds for a completion of a reliable queue pair, milliseconds for a message that may be lost. */
enum { PATIENCE_S = 60, LOST_MS = 1000, RNR_US = 5000 };

enum verb { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, FETCH_ADD, COMPARE_SWAP, VERBS };
static const char *const NAMES[VERBS] = { "SEND", "SEND with immediate", "SEND with invalidate", "WRITE",
	"WRITE with immediate", "READ", "fetch-and-add", "compare-and-swap" };

static struct {
	const char *device, *host, *sizes;
	int gid_index, mtu, port, bursts, timeout;
	uint32_t psn;
	bool lossy, wrong_key;
	enum ibv_qp_type type;
} options = { .sizes = "0,1,3,255,256,257,1023,1024,1025,4096,65536,1048576", .mtu = 1024, .port = 18600, .psn = 0xfffff0,
	      .timeout = 14, .type = IBV_QPT_RC };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
/* What peers write and read; what this side sends from and reads into. */
static uint8_t *remote, *local;
static struct side me, peer;
static unsigned posted; /* receives of this side that are posted */
static uint64_t steps, lost;

static void open_device(void)
{
	context = open_context(options.device);
	pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
	send_cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
	recv_cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
	remote = must(aligned_alloc(4096, 2 * (size_t)AREA), "aligned_alloc");
	local = remote + AREA;
	memset(remote, 0, 2 * (size_t)AREA);
	mr = must(ibv_reg_mr(pd, remote, 2 * (size_t)AREA,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND),
		  "ibv_reg_mr");
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = options.type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = must(ibv_create_qp(pd, &init), "ibv_create_qp");
	me = (struct side){ .addr = (uintptr_t)remote, .rkey = mr->rkey, .qpn = qp->qp_num, .psn = options.psn };
	zero(ibv_query_gid(context, 1, options.gid_index, &me.gid), "ibv_query_gid");
}

static void connect_qp(void)
{
	bool rc = options.type == IBV_QPT_RC, ud = options.type == IBV_QPT_UD;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (rc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) };
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
	     "ibv_modify_qp to INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu_of(options.mtu), .dest_qp_num = peer.qpn,
		.rq_psn = peer.psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer.gid, .sgid_index = (uint8_t)options.gid_index, .hop_limit = 64 } } };
	int mask = IBV_QP_STATE;
	if (!ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	else
		ah = must(ibv_create_ah(pd, &attr.ah_attr), "ibv_create_ah");
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	zero(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = me.psn, .timeout = (uint8_t)options.timeout,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	zero(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
			   (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)),
	     "ibv_modify_qp to RTS");
}

/* One completion; false when none came within `ms`. */
static bool poll_for(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t ms)
{
	uint64_t deadline = now_ms() + ms;
	for (;;) {
		int count = ibv_poll_cq(cq, 1, wc);
		if (count < 0)
			die("ibv_poll_cq failed");
		if (count) {
			if (wc->status)
				die("completion %llu: %s", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
			return true;
		}
		if (now_ms() > deadline)
			return false;
	}
}

static void completion(struct ibv_cq *cq, struct ibv_wc *wc)
{
	if (!poll_for(cq, wc, PATIENCE_S * 1000))
		die("no completion within %d s", PATIENCE_S);
}

static void post_recv(uint64_t id, size_t offset, size_t length)
{
	struct ibv_sge sge = { (uintptr_t)remote + offset, (uint32_t)length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	zero(ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
	posted++;
}

static uint64_t seed_of(uint64_t step, bool from_responder)
{
	return mix(step * 2 + from_responder);
}

struct request {
	enum verb verb;
	uint64_t id, seed;
	size_t local, remote, length; /* offsets */
	uint32_t key;
};

static bool needs_recv(enum verb verb)
{
	return verb <= SEND_INV || verb == WRITE_IMM;
}

static bool is_atomic(enum verb verb)
{
	return verb == FETCH_ADD || verb == COMPARE_SWAP;
}

static void post_send(const struct request *request)
{
	static const enum ibv_wr_opcode OPCODES[VERBS] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_ATOMIC_CMP_AND_SWP };
	struct ibv_sge sge = { (uintptr_t)local + request->local, (uint32_t)request->length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = request->id, .sg_list = &sge, .num_sge = request->length ? 1 : 0,
		.opcode = OPCODES[request->verb], .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (request->verb != READ && !is_atomic(request->verb))
		fill(local + request->local, request->length, request->seed);
	else
		memset(local + request->local, 0xee, request->length);
	if (request->verb == SEND_INV)
		wr.invalidate_rkey = request->key;
	else
		wr.imm_data = htobe32((uint32_t)request->id);
	if (options.type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (is_atomic(request->verb)) {
		wr.wr.atomic.remote_addr = peer.addr + request->remote;
		wr.wr.atomic.rkey = peer.rkey;
		wr.wr.atomic.compare_add = request->verb == FETCH_ADD ? 3 : request->seed;
		wr.wr.atomic.swap = ~request->seed;
	} else {
		wr.wr.rdma.remote_addr = peer.addr + request->remote;
		wr.wr.rdma.rkey = peer.rkey;
	}
	zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* A memory window over the area, for SEND with invalidate. */
static struct ibv_mw *bind_window(uint32_t *key)
{
	struct ibv_mw *mw = must(ibv_alloc_mw(pd, IBV_MW_TYPE_2), "ibv_alloc_mw");
	struct ibv_wc wc;
	*key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = {
		.mw = mw, .rkey = *key,
		.bind_info = { .mr = mr, .addr = (uintptr_t)remote, .length = AREA, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } } }, *bad;
	zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send of a bind");
	completion(send_cq, &wc);
	return mw;
}

static void check_recv(const struct ibv_wc *wc, const struct request *request)
{
	size_t header = options.type == IBV_QPT_UD ? GRH : 0;
	if (request->verb == WRITE_IMM ? wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM : wc->opcode != IBV_WC_RECV)
		die("the receive has opcode %d", wc->opcode);
	if (wc->byte_len != request->length + header)
		die("the receive has %u bytes instead of %zu", wc->byte_len, request->length + header);
	bool imm = request->verb == SEND_IMM || request->verb == WRITE_IMM;
	if (imm != !!(wc->wc_flags & IBV_WC_WITH_IMM) || (imm && be32toh(wc->imm_data) != (uint32_t)request->id))
		die("the immediate is not as sent");
	/* Soft-RoCE sets the kernel's bit, which is IBV_WC_IP_CSUM_OK to programs. */
	unsigned invalidated = IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK;
	if (request->verb == SEND_INV && (!(wc->wc_flags & invalidated) || wc->invalidated_rkey != request->key))
		die("the receive tells flags %#x and key %#x instead of the invalidated key %#x", wc->wc_flags,
		    wc->invalidated_rkey, request->key);
	if (header && (!(wc->wc_flags & IBV_WC_GRH) || wc->src_qp != peer.qpn))
		die("the datagram has no GRH, or is of queue pair %#x", wc->src_qp);
}

static void respond(const struct request *request)
{
	struct ibv_mw *mw = NULL;
	struct ibv_wc wc;
	char done;
	size_t header = options.type == IBV_QPT_UD ? GRH : 0;
	uint32_t key = 0;
	if (request->verb == READ)
		fill(remote, request->length, seed_of(steps, true));
	else if (is_atomic(request->verb))
		memcpy(remote, &request->seed, 8);
	else
		memset(remote, 0x77, request->length + header + 8);
	if (request->verb == SEND_INV)
		mw = bind_window(&key);
	/* The requester of a SEND with immediate is told to wait: RNR. */
	bool late = options.type == IBV_QPT_RC && request->verb == SEND_IMM;
	if (needs_recv(request->verb) && !posted && !late)
		post_recv(steps, 0, AREA / 2);
	tell(&key, sizeof key);
	if (late) {
		usleep(RNR_US);
		post_recv(steps, 0, AREA / 2);
	}
	hear(&done, 1);
	bool arrived = true;
	if (needs_recv(request->verb)) {
		struct request expected = *request;
		expected.key = key;
		if (!options.lossy)
			completion(recv_cq, &wc);
		else
			arrived = poll_for(recv_cq, &wc, LOST_MS);
		if (arrived) {
			posted--;
			check_recv(&wc, &expected);
		} else {
			lost++;
		}
	}
	/* A WRITE over UC may have been lost in part. */
	bool whole = !options.lossy || (arrived && request->verb != WRITE);
	if (request->verb <= WRITE_IMM && whole) {
		check(remote + header, request->length, request->seed, "the data");
		if (remote[header + request->length] != 0x77 && request->verb != SEND)
			die("the byte behind the data has changed");
	}
	uint64_t word, want = request->verb == FETCH_ADD ? request->seed + 3 : ~request->seed;
	memcpy(&word, remote, 8);
	if (is_atomic(request->verb) && word != want)
		die("the word is %#llx instead of %#llx", (unsigned long long)word, (unsigned long long)want);
	if (mw)
		zero(ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

static void ask(struct request *request)
{
	struct ibv_wc wc;
	hear(&request->key, sizeof request->key);
	post_send(request);
	completion(send_cq, &wc);
	if (wc.wr_id != request->id)
		die("completion %llu instead of %llu", (unsigned long long)wc.wr_id, (unsigned long long)request->id);
	if (request->verb == READ)
		check(local, request->length, seed_of(steps, true), "what was read");
	uint64_t word;
	memcpy(&word, local, 8);
	if (is_atomic(request->verb) && word != request->seed)
		die("the original is %#llx instead of %#llx", (unsigned long long)word, (unsigned long long)request->seed);
	tell("d", 1);
}

static bool has_verb(enum verb verb)
{
	switch (options.type) {
	case IBV_QPT_UD:
		return verb <= SEND_IMM;
	case IBV_QPT_UC:
		return verb <= SEND_IMM || verb == WRITE || verb == WRITE_IMM;
	default:
		return true;
	}
}

static void each_verb(size_t size, bool asking)
{
	for (enum verb verb = SEND; verb < VERBS; verb++) {
		if (!has_verb(verb) || (options.type == IBV_QPT_UD && size > (size_t)options.mtu) || (is_atomic(verb) && size != 256))
			continue;
		steps++;
		struct request request = { .verb = verb, .id = steps, .seed = seed_of(steps, false),
					   .length = is_atomic(verb) ? 8 : size };
		snprintf(doing, sizeof doing, "step %llu, %s of %zu bytes, %s", (unsigned long long)steps, NAMES[verb],
			 request.length, asking ? "requester" : "responder");
		if (asking)
			ask(&request);
		else
			respond(&request);
		meet();
	}
}

/* Request `i` of a burst: lengths up to a slot, in order, one word for all atomics. */
static struct request of_burst(int i)
{
	static const enum verb MIXED[] = { SEND, WRITE, READ, FETCH_ADD, SEND_IMM, WRITE_IMM, READ, WRITE };
	uint64_t seed = seed_of(steps * 1000 + i, false);
	enum verb verb = MIXED[seed % 8];
	size_t slot = (size_t)(i + 1) * SLOT;
	return (struct request){ .verb = verb, .id = (uint64_t)i, .seed = seed, .local = slot,
		.remote = verb == FETCH_ADD ? 0 : slot, .length = verb == FETCH_ADD ? 8 : (seed >> 8) % SLOT };
}

static void burst_respond(void)
{
	enum { BEHIND = (BURST + 1) * SLOT };
	char done;
	int adds = 0;
	memset(remote, 0, 8);
	for (int i = 0; i < BURST; i++) {
		struct request request = of_burst(i);
		fill(remote + request.remote, request.verb == READ ? request.length : 0, seed_of(request.seed, true));
		if (needs_recv(request.verb))
			post_recv(request.id, BEHIND + request.remote, SLOT);
	}
	tell("g", 1);
	hear(&done, 1);
	for (int i = 0; i < BURST; i++) {
		struct request request = of_burst(i);
		struct ibv_wc wc;
		adds += request.verb == FETCH_ADD;
		if (needs_recv(request.verb)) {
			completion(recv_cq, &wc);
			posted--;
			if (wc.wr_id != request.id)
				die("receive %llu instead of %d", (unsigned long long)wc.wr_id, i);
			check_recv(&wc, &request);
		}
		if (request.verb <= SEND_IMM)
			check(remote + BEHIND + request.remote, request.length, request.seed, "the message");
		if (request.verb == WRITE || request.verb == WRITE_IMM)
			check(remote + request.remote, request.length, request.seed, "what was written");
	}
	uint64_t word;
	memcpy(&word, remote, 8);
	if (word != 3ull * adds)
		die("the sum is %llu after %d fetch-and-adds of 3", (unsigned long long)word, adds);
}

static void burst_ask(void)
{
	struct ibv_wc wc;
	char go;
	uint64_t sum = 0, word;
	hear(&go, 1);
	for (int i = 0; i < BURST; i++) {
		struct request request = of_burst(i);
		post_send(&request);
	}
	for (int i = 0; i < BURST; i++) {
		struct request request = of_burst(i);
		completion(send_cq, &wc);
		if (wc.wr_id != request.id)
			die("completion %llu instead of %d", (unsigned long long)wc.wr_id, i);
		if (request.verb == READ)
			check(local + request.local, request.length, seed_of(request.seed, true), "what was read");
		memcpy(&word, local + request.local, 8);
		if (request.verb == FETCH_ADD && word != sum)
			die("the original of %d is %llu instead of %llu", i, (unsigned long long)word, (unsigned long long)sum);
		sum += request.verb == FETCH_ADD ? 3 : 0;
	}
	tell("d", 1);
}

static void bursts(bool asking)
{
	for (int i = 0; i < options.bursts && options.type == IBV_QPT_RC; i++) {
		steps++;
		snprintf(doing, sizeof doing, "burst %d, %s", i, asking ? "requester" : "responder");
		if (asking)
			burst_ask();
		else
			burst_respond();
		meet();
	}
}

/* Ends the connection. */
static void wrong_key(bool asking)
{
	snprintf(doing, sizeof doing, "a WRITE with a wrong R_Key");
	struct request request = { .verb = WRITE, .length = 64 };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	if (asking) {
		uint64_t deadline = now_ms() + PATIENCE_S * 1000;
		peer.rkey ^= 0xff;
		post_send(&request);
		while (!ibv_poll_cq(send_cq, 1, &wc) && now_ms() < deadline)
			;
		if (wc.status != IBV_WC_REM_ACCESS_ERR)
			die("its status is %s", ibv_wc_status_str(wc.status));
	} else {
		memset(remote, 0x55, 64);
	}
	meet();
	for (int i = 0; i < 64 && !asking; i++)
		if (remote[i] != 0x55)
			die("byte %d was written", i);
}

static void parse(int argc, char **argv)
{
	for (int option; (option = getopt(argc, argv, "d:g:t:m:p:q:s:b:le:k")) != -1;) {
		switch (option) {
		case 'd': options.device = optarg; break;
		case 'g': options.gid_index = atoi(optarg); break;
		case 'm': options.mtu = atoi(optarg); break;
		case 'p': options.port = atoi(optarg); break;
		case 'q': options.psn = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 's': options.sizes = optarg; break;
		case 'b': options.bursts = atoi(optarg); break;
		case 'e': options.timeout = atoi(optarg); break;
		case 'l': options.lossy = true; break;
		case 'k': options.wrong_key = true; break;
		case 't':
			options.type = !strcmp(optarg, "ud") ? IBV_QPT_UD : !strcmp(optarg, "uc") ? IBV_QPT_UC : IBV_QPT_RC;
			break;
		default: exit(2);
		}
	}
	options.host = argv[optind];
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	open_device();
	connect_tcp(options.host, options.port);
	tell(&me, sizeof me);
	hear(&peer, sizeof peer);
	connect_qp();
	meet();
	for (int turn = 0; turn < 2; turn++) {
		bool asking = turn == (options.host ? 0 : 1);
		const char *size = options.sizes;
		while (*size) {
			char *end;
			each_verb(strtoul(size, &end, 0), asking);
			size = *end ? end + 1 : end;
		}
		/* A receive that nothing came for stays posted, so the bursts, which count on an empty queue, come last. */
		bursts(asking);
	}
	if (options.wrong_key)
		wrong_key(options.host != NULL);
	printf("wire_verbs: %llu steps, %llu bytes checked, %llu messages lost\n", (unsigned long long)steps,
	       (unsigned long long)bytes, (unsigned long long)lost);
	return 0;
}
