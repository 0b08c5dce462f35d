/* Transfers with librpma: rpma_transfer server|client ADDRESS PORT visibility|persistent
 *
 * The client writes into the server's memory, flushes it, and reads it back, in sizes from a byte to a megabyte; writes
 * eight bytes atomically; writes with an immediate; and asks by a message whether the server sees what was written. */
#include <arpa/inet.h>
#include <librpma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMORY = 1 << 20, MESSAGE = 64, IMMEDIATE = 0x1234 };

static const size_t sizes[] = { 1, 8, 64, 4096, 65536, MEMORY };

/* What the server tells by the connection's private data, which has 56 bytes: two descriptors, one behind the other. */
struct offer {
	uint8_t memory_size, configuration_size;
	uint8_t descriptors[54];
};

static void check(int result, const char *what)
{
	if (result == 0)
		return;
	fprintf(stderr, "%s: %s\n", what, rpma_err_2str(result));
	exit(1);
}

static void expect(bool true_, const char *what)
{
	if (true_)
		return;
	fprintf(stderr, "%s\n", what);
	exit(1);
}

#define CHECK(call) check(call, #call)

static void fill(uint8_t *memory, size_t size, unsigned int seed)
{
	for (size_t at = 0; at < size; at++)
		memory[at] = (uint8_t)(at * 7 + at / 251 + seed);
}

static uint8_t *allocate(void)
{
	void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect(memory != MAP_FAILED, "mmap failed");
	return memory;
}

static void wait_for(struct rpma_conn *connection, enum rpma_conn_event expected)
{
	enum rpma_conn_event event;
	CHECK(rpma_conn_next_event(connection, &event));
	if (event == expected)
		return;
	fprintf(stderr, "%s, not %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(expected));
	exit(1);
}

static struct ibv_wc completion(struct rpma_conn *connection)
{
	struct rpma_cq *queue;
	struct ibv_wc completion;
	int result;
	CHECK(rpma_conn_get_cq(connection, &queue));
	for (;;) {
		result = rpma_cq_get_wc(queue, 1, &completion, NULL);
		if (result == 0)
			break;
		if (result != RPMA_E_NO_COMPLETION)
			check(result, "rpma_cq_get_wc");
		CHECK(rpma_cq_wait(queue));
	}
	if (completion.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "a work request failed: %s\n", ibv_wc_status_str(completion.status));
		exit(1);
	}
	return completion;
}

static void serve(const char *address, const char *port, bool persistent)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_ep *endpoint;
	struct rpma_mr_local *memory_mr, *message_mr;
	struct rpma_peer_cfg *configuration;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct offer offer;
	size_t size;
	uint8_t *memory = allocate(), *expected = allocate(), *message = allocate();

	CHECK(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	CHECK(rpma_peer_new(context, &peer));
	CHECK(rpma_mr_reg(peer, memory, MEMORY, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST |
		RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | (persistent ? RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT : 0), &memory_mr));
	CHECK(rpma_mr_reg(peer, message, MESSAGE, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &message_mr));
	CHECK(rpma_peer_cfg_new(&configuration));
	CHECK(rpma_peer_cfg_set_direct_write_to_pmem(configuration, persistent));
	CHECK(rpma_mr_get_descriptor_size(memory_mr, &size));
	offer.memory_size = (uint8_t)size;
	CHECK(rpma_peer_cfg_get_descriptor_size(configuration, &size));
	offer.configuration_size = (uint8_t)size;
	expect(offer.memory_size + offer.configuration_size <= (int)sizeof offer.descriptors, "descriptors are too long");
	CHECK(rpma_mr_get_descriptor(memory_mr, offer.descriptors));
	CHECK(rpma_peer_cfg_get_descriptor(configuration, offer.descriptors + offer.memory_size));

	CHECK(rpma_ep_listen(peer, address, port, &endpoint));
	CHECK(rpma_ep_next_conn_req(endpoint, NULL, &request));
	struct rpma_conn_private_data data = { &offer, sizeof offer };
	/* For the write with an immediate, then for the question. */
	CHECK(rpma_conn_req_recv(request, message_mr, 0, MESSAGE, "immediate"));
	CHECK(rpma_conn_req_recv(request, message_mr, 0, MESSAGE, "question"));
	CHECK(rpma_conn_req_connect(&request, &data, &connection));
	wait_for(connection, RPMA_CONN_ESTABLISHED);

	struct ibv_wc done = completion(connection);
	expect(done.opcode == IBV_WC_RECV_RDMA_WITH_IMM && ntohl(done.imm_data) == IMMEDIATE, "not the immediate");
	done = completion(connection);
	expect(done.opcode == IBV_WC_RECV && done.byte_len == MESSAGE, "not a question");
	fill(expected, MEMORY, message[0]);
	strcpy((char *)message, memcmp(memory, expected, MEMORY) == 0 ? "yes" : "no");
	CHECK(rpma_send(connection, message_mr, 0, MESSAGE, RPMA_F_COMPLETION_ALWAYS, "answer"));
	expect(completion(connection).opcode == IBV_WC_SEND, "not the answer's completion");

	wait_for(connection, RPMA_CONN_CLOSED);
	CHECK(rpma_conn_disconnect(connection));
	CHECK(rpma_conn_delete(&connection));
	CHECK(rpma_ep_shutdown(&endpoint));
	CHECK(rpma_peer_cfg_delete(&configuration));
	CHECK(rpma_mr_dereg(&message_mr));
	CHECK(rpma_mr_dereg(&memory_mr));
	CHECK(rpma_peer_delete(&peer));
}

static void request(const char *address, const char *port, bool persistent)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_mr_local *from_mr, *to_mr, *message_mr;
	struct rpma_mr_remote *remote;
	struct rpma_peer_cfg *configuration;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct rpma_conn_private_data data;
	struct offer offer;
	enum rpma_flush_type flush = persistent ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
	uint8_t *from = allocate(), *to = allocate(), *message = allocate();
	unsigned int seed = 0;

	CHECK(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	CHECK(rpma_peer_new(context, &peer));
	CHECK(rpma_mr_reg(peer, from, MEMORY, RPMA_MR_USAGE_WRITE_SRC, &from_mr));
	CHECK(rpma_mr_reg(peer, to, MEMORY, RPMA_MR_USAGE_READ_DST, &to_mr));
	CHECK(rpma_mr_reg(peer, message, MESSAGE, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &message_mr));
	CHECK(rpma_conn_req_new(peer, address, port, NULL, &request));
	CHECK(rpma_conn_req_connect(&request, NULL, &connection));
	wait_for(connection, RPMA_CONN_ESTABLISHED);
	CHECK(rpma_conn_get_private_data(connection, &data));
	expect(data.ptr && data.len >= sizeof offer, "the server offers nothing");
	memcpy(&offer, data.ptr, sizeof offer);
	CHECK(rpma_mr_remote_from_descriptor(offer.descriptors, offer.memory_size, &remote));
	CHECK(rpma_peer_cfg_from_descriptor(offer.descriptors + offer.memory_size, offer.configuration_size,
		&configuration));
	CHECK(rpma_conn_apply_remote_peer_cfg(connection, configuration));

	for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
		/* A flush of librpma reads eight bytes from there. */
		size_t size = sizes[at], offset = (MEMORY - size) / 2;
		fill(from, MEMORY, ++seed);
		CHECK(rpma_write(connection, remote, offset, from_mr, offset, size, RPMA_F_COMPLETION_ON_ERROR, NULL));
		CHECK(rpma_flush(connection, remote, offset, size, flush, RPMA_F_COMPLETION_ALWAYS, "flush"));
		completion(connection);
		memset(to, 0, MEMORY);
		CHECK(rpma_read(connection, to_mr, offset, remote, offset, size, RPMA_F_COMPLETION_ALWAYS, "read"));
		expect(completion(connection).opcode == IBV_WC_RDMA_READ, "not the read's completion");
		if (memcmp(to + offset, from + offset, size) != 0) {
			fprintf(stderr, "%zu bytes: what was read is not what was written\n", size);
			exit(1);
		}
	}
	CHECK(rpma_atomic_write(connection, remote, 4096, "8 bytes!", RPMA_F_COMPLETION_ALWAYS, "atomic"));
	completion(connection);
	CHECK(rpma_read(connection, to_mr, 0, remote, 4096, 8, RPMA_F_COMPLETION_ALWAYS, "read"));
	completion(connection);
	expect(memcmp(to, "8 bytes!", 8) == 0, "what was read is not what was written atomically");

	fill(from, MEMORY, ++seed);
	CHECK(rpma_write_with_imm(connection, remote, 0, from_mr, 0, MEMORY, RPMA_F_COMPLETION_ALWAYS, IMMEDIATE, "last"));
	completion(connection);
	message[0] = (uint8_t)seed;
	CHECK(rpma_recv(connection, message_mr, 0, MESSAGE, "answer"));
	CHECK(rpma_send(connection, message_mr, 0, MESSAGE, RPMA_F_COMPLETION_ON_ERROR, "question"));
	expect(completion(connection).opcode == IBV_WC_RECV, "not an answer");
	expect(strcmp((char *)message, "yes") == 0, "the server does not see what was written");

	CHECK(rpma_conn_disconnect(connection));
	wait_for(connection, RPMA_CONN_CLOSED);
	CHECK(rpma_mr_remote_delete(&remote));
	CHECK(rpma_peer_cfg_delete(&configuration));
	CHECK(rpma_conn_delete(&connection));
	CHECK(rpma_mr_dereg(&message_mr));
	CHECK(rpma_mr_dereg(&to_mr));
	CHECK(rpma_mr_dereg(&from_mr));
	CHECK(rpma_peer_delete(&peer));
	puts("transferred");
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: %s server|client ADDRESS PORT visibility|persistent\n", argv[0]);
		return 2;
	}
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING);
	(strcmp(argv[1], "server") == 0 ? serve : request)(argv[2], argv[3], strcmp(argv[4], "persistent") == 0);
	return 0;
}
