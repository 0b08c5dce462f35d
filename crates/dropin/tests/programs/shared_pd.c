/*
 * Objects of one process used in another: ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3). Each
 * case is named on the command line, and prints "ok".
 */
#include "shared.h"

/*
 * Traffic: an exporter, an importer, and a third process that talks to queue pairs of both.
 */
struct exported {
	uint32_t pd, shm, private;
	struct memory at_shm, at_private, at_heap, elsewhere;
	struct end third[2];
};

static void importer(int exporter)
{
	struct exported there;
	int fd = hear_fd(exporter), shm_fd = hear_fd(exporter);
	struct ibv_context *context = ibv_import_device(fd);
	struct ibv_pd *pd, *again;
	struct ibv_mr *shm, *own;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct end ends[2];
	struct memory mine, nowhere = { 0 }, theirs;
	char *at_shm = pages(LARGE, MAP_SHARED, shm_fd);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int i;

	CHECK(context);
	hear(exporter, &there, sizeof(there));
	pd = ibv_import_pd(context, there.pd);
	again = ibv_import_pd(context, there.pd);
	CHECK(pd && again && pd->handle == there.pd);
	shm = ibv_import_mr(pd, there.shm);
	CHECK(shm && !shm->addr && shm->length == LARGE && shm->lkey == there.at_shm.key);
	FAILS(ibv_import_mr(pd, there.elsewhere.key), ENOENT);
	cq = new_cq(context);
	own = registered(again, memory, LARGE, ACCESS);
	mine = memory_of(own);
	for (i = 0; i < 2; i++) {
		qp[i] = new_qp(pd, cq);
		CHECK(qp[i]);
		ends[i] = end_of(qp[i]);
	}
	say(exporter, ends, sizeof(ends));
	say(exporter, &mine, sizeof(mine));
	hear(exporter, &theirs, sizeof(theirs));
	for (i = 0; i < 2; i++)
		connect_to(qp[i], there.third[i]);
	meet(exporter);

	/* 1: SEND what lies in memory that both have mapped, under the exporter's address and key. */
	fill(at_shm, SMALL, 1);
	CHECK(!post(qp[0], IBV_WR_SEND, there.at_shm, SMALL, nowhere));
	/* 2: of a length that goes by reference, from the exporter's private memory. */
	CHECK(!post(qp[0], IBV_WR_SEND, there.at_private, LARGE, nowhere));
	/* 3: RECV into that memory, inline and by reference. */
	receive_into(qp[0], there.at_private, LARGE);
	receive_into(qp[0], (struct memory){ there.at_private.addr + SMALL, there.at_private.key }, LARGE / 2);
	meet(exporter);
	CHECK(!completion(cq));
	CHECK(!completion(cq));
	meet(exporter);
	meet(exporter);
	/* 4: READ and WRITE between the third process and that memory, and an atomic whose result goes there. */
	CHECK(!post(qp[0], IBV_WR_RDMA_READ, there.at_private, LARGE, theirs));
	CHECK(!post(qp[0], IBV_WR_ATOMIC_FETCH_AND_ADD, there.at_private, 8, theirs));
	CHECK(!post(qp[0], IBV_WR_RDMA_WRITE, (struct memory){ there.at_private.addr + 8, there.at_private.key },
		    SMALL, theirs));
	meet(exporter);
	/* 5: the third process goes through both processes' queue pairs to both processes' memory. */
	meet(exporter);
	CHECK(is_filled(memory, LARGE, 5));
	/* 6: a key of another domain of the exporter is none of this one. */
	CHECK(post(qp[1], IBV_WR_SEND, there.elsewhere, SMALL, nowhere) == IBV_WC_LOC_PROT_ERR);
	meet(exporter);

	/* The handles first, then what was made with them: pyverbs does so. */
	ibv_unimport_mr(shm);
	ibv_unimport_pd(again);
	ibv_unimport_pd(pd);
	FAILS(new_qp(pd, cq), EINVAL);
	meet(exporter);
	CHECK(!ibv_dereg_mr(own));
	for (i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qp[i]));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_close_device(context));
	/* It was handed over. */
	CHECK(fcntl(fd, F_GETFD) == -1);
	meet(exporter);
}

static void third(int exporter)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = new_cq(context);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct memory mine = memory_of(registered(pd, memory, LARGE, ACCESS)), nowhere = { 0 };
	struct memory importers, heap, elsewhere, result = { mine.addr + LARGE - 8, mine.key };
	char *expected = malloc(LARGE);
	struct ibv_qp *qp[3];
	struct end ends[3];
	int i;

	for (i = 0; i < 3; i++) {
		qp[i] = new_qp(pd, cq);
		CHECK(qp[i]);
		ends[i] = end_of(qp[i]);
	}
	say(exporter, ends, sizeof(ends));
	say(exporter, &mine, sizeof(mine));
	hear(exporter, ends, sizeof(ends));
	hear(exporter, &importers, sizeof(importers));
	hear(exporter, &heap, sizeof(heap));
	hear(exporter, &elsewhere, sizeof(elsewhere));
	for (i = 0; i < 3; i++)
		connect_to(qp[i], ends[i]);
	receive_into(qp[0], mine, LARGE);
	meet(exporter);

	CHECK(!completion(cq) && is_filled(memory, SMALL, 1));
	receive_into(qp[0], mine, LARGE);
	CHECK(!completion(cq) && is_filled(memory, LARGE, 2));
	meet(exporter);
	fill(memory, LARGE, 3);
	CHECK(!post(qp[0], IBV_WR_SEND, mine, SMALL, nowhere));
	CHECK(!post(qp[0], IBV_WR_SEND, (struct memory){ mine.addr + SMALL, mine.key }, LARGE / 2, nowhere));
	meet(exporter);
	fill(memory, LARGE, 4);
	fill(expected, LARGE, 4);
	meet(exporter);
	meet(exporter);
	/* It was READ, its first word changed by 5, and what lay behind that written over its beginning. */
	CHECK(!memcmp(memory, expected + 8, SMALL) && !memcmp(memory + SMALL, expected + SMALL, LARGE - SMALL));

	/* Through the importer's queue pair to the exporter's memory, and the other way round. */
	fill(memory, LARGE, 5);
	CHECK(!post(qp[0], IBV_WR_RDMA_WRITE, mine, LARGE - 8, heap));
	CHECK(!post(qp[2], IBV_WR_RDMA_WRITE, mine, LARGE, importers));
	CHECK(!post(qp[0], IBV_WR_ATOMIC_FETCH_AND_ADD, result, 8,
		    (struct memory){ heap.addr + LARGE - 8, heap.key }));
	CHECK(!post(qp[2], IBV_WR_ATOMIC_FETCH_AND_ADD, result, 8,
		    (struct memory){ heap.addr + LARGE - 8, heap.key }));
	CHECK(*(uint64_t *)result.addr == 5);
	memset(memory, 0, LARGE);
	CHECK(!post(qp[0], IBV_WR_RDMA_READ, mine, LARGE, importers));
	CHECK(is_filled(memory, LARGE, 5));
	CHECK(post(qp[0], IBV_WR_RDMA_WRITE, mine, SMALL, elsewhere) == IBV_WC_REM_ACCESS_ERR);
	meet(exporter);
	meet(exporter);
}

static void traffic(void)
{
	int to_importer, to_third, shm_fd = memfd_create("shm", 0);
	pid_t importing = start(importer, &to_importer), talking = start(third, &to_third);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_cq *cq = new_cq(context);
	struct ibv_qp *qp = new_qp(pd, cq);
	char *shm, *private = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	char *heap = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), *elsewhere = malloc(SMALL);
	struct end ends[3], of_third[3];
	struct memory thirds, importers;
	struct exported all = { .pd = pd->handle };
	struct ibv_mr *mrs[4];
	uint64_t word;
	int i;

	CHECK(!ftruncate(shm_fd, LARGE));
	shm = pages(LARGE, MAP_SHARED, shm_fd);
	mrs[0] = registered(pd, shm, LARGE, ACCESS);
	mrs[1] = registered(pd, private, LARGE, IBV_ACCESS_LOCAL_WRITE);
	mrs[2] = registered(pd, heap, LARGE, ACCESS);
	mrs[3] = registered(other, elsewhere, SMALL, ACCESS);
	all.shm = mrs[0]->handle;
	all.private = mrs[1]->handle;
	all.at_shm = memory_of(mrs[0]);
	all.at_private = memory_of(mrs[1]);
	all.at_heap = memory_of(mrs[2]);
	all.elsewhere = memory_of(mrs[3]);

	hear(to_third, of_third, sizeof(of_third));
	hear(to_third, &thirds, sizeof(thirds));
	memcpy(all.third, of_third, sizeof(all.third));
	say_fd(to_importer, context->cmd_fd);
	say_fd(to_importer, shm_fd);
	say(to_importer, &all, sizeof(all));
	hear(to_importer, ends, 2 * sizeof(*ends));
	hear(to_importer, &importers, sizeof(importers));
	say(to_importer, &thirds, sizeof(thirds));
	ends[2] = end_of(qp);
	say(to_third, ends, sizeof(ends));
	say(to_third, &importers, sizeof(importers));
	say(to_third, &all.at_heap, sizeof(all.at_heap));
	say(to_third, &all.elsewhere, sizeof(all.elsewhere));
	connect_to(qp, of_third[2]);
	fill(private, LARGE, 2);
	meet(to_third);
	meet(to_importer);

	/* 2 */
	meet(to_importer);
	meet(to_third);
	/* 3 */
	meet(to_third);
	meet(to_third);
	meet(to_importer);
	CHECK(is_filled(private, SMALL + LARGE / 2, 3));
	/* 4 */
	meet(to_importer);
	meet(to_importer);
	CHECK(is_filled(private, LARGE, 4));
	meet(to_third);
	/* 5 */
	meet(to_third);
	CHECK(is_filled(heap, LARGE - 8, 5));
	memcpy(&word, heap + LARGE - 8, 8);
	CHECK(word == 10);
	meet(to_importer);
	/* 6 */
	meet(to_importer);
	meet(to_third);

	/* What others have made of the domain keeps it. */
	CHECK(!ibv_destroy_qp(qp));
	for (i = 0; i < 4; i++)
		CHECK(!ibv_dereg_mr(mrs[i]));
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	meet(to_importer);
	meet(to_importer);
	CHECK(!ibv_dealloc_pd(pd));
	ends_well(importing);
	ends_well(talking);
}

/*
 * Who destroys what, and what is left to the others.
 */
static void destroyer(int exporter)
{
	struct ibv_context *context = ibv_import_device(hear_fd(exporter));
	struct ibv_mr *mr, *of_dm;
	struct ibv_pd *pd, *again;
	struct ibv_dm *dm;
	uint32_t handles[3];
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mw *mw;
	uint64_t at;
	char text[8];

	CHECK(context);
	hear(exporter, handles, sizeof(handles));
	hear(exporter, &at, sizeof(at));
	FAILS(ibv_import_pd(context, handles[0] + 77), ENOENT);
	FAILS(ibv_import_pd(context, 0), ENOENT);
	FAILS(ibv_import_pd(context, UINT32_MAX), ENOENT);
	FAILS(ibv_import_dm(context, handles[0] + 77), ENOENT);
	pd = ibv_import_pd(context, handles[0]);
	again = ibv_import_pd(context, handles[0]);
	CHECK(pd && again);

	/* A region with a window cannot be destroyed, nor changed by whom it does not belong to. */
	mr = ibv_import_mr(pd, handles[1]);
	CHECK(mr);
	REFUSED(ibv_dereg_mr(mr), EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(errno == EOPNOTSUPP);
	/* Nor can a window of this process be bound to it. */
	cq = new_cq(context);
	qp = new_qp(pd, cq);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(qp && mw);
	connect_to(qp, end_of(qp));
	CHECK(!ibv_bind_mw(qp, mw, &(struct ibv_mw_bind){
					   .send_flags = IBV_SEND_SIGNALED,
					   .bind_info = { mr, at, SMALL, IBV_ACCESS_REMOTE_READ } }));
	CHECK(completion(cq) == IBV_WC_MW_BIND_ERR);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_dealloc_mw(mw));
	CHECK(!ibv_destroy_cq(cq));
	meet(exporter);
	meet(exporter);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	CHECK(!ibv_dereg_mr(mr));

	/* Device memory. */
	dm = ibv_import_dm(context, handles[2]);
	CHECK(dm);
	CHECK(!ibv_memcpy_from_dm(text, dm, 0, 8) && !strcmp(text, "export"));
	of_dm = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(of_dm);
	CHECK(!ibv_memcpy_to_dm(dm, 8, "import\0", 8));
	REFUSED(ibv_free_dm(dm), EBUSY);
	meet(exporter);
	meet(exporter);
	CHECK(!ibv_dereg_mr(of_dm));
	CHECK(!ibv_free_dm(dm));
	FAILS(ibv_import_dm(context, handles[2]), ENOENT);

	/* The domain, by one of two handles. */
	CHECK(!ibv_dealloc_pd(pd));
	REFUSED(ibv_dealloc_pd(again), ENOENT);
	FAILS(ibv_reg_mr(again, text, 8, 0), EINVAL);
	FAILS(ibv_import_mr(again, handles[1]), EINVAL);
	FAILS(ibv_import_pd(context, handles[0]), ENOENT);
	ibv_unimport_pd(again);
	CHECK(!ibv_close_device(context));
	meet(exporter);
}

static void destruction(void)
{
	int other, fd = open("/dev/null", O_RDWR);
	pid_t child = start(destroyer, &other);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context), *own;
	struct ibv_cq *cq = new_cq(context);
	struct ibv_qp *qp = new_qp(pd, cq);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), text[8];
	struct ibv_mr *mr = registered(pd, memory, LARGE, ACCESS | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { mr, (uintptr_t)memory, LARGE, IBV_ACCESS_REMOTE_READ } };
	struct ibv_alloc_dm_attr size = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &size);
	uint32_t handles[3] = { pd->handle, mr->handle, dm->handle };

	FAILS(ibv_import_device(-1), EBADF);
	FAILS(ibv_import_device(fd), EINVAL);
	CHECK(!ibv_memcpy_to_dm(dm, 0, "export\0", 8));
	connect_to(qp, end_of(qp));
	CHECK(!ibv_bind_mw(qp, mw, &bind));
	CHECK(!completion(cq));
	say_fd(other, context->cmd_fd);
	say(other, handles, sizeof(handles));
	say(other, &(uint64_t){ (uintptr_t)memory }, sizeof(uint64_t));

	meet(other);
	CHECK(!ibv_dealloc_mw(mw));
	CHECK(!ibv_destroy_qp(qp));
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	meet(other);
	/* Device memory. */
	meet(other);
	CHECK(!ibv_memcpy_from_dm(text, dm, 8, 8) && !strcmp(text, "import"));
	REFUSED(ibv_free_dm(dm), EBUSY);
	meet(other);
	/* All of it is destroyed; what is left is to let go of the handles. */
	meet(other);
	REFUSED(ibv_dealloc_pd(pd), ENOENT);
	REFUSED(ibv_free_dm(dm), ENOENT);
	FAILS(new_qp(pd, cq), EINVAL);
	FAILS(ibv_reg_mr(pd, memory, LARGE, ACCESS), EINVAL);
	ibv_unimport_mr(mr);
	ibv_unimport_dm(dm);
	ibv_unimport_pd(pd);
	ends_well(child);

	/* Within the process all is as between two. */
	context = ibv_import_device(dup(context->cmd_fd));
	own = ibv_alloc_pd(context);
	pd = ibv_import_pd(context, own->handle);
	CHECK(pd);
	mr = registered(own, memory, LARGE, ACCESS);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	CHECK(!ibv_dereg_mr(ibv_import_mr(pd, mr->handle)));
	ibv_unimport_mr(mr);
	CHECK(!ibv_dealloc_pd(pd));
	REFUSED(ibv_dealloc_pd(own), ENOENT);
}

/*
 * The exporter is killed.
 */
static void victim(int importer)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct memory at = memory_of(registered(pd, memory, LARGE, ACCESS));

	say_fd(importer, context->cmd_fd);
	say(importer, &pd->handle, sizeof(pd->handle));
	say(importer, &at, sizeof(at));
	pause();
}

static void death(void)
{
	int other, fd, again;
	pid_t child = start(victim, &other);
	struct ibv_context *context;
	struct ibv_async_event event;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[3];
	struct memory theirs, mine;
	uint32_t handle;
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int i;

	fd = hear_fd(other);
	again = dup(fd);
	hear(other, &handle, sizeof(handle));
	hear(other, &theirs, sizeof(theirs));
	context = ibv_import_device(fd);
	CHECK(context);
	pd = ibv_import_pd(context, handle);
	CHECK(pd);
	cq = new_cq(context);
	mine = memory_of(registered(pd, memory, LARGE, ACCESS));
	for (i = 0; i < 3; i++) {
		qp[i] = new_qp(pd, cq);
		CHECK(qp[i]);
	}
	connect_to(qp[0], end_of(qp[1]));
	connect_to(qp[1], end_of(qp[0]));
	connect_to(qp[2], end_of(qp[2]));
	CHECK(!post(qp[0], IBV_WR_RDMA_WRITE, theirs, SMALL, mine));
	CHECK(!post(qp[0], IBV_WR_RDMA_WRITE, mine, SMALL, theirs));

	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	FAILS(ibv_import_device(again), ENODEV);
	FAILS(ibv_import_pd(context, handle), ENOENT);
	FAILS(ibv_reg_mr(pd, memory, LARGE, ACCESS), EINVAL);
	/* What this process has made goes on; what the other one had is gone. */
	CHECK(!post(qp[0], IBV_WR_RDMA_WRITE, mine, SMALL, mine));
	CHECK(post(qp[0], IBV_WR_RDMA_WRITE, theirs, SMALL, mine) == IBV_WC_LOC_PROT_ERR);
	CHECK(post(qp[2], IBV_WR_RDMA_WRITE, mine, SMALL, theirs) == IBV_WC_REM_ACCESS_ERR);
	REFUSED(ibv_dealloc_pd(pd), ENOENT);
	ibv_unimport_pd(pd);
	for (i = 0; i < 3; i++)
		CHECK(!ibv_destroy_qp(qp[i]));
	CHECK(!ibv_close_device(context));
}

/*
 * An importer that was forked, and has the descriptor by that.
 */
static struct ibv_context *parents;
static uint32_t parents_pd;
static struct memory parents_memory;
static char *shared;

static void heir(int parent)
{
	struct ibv_context *context = ibv_import_device(dup(parents->cmd_fd));
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char *memory = pages(LARGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	CHECK(context);
	pd = ibv_import_pd(context, parents_pd);
	CHECK(pd);
	cq = new_cq(context);
	qp = new_qp(pd, cq);
	CHECK(qp);
	connect_to(qp, end_of(qp));
	fill(shared, LARGE, 8);
	CHECK(!post(qp, IBV_WR_RDMA_WRITE, parents_memory, LARGE,
		    memory_of(registered(pd, memory, LARGE, ACCESS))));
	CHECK(is_filled(memory, LARGE, 8));
	/* A context of its own does not hand on its parent's. */
	CHECK(open_device()->cmd_fd != parents->cmd_fd);
	/* It ends without giving anything back. */
	meet(parent);
}

static void inheritance(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	pid_t child;
	int other;

	parents = open_device();
	pd = ibv_alloc_pd(parents);
	parents_pd = pd->handle;
	shared = pages(LARGE, MAP_SHARED | MAP_ANONYMOUS, -1);
	mr = registered(pd, shared, LARGE, ACCESS);
	parents_memory = memory_of(mr);
	child = start(heir, &other);
	meet(other);
	ends_well(child);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "traffic"))
		traffic();
	else if (!strcmp(argv[1], "destruction"))
		destruction();
	else if (!strcmp(argv[1], "death"))
		death();
	else if (!strcmp(argv[1], "inheritance"))
		inheritance();
	else
		CHECK(!"a case");
	puts("ok");
	return 0;
}
