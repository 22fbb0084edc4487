/* SPDX-License-Identifier: Apache-2.0 */

/* hosts.c: hosts that are added and deleted. The host "one" can be reached, "refused" cannot. */

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))

/* named returns the number of a host in the configuration, or 0. */
static int named(char *name)
{
	struct pvmhostinfo *list;
	int i, n;

	pvm_config(&n, NULL, &list);
	for (i = 0; i < n; i++)
		if (strcmp(list[i].hi_name, name) == 0)
			return list[i].hi_tid;
	return 0;
}

/* nothing_told prints what is told in a moment, and returns 1 if that is nothing. */
static int nothing_told(void)
{
	struct timeval brief = {0, 100000};
	int buf = pvm_trecv(-1, -1, &brief), bytes, tag, from, v[2] = {0, 0};

	if (buf == 0) {
		printf("nothing else is told\n");
		return 1;
	}
	pvm_bufinfo(buf, &bytes, &tag, &from);
	pvm_upkint(v, bytes > 4 ? 2 : 1, 1);
	printf("told: tag %d from %x, %d bytes, %x %x\n", tag, from, bytes, v[0], v[1]);
	return 0;
}

int main(void)
{
	char *names[] = {"one", "refused", "one", ""}, *again[] = {"one"}, *away[] = {"nohost", NULL, "one"};
	struct pvmhostinfo *list;
	int infos[4] = {9, 9, 9, 9}, me, one, n, v[2], child;
	struct timeval long_enough = {60, 0};

	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	me = pvm_mytid();
	SHOW(pvm_config(&n, NULL, &list));
	printf("%d host\n", n);
	away[1] = strdup(list[0].hi_name);
	SHOW(pvm_notify(PvmHostAdd, 1, -1, NULL));
	SHOW(pvm_addhosts(names, 4, infos));
	one = infos[0];
	printf("added %d, then %d %d %d\n", one > 0, infos[1], infos[2], infos[3]);
	SHOW(pvm_trecv(-1, 1, &long_enough) > 0);
	SHOW(pvm_upkint(v, 2, 1));
	printf("told of %d: %d\n", v[0], v[1] == one);
	SHOW(pvm_nrecv(-1, 1));
	SHOW(named("one") == one);
	SHOW(one != pvm_tidtohost(me));
	SHOW(pvm_mstat("one"));
	SHOW(pvm_addhosts(again, 1, infos));
	printf("%d\n", infos[0]);
	SHOW(pvm_hostsync(one, NULL, NULL));

	SHOW(pvm_spawn("hello_other", NULL, PvmTaskHost, "one", 1, &child));
	SHOW(pvm_tidtohost(child) == one);
	SHOW(pvm_trecv(child, 1, &long_enough) > 0);

	SHOW(pvm_notify(PvmHostDelete, 2, 1, &one));
	SHOW(pvm_notify(PvmHostDelete, 3, 1, &one));
	SHOW(pvm_nrecv(-1, 2));
	SHOW(pvm_delhosts(away, 3, infos));
	printf("%d %d %d\n", infos[0], infos[1], infos[2]);
	SHOW(pvm_trecv(-1, 2, &long_enough) > 0);
	SHOW(pvm_upkint(v, 1, 1));
	SHOW(v[0] == one);
	SHOW(pvm_trecv(-1, 3, &long_enough) > 0);
	SHOW(pvm_upkint(v, 1, 1));
	SHOW(v[0] == one);
	if (nothing_told() == 0)
		printf("one is %x, and this is %x\n", one, pvm_tidtohost(me));
	SHOW(named("one"));
	SHOW(pvm_mstat("one"));
	SHOW(pvm_notify(PvmHostDelete, 2, 1, &one)); /* at once */
	SHOW(pvm_trecv(-1, 2, &long_enough) > 0);
	SHOW(pvm_exit());
	return 0;
}
