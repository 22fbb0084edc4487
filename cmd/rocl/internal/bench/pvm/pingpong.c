// SPDX-License-Identifier: Apache-2.0

// What bench tpvm measures of PVM 3.4: round trips and bandwidth between two tasks with direct
// route. It is compiled and run by the bench where PVM is installed.
//
// usage: pingpong ABSOLUTE_PATH_OF_ITSELF SIZE COUNT LARGE LARGE_COUNT
// It prints the median of a round trip of SIZE bytes in microseconds, and the rate of messages of
// LARGE bytes in bytes a second, and halts PVM.

#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void check(int code, char *what) {
	if (code < 0) {
		pvm_perror(what);
		pvm_halt();
		exit(1);
	}
}

static void serve(int size, int count, int large, int largeCount) {
	char *p = malloc(large);
	int parent = pvm_parent();
	pvm_setopt(PvmRoute, PvmRouteDirect);
	for (int i = 0; i < count; i++) {
		check(pvm_recv(parent, 1), "recv");
		pvm_upkbyte(p, size, 1);
		pvm_initsend(PvmDataRaw);
		pvm_pkbyte(p, size, 1);
		check(pvm_send(parent, 2), "send");
	}
	for (int i = 0; i < largeCount; i++) {
		check(pvm_recv(parent, 1), "recv");
		pvm_upkbyte(p, large, 1);
	}
	pvm_initsend(PvmDataRaw);
	check(pvm_send(parent, 2), "send");
	pvm_exit();
}

int main(int argc, char **argv) {
	if (argc != 6) {
		fprintf(stderr, "usage: %s PATH SIZE COUNT LARGE LARGE_COUNT\n", argv[0]);
		return 2;
	}
	int size = atoi(argv[2]), count = atoi(argv[3]), large = atoi(argv[4]), largeCount = atoi(argv[5]), child;
	check(pvm_mytid(), "mytid");
	if (pvm_parent() >= 0) {
		serve(size, count, large, largeCount);
		return 0;
	}
	pvm_setopt(PvmRoute, PvmRouteDirect);
	if (pvm_spawn(argv[1], argv + 1, PvmTaskDefault, "", 1, &child) != 1) {
		check(child, "spawn");
	}
	char *p = malloc(large);
	double *took = malloc(count * sizeof *took), start;
	memset(p, 1, large);
	for (int i = 0; i < count; i++) {
		start = now();
		pvm_initsend(PvmDataRaw);
		pvm_pkbyte(p, size, 1);
		check(pvm_send(child, 1), "send");
		check(pvm_recv(child, 2), "recv");
		pvm_upkbyte(p, size, 1);
		took[i] = now() - start;
	}
	qsort(took, count, sizeof *took, compare);
	start = now();
	for (int i = 0; i < largeCount; i++) {
		memset(p, i, large);
		pvm_initsend(PvmDataInPlace);
		pvm_pkbyte(p, large, 1);
		check(pvm_send(child, 1), "send");
	}
	check(pvm_recv(child, 2), "recv");
	printf("%f %f\n", took[count / 2], (double)large * largeCount / (now() - start) * 1e6);
	fflush(stdout);
	pvm_halt();
	return 0;
}
