/* SPDX-License-Identifier: Apache-2.0 */

/* notices.c: pvm_notify, and hosts that cannot be added or deleted. */

#include <stdio.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))

static int me, host;

/* show prints the messages that have come. */
static void show(void)
{
	struct timeval brief = {0, 300000};
	int b, len, tag, src, v;

	while ((b = pvm_trecv(-1, -1, &brief)) > 0) {
		pvm_bufinfo(b, &len, &tag, &src);
		printf("tag %d from pvmd %d:", tag, src == (int)0x80000000);
		for (; len > 0; len -= 4) {
			pvm_upkint(&v, 1, 1);
			printf(v == me ? " me" : v == host ? " host" : " %d", v);
		}
		printf("\n");
	}
}

static void tasks(void)
{
	int v[2], src, b, len;

	v[0] = me;
	v[1] = me + 1; /* that no task has */
	SHOW(pvm_notify(PvmTaskExit, 1, 2, v));
	show();
	SHOW(pvm_notify(PvmTaskExit, 1, 1, v));
	show();
	SHOW(pvm_notify(PvmTaskExit | PvmNotifyCancel, 2, 1, v)); /* another tag */
	show();
	SHOW(pvm_notify(PvmTaskExit | PvmNotifyCancel, 1, 1, v));
	show();
	SHOW(pvm_notify(PvmTaskExit | PvmNotifyCancel, 1, 1, v));
	show();
	SHOW(pvm_notify(PvmTaskExit | PvmNotifyCancel, 1, 1, v));
	show();
	SHOW(pvm_notify(PvmTaskExit, 3, 1, &host));

	/* The sender of such a message can be waited for. */
	SHOW(pvm_notify(PvmTaskExit, 4, 1, v + 1));
	b = pvm_recv(-1, 4);
	pvm_bufinfo(b, NULL, NULL, &src);
	pvm_initsend(PvmDataDefault);
	pvm_send(me, 4);
	SHOW(pvm_nrecv(src, 4));
	SHOW(pvm_notify(PvmTaskExit, 4, 1, v + 1));
	b = pvm_recv(src, 4);
	SHOW(pvm_bufinfo(b, &len, NULL, NULL));
	printf("%d\n", len);
	SHOW(pvm_recv(me, 4) > 0);

	/* A child that is there, and then is not. */
	SHOW(pvm_spawn("inherit2", NULL, PvmTaskHost, ".", 1, v));
	SHOW(pvm_notify(PvmTaskExit, 5, 1, v));
	SHOW(pvm_notify(PvmTaskExit, 5, 1, v));
	SHOW(pvm_notify(PvmTaskExit, 6, 1, v));
	SHOW(pvm_recv(v[0], 1) > 0);
	SHOW(pvm_recv(-1, 5) > 0);
	SHOW(pvm_recv(-1, 5) > 0);
	SHOW(pvm_recv(-1, 6) > 0);
	show();
}

static void hosts(void)
{
	int none = 0, far = 77 << 18;

	SHOW(pvm_notify(PvmHostDelete, 1, 1, &host));
	show();
	SHOW(pvm_notify(PvmHostDelete, 2, 1, &far));
	show();
	SHOW(pvm_notify(PvmHostDelete, 2, 1, &none));
	show();
	SHOW(pvm_notify(PvmHostDelete | PvmNotifyCancel, 1, 1, &host));
	show();
	SHOW(pvm_notify(PvmHostDelete | PvmNotifyCancel, 1, 1, &host));
	show();
	SHOW(pvm_notify(PvmHostAdd, 3, 1, NULL));
	SHOW(pvm_notify(PvmHostAdd | PvmNotifyCancel, 3, 1, NULL));
	SHOW(pvm_notify(PvmHostAdd | PvmNotifyCancel, 3, 1, NULL));
	SHOW(pvm_notify(PvmHostAdd, 3, -1, NULL));
	SHOW(pvm_notify(PvmHostAdd, 4, 2, NULL));
	SHOW(pvm_notify(PvmHostAdd, 4, 0, NULL));
	show();
}

static void changes(void)
{
	char *names[] = {"", "two words", "nohost.invalid"}, *own[1];
	struct pvmhostinfo *list;
	int infos[3] = {9, 9, 9};

	SHOW(pvm_addhosts(names, 0, infos));
	SHOW(pvm_addhosts(names, -1, infos));
	SHOW(pvm_addhosts(names, 2, infos));
	printf("%d %d %d\n", infos[0], infos[1], infos[2]);
	SHOW(pvm_delhosts(names, 0, infos));
	SHOW(pvm_delhosts(names, -1, infos));
	SHOW(pvm_delhosts(names + 2, 1, infos));
	printf("%d\n", infos[0]);
	SHOW(pvm_config(NULL, NULL, &list));
	own[0] = list->hi_name;
	SHOW(pvm_delhosts(own, 1, infos));
	printf("%d\n", infos[0]);
	SHOW(pvm_delhosts(own, 1, NULL));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	me = pvm_mytid();
	host = pvm_tidtohost(me);
	tasks();
	hosts();
	changes();
	SHOW(pvm_exit());
	return 0;
}
