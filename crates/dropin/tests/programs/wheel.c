/*
 * A program with a libibverbs of its own, as Python wheels bring it: `linked` calls what the loader binds, `opened` asks its
 * own library for the function. Prints how many devices there are.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct ibv_device;
struct ibv_device **ibv_get_device_list(int *count);
struct ibv_context *ibv_open_device(struct ibv_device *device);

int main(int argc, char **argv)
{
	struct ibv_device **(*list)(int *) = ibv_get_device_list;
	struct ibv_device **devices;
	int count = 0;

	if (argc > 2 && !strcmp(argv[1], "opened")) {
		void *own = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);

		if (own)
			list = (struct ibv_device **(*)(int *)) dlsym(own, "ibv_get_device_list");
	}
	devices = list(&count);
	if (devices && devices[0])
		ibv_open_device(devices[0]);
	printf("%d\n", count);
	return 0;
}
