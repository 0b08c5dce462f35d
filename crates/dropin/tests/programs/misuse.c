/*
 * What a program must not do. Each case is named on the command line, and prints "ok" when the answer was the one of
 * the man page: an errno, or a completion with an error.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
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
/* One that returns NULL or -1 with errno. */
#define FAILS(call, error) CHECK((errno = 0, (call)) && errno == (error))

enum { LENGTH = 4096, DEPTH = 64 };
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC;

static struct ibv_device **list;
static struct ibv_context *context;
static struct ibv_port_attr port;
static struct ibv_pd *pd;

/* Two queue pairs of this process, and the memory of each. */
static struct ibv_cq *cq;
static struct ibv_qp *qps[2];
static char *memory[2];
static struct ibv_mr *mrs[2];

static struct ibv_qp *new_qp(struct ibv_cq *of)
{
	struct ibv_qp_init_attr init = {
		.send_cq = of,
		.recv_cq = of,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(pd, &init);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.dlid = port.lid;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
						IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
						IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void begin(int cqe)
{
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, cqe, NULL, NULL, 0)));
	for (int i = 0; i < 2; i++) {
		CHECK((qps[i] = new_qp(cq)));
		memory[i] = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory[i] != MAP_FAILED);
		memset(memory[i], 'a' + i, LENGTH);
		CHECK((mrs[i] = ibv_reg_mr(pd, memory[i], LENGTH, ACCESS)));
	}
	for (int i = 0; i < 2; i++)
		connect_to(qps[i], qps[1 - i]);
}

static int post_send(int from, enum ibv_wr_opcode opcode, int length)
{
	struct ibv_sge sge = { (uintptr_t)memory[from], length, mrs[from]->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory[1 - from];
		wr.wr.atomic.rkey = mrs[1 - from]->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory[1 - from];
		wr.wr.rdma.rkey = mrs[1 - from]->rkey;
	}
	return ibv_post_send(qps[from], &wr, &bad);
}

static int post_recv(int at, int length)
{
	struct ibv_sge sge = { (uintptr_t)memory[at], length, mrs[at]->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_recv(qps[at], &wr, &bad);
}

/* The next completion. The test's own watchdog ends a wait for one that never comes. */
static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1);
	return wc;
}

/* Everything still works between the two queue pairs. */
static void works(void)
{
	CHECK(!post_send(0, IBV_WR_RDMA_WRITE, 64));
	struct ibv_wc wc = next();
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(memory[0], memory[1], 64));
}

static void closed(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_ah_attr ah_attr = { .port_num = 1, .dlid = port.lid };
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_cq *event_cq;
	struct ibv_td *td;
	void *cq_context;

	CHECK(channel && srq && ah && other);
	CHECK(!ibv_destroy_srq(srq));
	REFUSED(ibv_destroy_srq(srq), EINVAL);
	REFUSED(ibv_query_srq(srq, &srq_init.attr), EINVAL);
	CHECK(!ibv_destroy_ah(ah));
	REFUSED(ibv_destroy_ah(ah), EINVAL);
	CHECK(!ibv_destroy_comp_channel(channel));
	REFUSED(ibv_destroy_comp_channel(channel), EINVAL);
	FAILS(ibv_get_cq_event(channel, &event_cq, &cq_context) == -1, EINVAL);
	CHECK(!ibv_dealloc_pd(other));
	REFUSED(ibv_dealloc_pd(other), EINVAL);
	FAILS(!ibv_reg_mr(other, memory[0], LENGTH, 0), EINVAL);
	FAILS(!ibv_create_ah(other, &ah_attr), EINVAL);
	/* A thread domain that was is none: the next one may have its address. */
	td = ibv_alloc_td(context, &(struct ibv_td_init_attr){ 0 });
	CHECK(td && !ibv_dealloc_td(td));
	FAILS(!ibv_alloc_parent_domain(context, &(struct ibv_parent_domain_init_attr){ .pd = pd, .td = td }), EINVAL);
	/* A handle of another kind. */
	REFUSED(ibv_destroy_qp((struct ibv_qp *)pd), EINVAL);
	REFUSED(ibv_dealloc_pd((struct ibv_pd *)cq), EINVAL);
	works();
	CHECK(!ibv_dereg_mr(mrs[0]));
	REFUSED(ibv_dereg_mr(mrs[0]), EINVAL);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_destroy_qp(qps[i]));
		REFUSED(ibv_destroy_qp(qps[i]), EINVAL);
		REFUSED(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE), EINVAL);
		REFUSED(ibv_query_qp(qps[i], &attr, IBV_QP_STATE, &init), EINVAL);
	}
	CHECK(!ibv_destroy_cq(cq));
	REFUSED(ibv_destroy_cq(cq), EINVAL);
	REFUSED(ibv_resize_cq(cq, 8), EINVAL);
	FAILS(!new_qp(cq), EINVAL);
	CHECK(!ibv_dereg_mr(mrs[1]));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	CHECK(ibv_close_device(context) != 0);
	FAILS(!ibv_alloc_pd(context), EINVAL);
}

static void nulls(void)
{
	struct ibv_device_attr attr;
	union ibv_gid gid;
	struct ibv_wc wc;

	REFUSED(ibv_query_device(context, NULL), EINVAL);
	REFUSED(ibv_query_device(NULL, &attr), EINVAL);
	FAILS(ibv_query_gid(context, 1, 0, NULL) == -1, EINVAL);
	FAILS(ibv_query_gid(NULL, 1, 0, &gid) == -1, EINVAL);
	FAILS(ibv_query_pkey(context, 1, 0, NULL) == -1, EINVAL);
	FAILS(ibv_get_async_event(context, NULL) == -1, EINVAL);
	FAILS(!ibv_alloc_pd(NULL), EINVAL);
	FAILS(!ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	FAILS(!ibv_create_qp(pd, NULL), EINVAL);
	FAILS(!ibv_create_srq(pd, NULL), EINVAL);
	FAILS(!ibv_create_ah(pd, NULL), EINVAL);
	REFUSED(ibv_modify_qp(qps[0], NULL, IBV_QP_STATE), EINVAL);
	REFUSED(ibv_dealloc_pd(NULL), EINVAL);
	REFUSED(ibv_destroy_cq(NULL), EINVAL);
	REFUSED(ibv_destroy_qp(NULL), EINVAL);
	REFUSED(ibv_destroy_ah(NULL), EINVAL);
	REFUSED(ibv_destroy_comp_channel(NULL), EINVAL);
	CHECK(ibv_poll_cq(cq, 0, &wc) == 0);
	CHECK(ibv_poll_cq(cq, -1, &wc) < 0);
	CHECK(ibv_attach_mcast(qps[0], NULL, 0) == EINVAL);
	works();
}

static void order(void)
{
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	works();
}

/* Work requests in memory that was freed and used again. */
static void garbage(void)
{
	struct ibv_send_wr *bad, wr;
	struct ibv_recv_wr *bad_recv, recv;

	for (int byte = 0xa5; byte < 0x100; byte += 0x2d) {
		memset(&wr, byte, sizeof(wr));
		wr.next = NULL;
		CHECK(ibv_post_send(qps[0], &wr, &bad) != 0 && bad == &wr);
		memset(&recv, byte, sizeof(recv));
		recv.next = NULL;
		CHECK(ibv_post_recv(qps[0], &recv, &bad_recv) != 0 && bad_recv == &recv);
	}
	works();
}

/* Many more completions than the queue was made for, which nobody polls: the queue is in error, and with it both queue
 * pairs, which complete there. */
static void overrun(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;
	int failed[2] = { 0, 0 };

	for (int i = 0; i < DEPTH; i++)
		CHECK(!post_send(0, IBV_WR_RDMA_WRITE, 8));
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	ibv_ack_async_event(&event);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_get_async_event(context, &event));
		CHECK(event.event_type == IBV_EVENT_QP_FATAL);
		failed[event.element.qp == qps[1]]++;
		ibv_ack_async_event(&event);
	}
	CHECK(failed[0] == 1 && failed[1] == 1);
	/* What there was room for is kept. */
	CHECK(next().status == IBV_WC_SUCCESS);
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!post_recv(1, LENGTH));
	CHECK(!ibv_poll_cq(cq, 1, &wc));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	CHECK(!ibv_destroy_cq(cq));
}

/* A child that inherits everything and cleans up behind itself. */
static void forked(void)
{
	works();
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct ibv_device_attr attr;
		CHECK(!ibv_query_device(context, &attr));
		for (int i = 0; i < 2; i++) {
			REFUSED(ibv_destroy_qp(qps[i]), EINVAL);
			REFUSED(ibv_dereg_mr(mrs[i]), EINVAL);
		}
		REFUSED(ibv_destroy_cq(cq), EINVAL);
		REFUSED(ibv_dealloc_pd(pd), EINVAL);
		ibv_close_device(context);
		/* What it makes itself is its own. */
		begin(DEPTH);
		works();
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	for (int i = 0; i < 100; i++)
		works();
	CHECK(!post_recv(1, LENGTH));
	CHECK(!post_send(0, IBV_WR_SEND, 16));
	CHECK(next().status == IBV_WC_SUCCESS && next().status == IBV_WC_SUCCESS);
}

/* Makes the queue pairs work again after an error. */
static void reconnect(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	for (int i = 0; i < 2; i++)
		CHECK(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE));
	for (int i = 0; i < 2; i++)
		connect_to(qps[i], qps[1 - i]);
}

static void fails_with(enum ibv_wr_opcode opcode, int length, enum ibv_wc_status status)
{
	CHECK(!post_send(0, opcode, length));
	CHECK(next().status == status);
	reconnect();
}

static void send_fails_with(int length, enum ibv_wc_status sent, enum ibv_wc_status received)
{
	CHECK(!post_recv(1, length));
	CHECK(!post_send(0, IBV_WR_SEND, length));
	for (int i = 0; i < 2 && (i == 0 || received != IBV_WC_SUCCESS); i++) {
		struct ibv_wc wc = next();
		CHECK(wc.status == (wc.wr_id == 1 ? sent : received));
	}
	reconnect();
}

/* Memory that is registered, and has been unmapped or protected since. */
static void gone(void)
{
	enum { PART = 1 << 20 };
	static const int LENGTHS[] = { 1, 2, 7, 8, 16, 24, 40, 64, 100, 1000, 10000, PART };
	struct ibv_mr *bad, *good;
	char *all;

	all = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(all != MAP_FAILED);
	CHECK((bad = ibv_reg_mr(pd, all, 2 * PART, ACCESS)));
	CHECK(!munmap(all + PART, PART));
	char *here = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(here != MAP_FAILED);
	CHECK((good = ibv_reg_mr(pd, here, PART, ACCESS)));
	for (int i = 0; i < (int)(sizeof(LENGTHS) / sizeof(*LENGTHS)); i++) {
		int length = LENGTHS[i];
		/* All of it is gone, and the second half. */
		char *places[] = { all + PART, all + PART - length / 2 };
		for (int place = 0; place < 2; place++) {
			memory[0] = places[place], mrs[0] = bad;
			memory[1] = here, mrs[1] = good;
			fails_with(IBV_WR_RDMA_WRITE, length, IBV_WC_LOC_PROT_ERR);
			fails_with(IBV_WR_RDMA_READ, length, IBV_WC_LOC_PROT_ERR);
			send_fails_with(length, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS);
			memory[0] = here, mrs[0] = good;
			memory[1] = places[place], mrs[1] = bad;
			fails_with(IBV_WR_RDMA_WRITE, length, IBV_WC_REM_ACCESS_ERR);
			fails_with(IBV_WR_RDMA_READ, length, IBV_WC_REM_ACCESS_ERR);
			send_fails_with(length, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
		}
	}
	memory[1] = all + PART;
	fails_with(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_REM_ACCESS_ERR);
	fails_with(IBV_WR_ATOMIC_CMP_AND_SWP, 8, IBV_WC_REM_ACCESS_ERR);
	CHECK(!mprotect(all, PART, PROT_READ));
	memory[1] = all;
	fails_with(IBV_WR_RDMA_WRITE, 8, IBV_WC_REM_ACCESS_ERR);
	fails_with(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_REM_ACCESS_ERR);
	send_fails_with(1000, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
	memory[0] = all, mrs[0] = bad;
	memory[1] = here, mrs[1] = good;
	works();
}

static char *nothing = (char *)64;

static void got_fault(int signal, siginfo_t *info, void *machine)
{
	_exit(signal == SIGSEGV && info->si_addr == nothing && machine ? 42 : 1);
}

static void got_signal(int signal)
{
	_exit(signal == SIGSEGV ? 42 : 1);
}

/* A program's own faults are its own: what it has asked for happens. */
static void faults(void)
{
	enum { DEFAULT, FAULT, SIGNAL, IGNORE, SENT };
	int status;

	for (int what = DEFAULT; what <= SENT; what++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			struct sigaction action = { .sa_sigaction = got_fault, .sa_flags = SA_SIGINFO };
			if (what == FAULT)
				CHECK(!sigaction(SIGSEGV, &action, NULL));
			else if (what == SIGNAL)
				signal(SIGSEGV, got_signal);
			else if (what == IGNORE)
				signal(SIGSEGV, SIG_IGN);
			begin(DEPTH);
			works();
			if (what == IGNORE) {
				raise(SIGSEGV);
				works();
				_exit(42);
			}
			if (what == SENT)
				kill(getpid(), SIGSEGV);
			else
				*(volatile char *)nothing = 1;
			_exit(2);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (what == DEFAULT || what == SENT)
			CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
		else
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	}
}

static void *posts(void *accepted)
{
	for (int i = 0; i < 20000; i++)
		*(int *)accepted += !post_send(0, IBV_WR_RDMA_WRITE, 8);
	return NULL;
}

/* Two threads post to one queue pair, and none locks. */
static void threads(void)
{
	pthread_t thread[2];
	int accepted[2] = { 0, 0 }, done = 0;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, posts, &accepted[i]));
	for (int i = 0; i < 2; i++) {
		while (pthread_tryjoin_np(thread[i], NULL))
			if (ibv_poll_cq(cq, 1, &wc) == 1) {
				CHECK(wc.status == IBV_WC_SUCCESS);
				done++;
			}
	}
	while (done < accepted[0] + accepted[1]) {
		CHECK(next().status == IBV_WC_SUCCESS);
		done++;
	}
	CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* Verbs of all kinds, in a thread that is to be cancelled: they are done, and leave no lock behind. */
static void *makes(void *canceled)
{
	enum { PART = 1 << 20 };
	struct ibv_device_attr_ex attr;

	if (canceled)
		CHECK(!pthread_cancel(pthread_self()));
	struct ibv_context *other = ibv_open_device(list[0]);
	CHECK(other && !ibv_query_device_ex(other, NULL, &attr) && !ibv_close_device(other));
	struct ibv_pd *of = ibv_alloc_pd(context);
	CHECK(of);
	/* Of two kinds: one is shared with peers at once. */
	char *part[] = { malloc(PART), mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = ibv_reg_mr(of, part[i], PART, ACCESS);
		CHECK(mr && !ibv_dereg_mr(mr));
	}
	CHECK(!ibv_dealloc_pd(of));
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
						.fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &xrcd_attr);
	CHECK(xrcd && !ibv_close_xrcd(xrcd));
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	CHECK(dm && !ibv_free_dm(dm));
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *own = ibv_create_cq(context, 8, NULL, channel, 0);
	CHECK(channel && own);
	struct ibv_qp *qp = new_qp(own);
	CHECK(qp);
	connect_to(qp, qp);
	CHECK(!ibv_req_notify_cq(own, 0));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(own) && !ibv_destroy_comp_channel(channel));
	works();
	CHECK(!munmap(part[1], PART));
	free(part[0]);
	pthread_testcancel();
	return NULL;
}

static struct ibv_comp_channel *events;

static void *waits_for_completion(void *unused)
{
	struct ibv_cq *of;
	void *cq_context;

	CHECK(!ibv_get_cq_event(events, &of, &cq_context));
	ibv_ack_cq_events(of, 1);
	return unused;
}

static void *waits_for_async(void *unused)
{
	struct ibv_async_event event;

	CHECK(!ibv_get_async_event(context, &event));
	return unused;
}

/* Threads that are cancelled: within verbs nothing happens, waiting for an event ends. */
static void canceled(void)
{
	void *(*const wait[])(void *) = { waits_for_completion, waits_for_async };
	pthread_t thread;
	void *ended;

	for (int i = 0; i < 10; i++) {
		CHECK(!pthread_create(&thread, NULL, makes, &port) && !pthread_join(thread, &ended));
		CHECK(ended == PTHREAD_CANCELED);
	}
	makes(NULL);
	CHECK((events = ibv_create_comp_channel(context)));
	struct ibv_cq *reporting = ibv_create_cq(context, 8, NULL, events, 0);
	CHECK(reporting);
	for (int i = 0; i < 20; i++) {
		/* Before it waits, or while it does: two at a time, who are in each other's way. */
		pthread_t two[2];
		for (int j = 0; j < 2; j++)
			CHECK(!pthread_create(&two[j], NULL, wait[i % 2], NULL));
		if (i % 4 < 2)
			usleep(10000);
		for (int j = 0; j < 2; j++)
			CHECK(!pthread_cancel(two[j]) && !pthread_join(two[j], &ended) && ended == PTHREAD_CANCELED);
	}
	/* What is reported afterwards still comes. */
	struct ibv_qp *qp = new_qp(reporting);
	CHECK(qp);
	connect_to(qp, qp);
	CHECK(!ibv_req_notify_cq(reporting, 0));
	CHECK(!pthread_create(&thread, NULL, waits_for_completion, NULL));
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_post_send(qp, &wr, &bad));
	CHECK(!pthread_join(thread, &ended) && !ended);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(reporting) && !ibv_destroy_comp_channel(events));
	works();
}

static void say(const char *file, const char *format, unsigned int id)
{
	FILE *to = fopen(file, "w");

	CHECK(to && fprintf(to, format, id, id) > 0 && !fclose(to));
}

/* A file system of its own under the fabric's folder, which is full when the queue pairs have been made. */
static void small_shared_memory(void)
{
	char *folder = strdup(getenv("VERBATIM_FABRIC_DIR"));
	uid_t uid = getuid();
	gid_t gid = getgid();

	CHECK(!unshare(CLONE_NEWUSER | CLONE_NEWNS));
	say("/proc/self/setgroups", "deny", 0);
	say("/proc/self/uid_map", "%u %u 1", uid);
	say("/proc/self/gid_map", "%u %u 1", gid);
	CHECK(!mount("tmpfs", dirname(folder), "tmpfs", 0, "size=4m,mode=700"));
	free(folder);
}

/* A file that leaves no room beside it. */
static int fill_up(void)
{
	char name[4096], page[4096] = "";

	snprintf(name, sizeof(name), "%s/../filler", getenv("VERBATIM_FABRIC_DIR"));
	int filler = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(filler >= 0 && !unlink(name));
	while (write(filler, page, sizeof(page)) > 0)
		;
	CHECK(errno == ENOSPC);
	return filler;
}

/* Keys, handles and numbers that nobody has, and that could lie anywhere in tables of which most was never used. */
static void nobodys(void)
{
	struct ibv_xrcd_init_attr xrcd_init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };

	/* What this thread needs for accesses it has from now on. */
	works();
	int filler = fill_up();
	for (uint32_t i = 1; i < 1000; i++) {
		uint32_t number = i * 2654435761u;
		FAILS(!ibv_import_mr(pd, number), ENOENT);
		FAILS(!ibv_import_pd(context, number >> 1), ENOENT);
		FAILS(!ibv_import_dm(context, number >> 1), ENOENT);
	}
	for (int i = 0; i < 8; i++) {
		struct ibv_mr *own = mrs[0], lost = { .lkey = own->lkey + (i + 1) * 0x9e3779 };
		/* By the L_Key, then by the R_Key. */
		if (i % 2)
			mrs[0] = &lost;
		else
			mrs[1]->rkey += (i + 1) * 0x9e3779;
		CHECK(!post_send(0, IBV_WR_RDMA_WRITE, 64));
		CHECK(next().status == (i % 2 ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR));
		mrs[0] = own;
		mrs[1]->rkey = mrs[1]->lkey;
		reconnect();
	}
	for (uint32_t i = 0; i < 1 << 14; i += 77) {
		CHECK(!ibv_modify_qp(qps[0], &(struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE));
		CHECK(!ibv_modify_qp(qps[0], &attr,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		struct ibv_qp_attr rtr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_1024,
			.dest_qp_num = (qps[1]->qp_num & ~0x3fff) | i,
			.ah_attr = { .port_num = 1, .dlid = port.lid },
		};
		int error = ibv_modify_qp(qps[0], &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
								IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
								IBV_QP_MIN_RNR_TIMER);
		CHECK(!error || error == ENOMEM);
	}
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &xrcd_init);
	struct ibv_srq_init_attr_ex srq_init = {
		.attr = { .max_wr = 1, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
		.cq = cq,
	};
	CHECK(xrcd);
	FAILS(!ibv_create_srq_ex(context, &srq_init), ENOMEM);
	CHECK(!ibv_close_xrcd(xrcd));
	reconnect();
	works();
	CHECK(!close(filler));
}

static void full(void)
{
	int filler = fill_up();
	struct ibv_mr *mr;

	do
		mr = ibv_reg_mr(pd, memory[0], LENGTH, ACCESS);
	while (mr);
	CHECK(errno == ENOMEM);
	/* The first access of this thread, which needs a place there. */
	CHECK(!post_send(0, IBV_WR_RDMA_WRITE, 64));
	CHECK(next().status != IBV_WC_SUCCESS);
	CHECK(!ftruncate(filler, 0));
	reconnect();
	works();
	CHECK(!close(filler));
}

static void many(void)
{
	enum { MANY = 10000 };
	static struct ibv_qp *all[MANY];

	for (int i = 0; i < MANY; i++)
		CHECK((all[i] = new_qp(cq)));
	works();
	for (int i = 0; i < MANY; i++)
		CHECK(!ibv_destroy_qp(all[i]));
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (!strcmp(name, "faults")) {
		faults();
		puts("ok");
		return 0;
	}
	if (!strcmp(name, "full") || !strcmp(name, "nobodys"))
		small_shared_memory();
	begin(strcmp(name, "overrun") ? 4 * DEPTH : 1);
	if (!strcmp(name, "closed"))
		closed();
	else if (!strcmp(name, "nulls"))
		nulls();
	else if (!strcmp(name, "order"))
		order();
	else if (!strcmp(name, "garbage"))
		garbage();
	else if (!strcmp(name, "overrun"))
		overrun();
	else if (!strcmp(name, "gone"))
		gone();
	else if (!strcmp(name, "forked"))
		forked();
	else if (!strcmp(name, "threads"))
		threads();
	else if (!strcmp(name, "canceled"))
		canceled();
	else if (!strcmp(name, "full"))
		full();
	else if (!strcmp(name, "nobodys"))
		nobodys();
	else if (!strcmp(name, "many"))
		many();
	else
		return 2;
	puts("ok");
	return 0;
}
