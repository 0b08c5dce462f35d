/*
 * What verbs answer when the process has used up what the system lets it have. A sequence of verbs is run in a child with
 * room for nothing, for a little, for a little more, and so on until all of them succeed: the first that fails must say
 * so with the errno of what is short, and what was made before must be destroyed as ever. Prints "ok".
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, \
				#condition, strerror(errno));                  \
			_exit(1);                                              \
		}                                                              \
	} while (0)

enum { LENGTH = 4096, DEPTH = 64 };
/* How a child ends. */
enum { ALL = 0, WRONG = 1, SHORT = 42 };

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/* A verb that may fail for want of descriptors, and of nothing else. */
#define MAY_FAIL(failed)                                              \
	do {                                                          \
		errno = 0;                                            \
		if (failed) {                                         \
			CHECK(errno == EMFILE);                       \
			return SHORT;                                 \
		}                                                     \
	} while (0)
/* One that returns its errno. */
#define MAY_REFUSE(call) MAY_FAIL((errno = (call)))

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(pd, &init);
}

static int connect_to(struct ibv_qp *qp, uint32_t peer, uint16_t lid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	MAY_REFUSE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = lid;
	MAY_REFUSE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	MAY_REFUSE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return ALL;
}

/* What a sequence makes; what is NULL has not been made. */
struct made {
	struct ibv_device **list;
	struct ibv_context *context, *imported;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qps[2];
	char *memory[2];
	struct ibv_mr *mrs[2], *dm_mr;
	struct ibv_dm *dm;
	struct ibv_ah *ah;
};

/* The completion of one RDMA WRITE from the first queue pair to the second, and its event. */
static int write_once(struct made *m)
{
	struct ibv_sge sge = { (uintptr_t)m->memory[0], LENGTH, m->mrs[0]->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)m->memory[1], m->mrs[1]->rkey },
	};
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cq_context;

	memset(m->memory[0], 'a', LENGTH);
	memset(m->memory[1], 'b', LENGTH);
	MAY_REFUSE(ibv_req_notify_cq(m->cq, 0));
	MAY_REFUSE(ibv_post_send(m->qps[0], &wr, &bad));
	CHECK(!ibv_get_cq_event(m->channel, &cq, &cq_context) && cq == m->cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(m->cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(m->memory[0], m->memory[1], LENGTH));
	return ALL;
}

static int make_device(struct made *m)
{
	MAY_FAIL(!(m->list = ibv_get_device_list(NULL)));
	MAY_FAIL(!(m->context = ibv_open_device(m->list[0])));
	CHECK(m->context->cmd_fd >= 0 && m->context->async_fd >= 0);
	return ALL;
}

static int make(struct made *m)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_alloc_dm_attr dm_attr = { .length = LENGTH };
	struct ibv_port_attr port;
	int end;

	MAY_REFUSE(ibv_query_port(m->context, 1, &port));
	MAY_FAIL(!(m->pd = ibv_alloc_pd(m->context)));
	MAY_FAIL(!(m->channel = ibv_create_comp_channel(m->context)));
	MAY_FAIL(!(m->cq = ibv_create_cq(m->context, DEPTH, NULL, m->channel, 0)));
	MAY_FAIL(!(m->srq = ibv_create_srq(m->pd, &srq_init)));
	for (int i = 0; i < 2; i++) {
		MAY_FAIL(!(m->qps[i] = new_qp(m->pd, m->cq)));
		m->memory[i] = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MAY_FAIL(m->memory[i] == MAP_FAILED);
		MAY_FAIL(!(m->mrs[i] = ibv_reg_mr(m->pd, m->memory[i], LENGTH, ACCESS)));
	}
	struct ibv_ah_attr ah_attr = { .port_num = 1, .dlid = port.lid };
	MAY_FAIL(!(m->ah = ibv_create_ah(m->pd, &ah_attr)));
	MAY_FAIL(!(m->dm = ibv_alloc_dm(m->context, &dm_attr)));
	MAY_FAIL(!(m->dm_mr = ibv_reg_dm_mr(m->pd, m->dm, 0, LENGTH, IBV_ACCESS_ZERO_BASED)));
	for (int i = 0; i < 2; i++) {
		if ((end = connect_to(m->qps[i], m->qps[1 - i]->qp_num, port.lid)))
			return end;
	}
	if ((end = write_once(m)))
		return end;
	int fd = dup(m->context->cmd_fd);
	MAY_FAIL(fd < 0);
	errno = 0;
	m->imported = ibv_import_device(fd);
	if (!m->imported)
		CHECK(errno == EMFILE && !close(fd));
	return m->imported ? ALL : SHORT;
}

static void destroy(struct made *m)
{
	CHECK(!m->imported || !ibv_close_device(m->imported));
	CHECK(!m->dm_mr || !ibv_dereg_mr(m->dm_mr));
	CHECK(!m->dm || !ibv_free_dm(m->dm));
	CHECK(!m->ah || !ibv_destroy_ah(m->ah));
	for (int i = 0; i < 2; i++) {
		CHECK(!m->mrs[i] || !ibv_dereg_mr(m->mrs[i]));
		CHECK(!m->qps[i] || !ibv_destroy_qp(m->qps[i]));
		CHECK(!m->memory[i] || m->memory[i] == MAP_FAILED || !munmap(m->memory[i], LENGTH));
	}
	CHECK(!m->srq || !ibv_destroy_srq(m->srq));
	CHECK(!m->cq || !ibv_destroy_cq(m->cq));
	CHECK(!m->channel || !ibv_destroy_comp_channel(m->channel));
	CHECK(!m->pd || !ibv_dealloc_pd(m->pd));
	struct made device = { .list = m->list, .context = m->context };
	*m = device;
}

static void leave_device(struct made *m)
{
	CHECK(!m->context || !ibv_close_device(m->context));
	if (m->list)
		ibv_free_device_list(m->list);
	memset(m, 0, sizeof(*m));
}

/* What the room is filled up with. */
static int fillers[256], filler_count;

/* Leaves room for so many descriptors. */
static void leave_descriptors(int count)
{
	struct rlimit limit = { 256, 256 };

	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while ((fillers[filler_count] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
		filler_count++;
	CHECK(errno == EMFILE && filler_count >= count);
	while (count--)
		CHECK(!close(fillers[--filler_count]));
}

static void free_descriptors(void)
{
	for (int i = 0; i < filler_count; i++)
		CHECK(!close(fillers[i]));
	filler_count = 0;
}

/* How a child ended that does `what` with room for `room`. */
static int child(int (*what)(size_t), size_t room)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid)
		exit(what(room));
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status))
		fprintf(stderr, "room for %zu: signal %d\n", room, WTERMSIG(status));
	CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == ALL || WEXITSTATUS(status) == SHORT));
	return WEXITSTATUS(status);
}

/* With more and more room, until there is enough. Most cases are none if it is enough at once. */
static void sweep(int (*what)(size_t))
{
	size_t room = 0;

	while (child(what, room) == SHORT)
		room++;
	CHECK(room >= 3);
}

static int descriptors_from_the_start(size_t room)
{
	struct made m = { 0 };
	int end;

	leave_descriptors(room);
	if (!(end = make_device(&m)) && !(end = make(&m)))
		destroy(&m);
	/* Once there are descriptors, all is well. */
	if (end == SHORT) {
		destroy(&m);
		leave_device(&m);
		free_descriptors();
		CHECK(make_device(&m) == ALL && make(&m) == ALL);
		destroy(&m);
	}
	leave_device(&m);
	return end;
}

/* What is closed gives its descriptors back. */
static int descriptors_again_and_again(size_t room)
{
	struct made m = { 0 };

	CHECK(make_device(&m) == ALL);
	leave_descriptors(room);
	for (int i = 0; i < 300; i++) {
		struct ibv_context *context = ibv_open_device(m.list[0]);
		struct ibv_comp_channel *channel = context ? ibv_create_comp_channel(context) : NULL;
		CHECK(channel && !ibv_destroy_comp_channel(channel) && !ibv_close_device(context));
	}
	leave_device(&m);
	return ALL;
}

/* A child shares no memory with its parent, though neither can open anything. */
static int descriptors_forked(size_t room)
{
	struct made m = { 0 };
	int status, go[2];
	char c = 'p';

	CHECK(make_device(&m) == ALL && make(&m) == ALL && !pipe(go));
	leave_descriptors(room);
	for (int i = 0; i < 20; i++) {
		memset(m.memory[0], 'a', LENGTH);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			CHECK(read(go[0], &c, 1) == 1);
			for (int at = 0; at < LENGTH; at++)
				CHECK(m.memory[0][at] == 'a');
			memset(m.memory[0], 'c', LENGTH);
			_exit(0);
		}
		memset(m.memory[0], 'p', LENGTH);
		CHECK(write(go[1], &c, 1) == 1);
		CHECK(waitpid(pid, &status, 0) == pid && !status);
		for (int at = 0; at < LENGTH; at++)
			CHECK(m.memory[0][at] == 'p');
	}
	free_descriptors();
	CHECK(write_once(&m) == ALL);
	destroy(&m);
	leave_device(&m);
	return ALL;
}

static int descriptors_later(size_t room)
{
	struct made m = { 0 };
	int end;

	CHECK(make_device(&m) == ALL);
	leave_descriptors(room);
	end = make(&m);
	destroy(&m);
	if (end == SHORT) {
		free_descriptors();
		CHECK(make(&m) == ALL);
		destroy(&m);
	}
	leave_device(&m);
	return end;
}

/* Files in the folder of the fabric that end so. */
static int files(const char *ending)
{
	DIR *folder = opendir(getenv("VERBATIM_FABRIC_DIR"));
	struct dirent *entry;
	int count = 0;

	CHECK(folder);
	while ((entry = readdir(folder))) {
		char *dot = strrchr(entry->d_name, '.');
		count += dot && !strcmp(dot, ending);
	}
	CHECK(!closedir(folder));
	return count;
}

/* This process is in the fabric while others try to join it, and stays. */
static void descriptors(void)
{
	struct made m = { 0 };

	sweep(descriptors_from_the_start);
	sweep(descriptors_later);
	child(descriptors_again_and_again, 8);
	child(descriptors_forked, 0);
	CHECK(make_device(&m) == ALL && make(&m) == ALL);
	sweep(descriptors_from_the_start);
	CHECK(files(".segment") == 1 && files(".wake") == 1);
	CHECK(write_once(&m) == ALL);
	destroy(&m);
	leave_device(&m);
}

/* A queue pair for datagrams that is ready, and memory for one. */
static void make_ud(struct made *m)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };

	CHECK(make_device(m) == ALL);
	CHECK((m->pd = ibv_alloc_pd(m->context)));
	CHECK((m->cq = ibv_create_cq(m->context, DEPTH, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = m->cq;
	CHECK((m->qps[0] = ibv_create_qp(m->pd, &init)));
	CHECK(!ibv_modify_qp(m->qps[0], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(m->qps[0], &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(m->qps[0], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	m->memory[0] = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m->memory[0] != MAP_FAILED);
	CHECK((m->mrs[0] = ibv_reg_mr(m->pd, m->memory[0], LENGTH, ACCESS)));
}

static void wait_for_completion(struct made *m)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(m->cq, 1, &wc)))
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Sends a datagram to the queue pair whose number comes from `other`, when it comes. */
static void sends(int other)
{
	struct made m = { 0 };
	struct ibv_ah_attr ah_attr = { .port_num = 1 };
	struct ibv_port_attr port;
	uint32_t qpn;

	make_ud(&m);
	CHECK(write(other, &m.qps[0]->qp_num, 4) == 4 && read(other, &qpn, 4) == 4);
	CHECK(!ibv_query_port(m.context, 1, &port));
	ah_attr.dlid = port.lid;
	CHECK((m.ah = ibv_create_ah(m.pd, &ah_attr)));
	struct ibv_sge sge = { (uintptr_t)m.memory[0], 8, m.mrs[0]->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = m.ah, .remote_qpn = qpn, .remote_qkey = 1 },
	};
	memcpy(m.memory[0], "datagram", 8);
	CHECK(!ibv_post_send(m.qps[0], &wr, &bad));
	wait_for_completion(&m);
	CHECK(write(other, &qpn, 4) == 4);
	/* Until the receiver has it. */
	CHECK(read(other, &qpn, 4) == 0);
	destroy(&m);
	leave_device(&m);
}

/*
 * A process without descriptors for it cannot reach another one: a connection is refused, and what comes from there waits
 * until there are some.
 */
static void peers(void)
{
	struct made m = { 0 };
	struct ibv_port_attr port;
	struct ibv_recv_wr *bad, wr = { .num_sge = 1 };
	int both[2], status;
	uint32_t peer;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, both));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!close(both[0]));
		sends(both[1]);
		exit(0);
	}
	CHECK(!close(both[1]));
	make_ud(&m);
	CHECK(!ibv_query_port(m.context, 1, &port));
	CHECK((m.qps[1] = new_qp(m.pd, m.cq)));
	struct ibv_sge sge = { (uintptr_t)m.memory[0], LENGTH, m.mrs[0]->lkey };
	wr.sg_list = &sge;
	CHECK(!ibv_post_recv(m.qps[0], &wr, &bad));
	CHECK(read(both[0], &peer, 4) == 4);
	leave_descriptors(0);
	CHECK(connect_to(m.qps[1], peer, port.lid) == SHORT);
	CHECK(write(both[0], &m.qps[0]->qp_num, 4) == 4 && read(both[0], &peer, 4) == 4);
	/* It has been sent, and lies there. */
	struct ibv_wc wc;
	CHECK(!ibv_poll_cq(m.cq, 1, &wc));
	free_descriptors();
	wait_for_completion(&m);
	CHECK(!memcmp(m.memory[0] + 40, "datagram", 8));
	CHECK(connect_to(m.qps[1], peer, port.lid) == ALL);
	destroy(&m);
	leave_device(&m);
	CHECK(!close(both[0]) && waitpid(pid, &status, 0) == pid && !status);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (!strcmp(name, "descriptors"))
		descriptors();
	else if (!strcmp(name, "peers"))
		peers();
	else
		return 2;
	puts("ok");
	return 0;
}
