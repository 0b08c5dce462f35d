/* A server that sends back what it gets, from back to front, and its client: plain sockets, no RDMA. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 1000000

static char data[SIZE], back[SIZE];

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void send_all(int fd, const char *from)
{
	for (size_t done = 0; done < SIZE; ) {
		ssize_t n = send(fd, from + done, SIZE - done, 0);
		check(n > 0, "send");
		done += n;
	}
}

static void recv_all(int fd, char *to)
{
	for (size_t done = 0; done < SIZE; ) {
		ssize_t n = recv(fd, to + done, SIZE - done, 0);
		check(n > 0, "recv");
		done += n;
	}
}

static void reverse(char *to, const char *from)
{
	for (size_t i = 0; i < SIZE; i++)
		to[i] = from[SIZE - 1 - i];
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {
		.sin_family = AF_INET,
		.sin_port = htons(7000),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	check(argc == 2, "usage: reverse server|client");
	check(fd >= 0, "socket");
	if (!strcmp(argv[1], "server")) {
		check(!bind(fd, (struct sockaddr *) &addr, sizeof addr), "bind");
		check(!listen(fd, 1), "listen");
		int peer = accept(fd, NULL, NULL);
		check(peer >= 0, "accept");
		recv_all(peer, data);
		reverse(back, data);
		send_all(peer, back);
		close(peer);
	} else {
		check(!connect(fd, (struct sockaddr *) &addr, sizeof addr), "connect");
		for (size_t i = 0; i < SIZE; i++)
			data[i] = (char) (i * 7 + i / 251);
		send_all(fd, data);
		recv_all(fd, back);
		char *again = malloc(SIZE);
		check(again != NULL, "malloc");
		reverse(again, back);
		puts(memcmp(again, data, SIZE) ? "different" : "same");
	}
	close(fd);
	return 0;
}
