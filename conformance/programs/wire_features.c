/*
 * Features of the verbs between two hosts, with all data checked. Each side is the requester in turn.
 *
 *     wire_features [options]         the server, which waits for a client
 *     wire_features [options] HOST    the client
 *
 *     -d NAME   device                       -g N  GID index
 *     -p N      TCP port                     -m N  path MTU
 *     -t rc|uc|ud
 *
 * Both sides take the same options, but -d, -g and HOST. Exit status 0 when all is as it must be.
 */

#include "wire_scenario.h"

static const uint32_t FROM[] = { 1, 1000, 4096, 903 }, TO[] = { 2999, 1, 3000 };
enum { SCATTERED = 6000 };

static void gather_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces from = pieces_at(LOCAL, 4, FROM), to = pieces_at(LOCAL + 4 * SLOT, 3, TO);
	fill_pieces(&from, 1);
	wait_for_peer();
	post(request(1, IBV_WR_SEND_WITH_IMM, &from, 0));
	post(request(2, IBV_WR_RDMA_WRITE_WITH_IMM, &from, 5));
	for (uint64_t id = 1; id <= 2; id++)
		completed(send_cq, id);
	if (qp_type() == IBV_QPT_RC) {
		post(request(3, IBV_WR_RDMA_READ, &to, SOURCE + 3));
		completed(send_cq, 3);
		check_pieces(&to, 2, "what was read");
	}
	go();
}

static void gather_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces to = pieces_at(RECEIVES, 3, TO);
	post_recv(1, to);
	post_recv(2, to);
	fill(area + SOURCE + 3, SCATTERED, 2);
	go();
	for (uint64_t id = 1; id <= 2; id++) {
		struct ibv_wc wc = completed(recv_cq, id);
		if (wc.byte_len != SCATTERED || be32toh(wc.imm_data) != id || !(wc.wc_flags & IBV_WC_WITH_IMM))
			die("receive %llu has %u bytes and immediate %u", (unsigned long long)id, wc.byte_len, be32toh(wc.imm_data));
	}
	check_pieces(&to, 1, "the message");
	check(area + 5, SCATTERED, 1, "what was written");
	wait_for_peer();
}

/* The message follows the WRITE, because a requester of UC completes a WRITE before the responder has executed it. */
static const enum ibv_wr_opcode INLINE_OPCODES[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND };
enum { INLINE_WRITE = 1, INLINE_SEND = 2 };

static void inline_ask(const struct scenario *scenario)
{
	(void)scenario;
	uint8_t data[100];
	struct pieces from = { .count = 2, .sge = { { (uintptr_t)data, 33, 0 }, { (uintptr_t)data + 33, 67, 0 } } };
	const uint64_t first = ah ? INLINE_SEND : INLINE_WRITE;
	wait_for_peer();
	for (uint64_t id = first; id <= INLINE_SEND; id++) {
		fill(data, sizeof data, id);
		struct ibv_send_wr wr = request(id, INLINE_OPCODES[id - 1], &from, 0);
		wr.send_flags |= IBV_SEND_INLINE;
		post(wr);
		memset(data, 0xee, sizeof data);
	}
	for (uint64_t id = first; id <= INLINE_SEND; id++)
		completed(send_cq, id);
	go();
}

static void inline_respond(const struct scenario *scenario)
{
	(void)scenario;
	size_t header = qp_type() == IBV_QPT_UD ? GRH : 0;
	post_recv(1, one_piece(RECEIVES, SLOT));
	go();
	completed(recv_cq, 1);
	wait_for_peer();
	check(area + RECEIVES + header, 100, INLINE_SEND, "the message");
	if (!header)
		check(area, 100, INLINE_WRITE, "what was written");
}

/* Sends on what a READ brings: without the fence, the message may have the data from before. */
static void fence_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces buffer = one_piece(LOCAL, 2 * SLOT);
	memset(area + LOCAL, 0xee, 2 * SLOT);
	wait_for_peer();
	struct ibv_send_wr read = request(1, IBV_WR_RDMA_READ, &buffer, SOURCE);
	struct ibv_send_wr send = request(2, IBV_WR_SEND, &buffer, 0);
	struct ibv_send_wr write = request(3, IBV_WR_RDMA_WRITE, &buffer, 0);
	send.send_flags |= IBV_SEND_FENCE;
	post(read);
	post(send);
	post(write);
	for (uint64_t id = 1; id <= 3; id++)
		completed(send_cq, id);
	go();
}

static void fence_respond(const struct scenario *scenario)
{
	(void)scenario;
	fill(area + SOURCE, 2 * SLOT, 7);
	post_recv(1, one_piece(RECEIVES, 2 * SLOT));
	go();
	completed(recv_cq, 1);
	check(area + RECEIVES, 2 * SLOT, 7, "what was read and sent");
	wait_for_peer();
	check(area, 2 * SLOT, 7, "what was read and written");
}

enum { UNSIGNALED = 15 };

static void unsignaled_ask(const struct scenario *scenario)
{
	(void)scenario;
	wait_for_peer();
	for (uint64_t id = 0; id <= UNSIGNALED; id++) {
		struct pieces from = one_piece(LOCAL + id * 512, 512);
		fill_pieces(&from, id);
		struct ibv_send_wr wr = request(id, IBV_WR_RDMA_WRITE, &from, id * SLOT);
		wr.send_flags = id == UNSIGNALED ? IBV_SEND_SIGNALED : 0;
		post(wr);
	}
	/* The first completion is that of the last request. */
	completed(send_cq, UNSIGNALED);
	struct pieces last = one_piece(LOCAL, 64);
	post(request(1, IBV_WR_SEND, &last, 0));
	completed(send_cq, 1);
}

static void unsignaled_respond(const struct scenario *scenario)
{
	(void)scenario;
	post_recv(1, one_piece(RECEIVES, SLOT));
	go();
	completed(recv_cq, 1);
	for (size_t id = 0; id <= UNSIGNALED; id++)
		check(area + id * SLOT, 512, id, "what was written");
}

static bool readable(int fd, int ms)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };
	return poll(&wanted, 1, ms) > 0;
}

enum { SHARED = 6, SHARED_LIMIT = 4 };
static const enum ibv_wr_opcode SHARED_OPCODES[3] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM };

static void srq_ask(const struct scenario *scenario)
{
	(void)scenario;
	wait_for_peer();
	for (uint64_t id = 0; id < SHARED; id++) {
		struct pieces from = one_piece(LOCAL + id * SLOT, 3000 + (uint32_t)id);
		fill_pieces(&from, id);
		post(request(id, SHARED_OPCODES[id % 3], &from, id * SLOT));
	}
	for (uint64_t id = 0; id < SHARED; id++)
		completed(send_cq, id);
}

static void srq_respond(const struct scenario *scenario)
{
	(void)scenario;
	for (uint64_t id = 0; id < SHARED; id++)
		post_recv(id, one_piece(RECEIVES + id * SLOT, SLOT));
	struct ibv_srq_attr limit = { .srq_limit = SHARED_LIMIT };
	zero(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), "ibv_modify_srq");
	go();
	for (uint64_t id = 0; id < SHARED; id++) {
		bool written = SHARED_OPCODES[id % 3] == IBV_WR_RDMA_WRITE_WITH_IMM;
		struct ibv_wc wc = completed(recv_cq, id);
		if (wc.byte_len != 3000 + id || wc.qp_num != qp->qp_num)
			die("receive %llu has %u bytes, of queue pair %u", (unsigned long long)id, wc.byte_len, wc.qp_num);
		check(area + id * SLOT + (written ? 0 : RECEIVES), 3000 + id, id, "the message");
	}
	struct ibv_async_event event;
	if (!readable(context->async_fd, PATIENCE_S * 1000))
		die("no event of the limit of the SRQ");
	zero(ibv_get_async_event(context, &event), "ibv_get_async_event");
	if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED || event.element.srq != srq)
		die("%s instead of the limit of the SRQ", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
}

static void solicited_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces from = one_piece(LOCAL, 3000);
	for (uint64_t id = 1; id <= 2; id++) {
		fill_pieces(&from, id);
		struct ibv_send_wr wr = request(id, IBV_WR_SEND, &from, 0);
		wr.send_flags |= id == 2 ? IBV_SEND_SOLICITED : 0;
		wait_for_peer();
		post(wr);
		completed(send_cq, id);
	}
}

static void solicited_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct ibv_cq *of;
	void *unused;
	zero(ibv_req_notify_cq(recv_cq, 1), "ibv_req_notify_cq");
	for (uint64_t id = 1; id <= 2; id++) {
		post_recv(id, one_piece(RECEIVES, SLOT));
		go();
		if (id == 2) {
			if (!readable(channel->fd, PATIENCE_S * 1000))
				die("no event of a solicited message");
			zero(ibv_get_cq_event(channel, &of, &unused), "ibv_get_cq_event");
			ibv_ack_cq_events(of, 1);
		}
		completed(recv_cq, id);
		if (id == 1 && readable(channel->fd, 0))
			die("an event of a message that is not solicited");
		check(area + RECEIVES, 3000, id, "the message");
	}
}

/* A datagram with a wrong Q_Key is dropped, and takes no receive. */
static void qkey_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces from = one_piece(LOCAL, 500);
	fill_pieces(&from, 3);
	wait_for_peer();
	struct ibv_send_wr wrong = request(1, IBV_WR_SEND_WITH_IMM, &from, 0);
	wrong.wr.ud.remote_qkey = QKEY + 1;
	post(wrong);
	post(request(2, IBV_WR_SEND_WITH_IMM, &from, 0));
	for (uint64_t id = 1; id <= 2; id++)
		completed(send_cq, id);
}

static void qkey_respond(const struct scenario *scenario)
{
	(void)scenario;
	post_recv(1, one_piece(RECEIVES, SLOT));
	go();
	struct ibv_wc wc = completed(recv_cq, 1);
	if (be32toh(wc.imm_data) != 2 || wc.byte_len != GRH + 500)
		die("datagram %u of %u bytes instead of datagram 2", be32toh(wc.imm_data), wc.byte_len);
	check(area + RECEIVES + GRH, 500, 3, "the datagram");
}

static const uint32_t DATAGRAM_FROM[] = { 1, 500, 399 }, DATAGRAM_TO[] = { GRH, 250, 650 };

static void datagram_ask(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces from = pieces_at(LOCAL, 3, DATAGRAM_FROM);
	fill_pieces(&from, 4);
	wait_for_peer();
	post(request(1, IBV_WR_SEND, &from, 0));
	completed(send_cq, 1);
}

static void datagram_respond(const struct scenario *scenario)
{
	(void)scenario;
	struct pieces to = pieces_at(RECEIVES, 3, DATAGRAM_TO), data = { .count = 2 };
	post_recv(1, to);
	go();
	struct ibv_wc wc = completed(recv_cq, 1);
	if (wc.byte_len != GRH + 900 || wc.src_qp != peer.qpn)
		die("a datagram of %u bytes from queue pair %u", wc.byte_len, wc.src_qp);
	memcpy(data.sge, to.sge + 1, 2 * sizeof *data.sge);
	check_pieces(&data, 4, "the datagram");
}

/* Those behind the first four need an RC queue pair. */
static const struct scenario CONNECTED[] = {
	{ "scatter and gather", gather_ask, gather_respond },
	{ "inline data", inline_ask, inline_respond },
	{ "unsignaled requests", unsignaled_ask, unsignaled_respond },
	{ "solicited events", solicited_ask, solicited_respond },
	{ "a fence behind a READ", fence_ask, fence_respond },
	{ "an SRQ and its limit", srq_ask, srq_respond, .has_srq = true },
};
enum { WITHOUT_RC = 4 };

static const struct scenario DATAGRAMS[] = {
	{ "scatter and gather", datagram_ask, datagram_respond },
	{ "inline data", inline_ask, inline_respond },
	{ "a wrong Q_Key", qkey_ask, qkey_respond },
};

int main(int argc, char **argv)
{
	parse(argc, argv);
	open_device();
	connect_tcp(options.host, options.port);
	if (qp_type() == IBV_QPT_UD)
		run_all(DATAGRAMS, sizeof DATAGRAMS / sizeof *DATAGRAMS);
	else
		run_all(CONNECTED, qp_type() == IBV_QPT_UC ? WITHOUT_RC : sizeof CONNECTED / sizeof *CONNECTED);
	return 0;
}
