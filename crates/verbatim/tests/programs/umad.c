// A client of libibumad.so.3, which it opens by its name: libibumad's header is no prerequisite of the tests.
// Prints what the library leaves in a sent datagram, what it receives, and the names of codes.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 64, MAD = 256, CLASS_SA = 3, GET = 1, CLASS_PORT_INFO = 1, TRANSACTION_ID = 8 };

static void *library;

static void *function(const char *name)
{
	void *found = dlsym(library, name);
	if (!found) {
		printf("no %s\n", name);
		exit(1);
	}
	return found;
}

// A request of the subnet administration whose transaction identifier has both halves set.
static void request(uint8_t *mad)
{
	memset(mad, 0, MAD);
	mad[0] = 1;
	mad[1] = CLASS_SA;
	mad[2] = 2;
	mad[3] = GET;
	mad[17] = CLASS_PORT_INFO;
	for (int i = 0; i < 8; i++)
		mad[TRANSACTION_ID + i] = 0xa0 + i;
}

static void exchange(int fd, int agent, uint16_t lid, const char *what)
{
	int (*set_addr)(void *, int, int, int, int) = function("umad_set_addr");
	int (*sent)(int, int, void *, int, int, int) = function("umad_send");
	int (*receive)(int, void *, int *, int) = function("umad_recv");
	int (*status)(void *) = function("umad_status");
	uint8_t umad[HEADER + MAD] = {0}, copy[MAD];
	int length = MAD;

	request(umad + HEADER);
	memcpy(copy, umad + HEADER, MAD);
	set_addr(umad, lid, 1, 0, 0x80010000);
	printf("%s: sent %d", what, sent(fd, agent, umad, MAD, 100, 0));
	printf(", datagram %s", memcmp(copy, umad + HEADER, MAD) ? "changed" : "unchanged");
	memset(umad, 0, sizeof umad);
	printf(", agent %s", receive(fd, umad, &length, 5000) == agent ? "the sender" : "another");
	printf(", status %d, low half %s, upper half %s\n", status(umad),
	       memcmp(umad + HEADER + 12, copy + 12, 4) ? "changed" : "unchanged",
	       memcmp(umad + HEADER + 8, copy + 8, 4) ? "changed" : "unchanged");
}

static void print_names(void)
{
	const char *(*class)(uint8_t) = function("umad_class_str");
	const char *(*method)(uint8_t, uint8_t) = function("umad_method_str");
	const char *(*attribute)(uint8_t, uint16_t) = function("umad_attribute_str");
	const char *(*status)(uint16_t) = function("umad_common_mad_status_str");
	const char *(*sa_status)(uint16_t) = function("umad_sa_mad_status_str");

	printf("%s, %s, %s, %s\n", class(0x81), class(3), class(0x10), class(0x21));
	printf("%s, %s, %s\n", method(3, 0x12), method(1, 0x12), method(1, 1));
	printf("%s, %s, %s, %s\n", attribute(7, __builtin_bswap16(0x10)), attribute(3, __builtin_bswap16(0x31)),
	       attribute(1, __builtin_bswap16(0x18)), attribute(4, __builtin_bswap16(0x12)));
	printf("%s, %s\n", status(__builtin_bswap16(0xc)), sa_status(__builtin_bswap16(0x300)));
}

struct pair {
	char smi_name[20];
	uint32_t smi_preferred_port;
	char gsi_name[20];
	uint32_t gsi_preferred_port;
};

static void print_pair(const char *what, int result, const struct pair *pair)
{
	printf("%s: %d", what, result);
	if (result >= 0)
		printf(", %s %u, %s %u", pair->smi_name, pair->smi_preferred_port, pair->gsi_name,
		       pair->gsi_preferred_port);
	printf("\n");
}

// What libibmad of rdma-core 56 asks for before it opens a port.
static void print_pairs(void)
{
	int (*pairs)(struct pair *, size_t) = function("umad_get_smi_gsi_pairs");
	int (*by_name)(const char *, uint8_t, struct pair *, unsigned) = function("umad_get_smi_gsi_pair_by_ca_name");
	int (*open_smi_port)(const char *, int) = function("umad_open_smi_port");
	struct pair found[3];

	print_pair("pairs", pairs(found, 3), found);
	print_pair("no room", pairs(found, 0), found);
	print_pair("the first", by_name(NULL, 0, found, 1), found);
	print_pair("port 1", by_name("softnic0", 1, found, 0), found);
	print_pair("port 2", by_name("softnic0", 2, found, 0), found);
	print_pair("no device", by_name("softnic9", 1, found, 0), found);
	print_pair("no name", by_name("", 1, found, 0), found);
	printf("opened %d, no device %d\n", open_smi_port("softnic0", 1) > 0, open_smi_port("softnic9", 1));
}

// The same names and numbers, for the functions that say what there is.
static void print_lookups(void)
{
	static const char *const names[] = {NULL, "", "softnic0"};
	int (*guids)(const char *, uint64_t *, int) = function("umad_get_ca_portguids");
	int (*ca)(const char *, void *) = function("umad_get_ca");
	int (*port)(const char *, int, void *) = function("umad_get_port");
	uint64_t found[4];
	char structure[1024];

	for (int at = 0; at < 3; at++) {
		const char *name = names[at];

		printf("%s: guids %d, without room %d, CA %d, ports", name ? name : "NULL", guids(name, found, 4),
		       guids(name, NULL, 0), ca(name, structure));
		for (int number = -1; number < 3; number++)
			printf(" %d", port(name, number, structure));
		printf("\n");
	}
}

int main(void)
{
	library = dlopen("libibumad.so.3", RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	int (*open_port)(const char *, int) = function("umad_open_port");
	int (*register_agent)(int, int, int, uint8_t, long *) = function("umad_register");
	int fd = open_port(NULL, 0);
	print_pairs();
	print_lookups();
	if (fd < 0) {
		printf("no InfiniBand port: %d\n", fd);
		return 0;
	}
	int agent = register_agent(fd, CLASS_SA, 2, 1, NULL);
	exchange(fd, agent, 1, "to the subnet administration");
	exchange(fd, agent, 77, "to nobody");
	print_names();
	return 0;
}
