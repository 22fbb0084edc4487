/* SPDX-License-Identifier: Apache-2.0 */

/* jumps: a signal handler leaves pvm_recv and pvm_trecv by siglongjmp. No message is lost, and the
 * handler can run in no thread of the library. */

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include "pvm3.h"

static sigjmp_buf env;

static void on_alarm(int sig) { siglongjmp(env, 1); }

static int fail(const char *what, int n)
{
	printf("%s: %d\n", what, n);
	pvm_exit();
	return 1;
}

/* takers returns how many threads may get SIGALRM. */
static int takers(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	char path[300], line[300];
	int n = 0;

	while ((task = readdir(tasks)) != NULL) {
		FILE *status;

		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		if (task->d_name[0] == '.' || !(status = fopen(path, "r"))) /* or the thread has ended */
			continue;
		while (fgets(line, sizeof line, status))
			if (strncmp(line, "SigBlk:", 7) == 0 && !(strtoull(line + 7, NULL, 16) >> (SIGALRM - 1) & 1))
				n++;
		fclose(status);
	}
	closedir(tasks);
	return n;
}

int main(void)
{
	struct itimerval soon = {{0, 0}, {0, 3000}}, never = {{0, 0}, {0, 0}};
	struct timeval long_time = {1000, 0};
	volatile int i, jumps = 0;
	int me = pvm_mytid(), n;

	if (me < 0)
		return 1;
	signal(SIGALRM, on_alarm);
	for (i = 0; i < 60; i++) {
		if (sigsetjmp(env, 1) == 0) {
			setitimer(ITIMER_REAL, &soon, NULL);
			if (i % 2)
				pvm_trecv(-1, 7, &long_time);
			else
				pvm_recv(-1, 7);
			return fail("a receive returned", i);
		}
		jumps++;
		if (i % 3 == 0)
			continue; /* the next call of the library is a receive */
		if (pvm_nrecv(-1, 7) != 0)
			return fail("a message that nobody sent", i);
		pvm_initsend(PvmDataDefault);
		n = i;
		pvm_pkint(&n, 1, 1);
		if (pvm_send(me, 8) != 0 || pvm_recv(me, 8) <= 0)
			return fail("send and receive", i);
		pvm_upkint(&n, 1, 1);
		if (n != i)
			return fail("value", n);
	}
	/* A message for the receive that was left comes before the next call. */
	pvm_initsend(PvmDataDefault);
	n = 41;
	pvm_pkint(&n, 1, 1);
	pvm_send(me, 9);
	for (i = 0; i < 20; i++) {
		if (sigsetjmp(env, 1) == 0) {
			setitimer(ITIMER_REAL, &soon, NULL);
			pvm_recv(-1, 7);
			return fail("a receive returned", i);
		}
		jumps++;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	if (pvm_recv(-1, 9) <= 0)
		return fail("the message is lost", 9);
	pvm_upkint(&n, 1, 1);
	if ((i = takers()) != 1)
		return fail("threads that may get SIGALRM", i);
	printf("%d jumps, %d\n", jumps, n);
	pvm_exit();
	return 0;
}
