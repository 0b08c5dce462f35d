/*
 * What the programs have in common in which processes share objects: they talk by a socket, and have queue pairs.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* A verb that returns its errno. */
#define REFUSED(call, error) CHECK((call) == (error))
/* One that returns NULL with errno. */
#define FAILS(call, error) CHECK((errno = 0, !(call)) && errno == (error))

enum { SMALL = 64, LARGE = 1 << 20 };
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC;

/* What one process tells another. */
struct end {
	uint32_t qpn, lid;
	union ibv_gid gid;
};
struct memory {
	uint64_t addr;
	uint32_t key;
};

static inline void say(int to, const void *what, size_t length)
{
	CHECK(send(to, what, length, MSG_NOSIGNAL) == (ssize_t)length);
}

static inline void hear(int from, void *what, size_t length)
{
	CHECK(recv(from, what, length, MSG_WAITALL) == (ssize_t)length);
}

/* Both sides have come here. */
static inline void meet(int other)
{
	char c = 0;

	say(other, &c, 1);
	hear(other, &c, 1);
}

static inline void say_fd(int to, int fd)
{
	char c = 0, room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &c, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(int));
	CHECK(sendmsg(to, &message, MSG_NOSIGNAL) == 1);
}

static inline int hear_fd(int from)
{
	char c, room[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &c, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof(room) };
	int fd;

	CHECK(recvmsg(from, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

/* Starts `role` in a child that has the other end of the socket. */
static inline pid_t start(void (*role)(int), int *socket)
{
	int ends[2];
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[0]);
		role(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	*socket = ends[0];
	return child;
}

static inline void ends_well(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_cq *new_cq(struct ibv_context *context)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	CHECK(cq);
	return cq;
}

static inline struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};

	return ibv_create_qp(pd, &init);
}

static inline struct end end_of(struct ibv_qp *qp)
{
	struct end end = { .qpn = qp->qp_num };
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(qp->context, 1, &port));
	CHECK(!ibv_query_gid(qp->context, 1, 0, &end.gid));
	end.lid = port.lid;
	return end;
}

static inline void connect_to(struct ibv_qp *qp, struct end peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer.qpn;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = peer.lid;
	attr.ah_attr.is_global = peer.lid == 0;
	attr.ah_attr.grh.dgid = peer.gid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC |
						IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline enum ibv_wc_status completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
	} while (n == 0);
	CHECK(n == 1);
	return wc.status;
}

/* Posts one work request of `length` bytes at `from`, and waits for its end. */
static inline enum ibv_wc_status post(struct ibv_qp *qp, int opcode, struct memory from, uint32_t length,
			       struct memory to)
{
	struct ibv_sge sge = { from.addr, length, from.key };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to.addr;
		wr.wr.atomic.rkey = to.key;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = to.addr;
		wr.wr.rdma.rkey = to.key;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
	return completion(qp->send_cq);
}

static inline void receive_into(struct ibv_qp *qp, struct memory to, uint32_t length)
{
	struct ibv_sge sge = { to.addr, length, to.key };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Bytes that follow from their place, to be told from others. */
static inline void fill(volatile char *at, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		at[i] = (char)(i * 7 + i / 251 + seed);
}

static inline int is_filled(volatile char *at, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		if (at[i] != (char)(i * 7 + i / 251 + seed))
			return 0;
	return 1;
}

static inline char *pages(size_t length, int flags, int fd)
{
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static inline struct ibv_mr *registered(struct ibv_pd *pd, void *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);

	CHECK(mr);
	return mr;
}

static inline struct memory memory_of(struct ibv_mr *mr)
{
	return (struct memory){ (uintptr_t)mr->addr, mr->lkey };
}
