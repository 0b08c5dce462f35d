/*
 * A client that means to go on without RDMA if it cannot have it, and leaks on the way: where the memory region of a
 * channel cannot be made, `open_channel` forgets the completion queue that it has made just before.
 *
 * It is the example of docs/test-error-paths.md. With `fixed` as its argument, it does what it should.
 */
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct channel {
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[4096];
};

static bool open_channel(struct ibv_pd *pd, struct channel *channel, bool fixed)
{
	channel->cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	if (!channel->cq)
		return false;
	channel->mr = ibv_reg_mr(pd, channel->buffer, sizeof channel->buffer, IBV_ACCESS_LOCAL_WRITE);
	if (!channel->mr) {
		/* The bug: no ibv_destroy_cq here. */
		if (fixed)
			ibv_destroy_cq(channel->cq);
		return false;
	}
	return true;
}

static void close_channel(struct channel *channel)
{
	ibv_dereg_mr(channel->mr);
	ibv_destroy_cq(channel->cq);
}

int main(int argc, char **argv)
{
	static struct channel control, data;
	bool fixed = argc > 1 && !strcmp(argv[1], "fixed");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;

	if (!pd || !open_channel(pd, &control, fixed)) {
		puts("without RDMA");
	} else {
		if (open_channel(pd, &data, fixed)) {
			puts("with RDMA");
			close_channel(&data);
		} else {
			puts("with RDMA for control messages only");
		}
		close_channel(&control);
	}
	if (pd)
		ibv_dealloc_pd(pd);
	if (context)
		ibv_close_device(context);
	if (list)
		ibv_free_device_list(list);
	return 0;
}
