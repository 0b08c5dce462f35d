/*
 * Two processes use ports 1 and 2 of one device at a time, as rdma_bench does by default: RC and UD at both, data checked.
 *
 *     two_ports DEVICE GID_INDEX TCP_PORT [HOST]      with HOST: the client
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTS = 2, ROUNDS = 200, SEND = 1000, DATAGRAM = 1500, WRITE = 65536, GRH = 40, QKEY = 0x1234567, PSN = 77 };

/* The buffers of a port: what it sends, and where the peer's messages go. */
struct area {
	unsigned char out[WRITE], send[SEND], datagram[GRH + DATAGRAM], write[WRITE];
};

struct name {
	uint64_t addr;
	uint32_t rkey, rc, ud;
	uint16_t lid;
	union ibv_gid gid;
};

static struct area area[PORTS];
static struct ibv_qp *rc[PORTS], *ud[PORTS];
static struct ibv_ah *ah[PORTS];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct name mine[PORTS], theirs[PORTS];

static void check(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static int connect_tcp(const char *host, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = INADDR_ANY };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	if (host) {
		check(inet_pton(AF_INET, host, &at.sin_addr) == 1, host);
		check(!connect(fd, (void *)&at, sizeof at), "connect");
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	check(!bind(fd, (void *)&at, sizeof at) && !listen(fd, 1), "listen");
	return accept(fd, NULL, NULL);
}

static void swap(int tcp, const void *out, void *in, size_t len)
{
	check(write(tcp, out, len) == (ssize_t)len, "write");
	for (size_t got = 0; got < len;) {
		ssize_t n = read(tcp, (char *)in + got, len - got);
		check(n > 0, "the peer has ended");
		got += n;
	}
}

static struct ibv_ah_attr path(int port, int gid_index)
{
	struct ibv_ah_attr attr = { .port_num = port + 1, .dlid = theirs[port].lid, .is_global = 1 };
	attr.grh.dgid = theirs[port].gid;
	attr.grh.sgid_index = gid_index;
	attr.grh.hop_limit = 64;
	return attr;
}

static void make(struct ibv_context *context, struct ibv_pd *pd, int port, int gid_index)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port + 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .qkey = QKEY };
	struct ibv_port_attr of_port;
	check((rc[port] = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp RC");
	init.qp_type = IBV_QPT_UD;
	check((ud[port] = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp UD");
	int common = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	check(!ibv_modify_qp(rc[port], &attr, common | IBV_QP_ACCESS_FLAGS), "RC to INIT");
	check(!ibv_modify_qp(ud[port], &attr, common | IBV_QP_QKEY), "UD to INIT");
	check(!ibv_query_port(context, port + 1, &of_port), "ibv_query_port");
	check(of_port.state == IBV_PORT_ACTIVE, "the port is not active");
	mine[port] = (struct name){ (uintptr_t)area[port].write, mr->rkey, rc[port]->qp_num, ud[port]->qp_num, of_port.lid };
	check(!ibv_query_gid(context, port + 1, gid_index, &mine[port].gid), "ibv_query_gid");
}

static void connect_port(struct ibv_pd *pd, int port, int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs[port].rc, .rq_psn = PSN,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = path(port, gid_index) };
	check(!ibv_modify_qp(rc[port], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RC to RTR");
	check(!ibv_modify_qp(ud[port], &attr, IBV_QP_STATE), "UD to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = PSN, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	check(!ibv_modify_qp(ud[port], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "UD to RTS");
	check(!ibv_modify_qp(rc[port], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC), "RC to RTS");
	struct ibv_ah_attr to = path(port, gid_index);
	check((ah[port] = ibv_create_ah(pd, &to)) != NULL, "ibv_create_ah");
}

static void receive(struct ibv_qp *qp, void *at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)at, len, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = len != 0 }, *bad;
	check(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, int port, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)area[port].out, len, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah[port];
		wr.wr.ud.remote_qpn = theirs[port].ud;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		wr.wr.rdma.remote_addr = theirs[port].addr;
		wr.wr.rdma.rkey = theirs[port].rkey;
	}
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* Polls until so many work requests have completed well. */
static void complete(int count)
{
	time_t end = time(NULL) + 30;
	while (count > 0) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		check(n >= 0, "ibv_poll_cq");
		if (n && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "queue pair %#x: %s\n", wc.qp_num, ibv_wc_status_str(wc.status));
			exit(1);
		}
		count -= n;
		if (!n && time(NULL) > end) {
			fprintf(stderr, "%d completions are missing\n", count);
			exit(1);
		}
	}
}

static unsigned char byte(int side, int port, int round, int at)
{
	return side * 101 + port * 53 + round * 7 + at * 3;
}

static void compare(const unsigned char *bytes, int len, int side, int port, int round, const char *what)
{
	for (int at = 0; at < len; at++)
		if (bytes[at] != byte(side, port, round, at)) {
			fprintf(stderr, "port %d, round %d: byte %d of the %s is wrong\n", port + 1, round, at, what);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	check(argc >= 4, "two_ports DEVICE GID_INDEX TCP_PORT [HOST]");
	int gid_index = atoi(argv[2]), side = argc > 4;
	struct ibv_device **device = ibv_get_device_list(NULL);
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	check(*device != NULL, argv[1]);
	struct ibv_context *context = ibv_open_device(*device);
	check(context != NULL, "ibv_open_device");
	struct ibv_device_attr attr;
	check(!ibv_query_device(context, &attr), "ibv_query_device");
	check(attr.phys_port_cnt >= PORTS, "the device has one port");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, area, sizeof area, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(pd && cq && mr, "objects");
	for (int port = 0; port < PORTS; port++)
		make(context, pd, port, gid_index);
	int tcp = connect_tcp(side ? argv[4] : NULL, atoi(argv[3]));
	swap(tcp, mine, theirs, sizeof mine);
	for (int port = 0; port < PORTS; port++)
		connect_port(pd, port, gid_index);
	for (int round = 0; round < ROUNDS; round++) {
		char ready = 0;
		for (int port = 0; port < PORTS; port++) {
			receive(rc[port], area[port].send, SEND);
			receive(rc[port], NULL, 0);
			receive(ud[port], area[port].datagram, sizeof area[port].datagram);
			for (int at = 0; at < WRITE; at++)
				area[port].out[at] = byte(side, port, round, at);
		}
		swap(tcp, &ready, &ready, 1);
		for (int port = 0; port < PORTS; port++) {
			post(rc[port], IBV_WR_SEND, port, SEND);
			post(ud[port], IBV_WR_SEND, port, DATAGRAM);
			post(rc[port], IBV_WR_RDMA_WRITE_WITH_IMM, port, WRITE);
		}
		complete(PORTS * 6);
		for (int port = 0; port < PORTS; port++) {
			compare(area[port].send, SEND, !side, port, round, "SEND");
			compare(area[port].datagram + GRH, DATAGRAM, !side, port, round, "datagram");
			compare(area[port].write, WRITE, !side, port, round, "WRITE");
		}
		swap(tcp, &ready, &ready, 1);
	}
	printf("%d rounds at %d ports\n", ROUNDS, PORTS);
	return 0;
}
