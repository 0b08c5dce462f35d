/* Runs a program as a restricted container does: the system calls that are named first fail with EPERM.
 * refuse SYSTEM-CALL... -- PROGRAM [ARGUMENT...] */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; long number; } calls[] = {
	{ "process_vm_readv", SYS_process_vm_readv },
	{ "process_vm_writev", SYS_process_vm_writev },
	{ "userfaultfd", SYS_userfaultfd },
	{ "pidfd_open", SYS_pidfd_open },
	{ "membarrier", SYS_membarrier },
};

static long number_of(const char *name)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!strcmp(calls[i].name, name))
			return calls[i].number;
	fprintf(stderr, "refuse: %s is not known\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	struct sock_filter filter[64];
	unsigned short n = 0;
	int arg = 1;

	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (; arg < argc && strcmp(argv[arg], "--") && n < 60; arg++) {
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(argv[arg]), 0, 1);
		filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (arg + 1 >= argc) {
		fputs("refuse SYSTEM-CALL... -- PROGRAM [ARGUMENT...]\n", stderr);
		return 2;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){ n, filter })) {
		perror("refuse: seccomp");
		return 2;
	}
	execvp(argv[arg + 1], argv + arg + 1);
	perror(argv[arg + 1]);
	return 127;
}
