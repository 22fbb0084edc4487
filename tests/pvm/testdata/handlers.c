/* SPDX-License-Identifier: Apache-2.0 */

/* handlers.c: message handlers: which messages they get, and what they find. */

#include <stdio.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))

static int before; /* the active receive buffer of the program */
static int calls;  /* of handlers that print */

static int print(char *who, int bufid)
{
	int len, tag, tid, v = -1;

	calls++;
	pvm_bufinfo(bufid, &len, &tag, &tid);
	pvm_upkint(&v, 1, 1);
	printf("%s: tag %d len %d mine %d value %d active %d send %d\n", who, tag, len, tid == pvm_mytid(), v, pvm_getrbuf() == bufid, pvm_getsbuf());
	return 0;
}

static int first(int bufid) { return print("first", bufid); }

static int second(int bufid) { return print("second", bufid); }

/* reply sends a message in the way of the manual. */
static int reply(int bufid)
{
	int v;

	pvm_upkint(&v, 1, 1);
	v++;
	pvm_setsbuf(pvm_mkbuf(PvmDataDefault));
	pvm_pkint(&v, 1, 1);
	pvm_send(pvm_mytid(), 20);
	pvm_freebuf(pvm_setsbuf(0));
	return 0;
}

static int ended(int bufid)
{
	int tid;

	calls++;
	pvm_upkint(&tid, 1, 1);
	printf("ended: a task %d\n", tid > 0);
	return 0;
}

static void send(int tag, int value)
{
	pvm_initsend(PvmDataDefault);
	pvm_pkint(&value, 1, 1);
	pvm_send(pvm_mytid(), tag);
}

/* turn receives, so that PVM calls handlers, until there have been more than n calls. */
static void turn(int n)
{
	struct timeval brief = {0, 10000};
	int received = 0;

	while (calls <= n && received == 0)
		received = pvm_trecv(-1, 99, &brief);
	SHOW(received);
}

/* pause_briefly lets handlers run that should not. */
static void pause_briefly(void)
{
	struct timeval brief = {0, 300000};

	SHOW(pvm_trecv(-1, 99, &brief));
}

int main(void)
{
	int me = pvm_mytid(), a, b, c, d, n, v, context, tids[1];

	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	a = pvm_addmhf(-1, 10, -1, first);
	SHOW(a >= 0);
	SHOW(pvm_addmhf(-1, 10, -1, second));
	SHOW(pvm_addmhf(me, 10, 0, second));
	SHOW(pvm_addmhf(-1, -1, -1, second));
	b = pvm_addmhf(me, 11, pvm_getcontext(), second);
	SHOW(b >= 0 && b != a);
	SHOW(pvm_addmhf(me, 11, pvm_getcontext(), first));
	SHOW(pvm_delmhf(-1));
	SHOW(pvm_delmhf(12345));

	send(10, 1);
	send(11, 2);
	send(12, 3);
	before = pvm_recv(-1, 12); /* the handlers run before it */
	SHOW(pvm_getrbuf() == before);
	SHOW(pvm_getsbuf() > 0);
	SHOW(pvm_upkint(&v, 1, 1));
	printf("%d\n", v);
	SHOW(pvm_nrecv(-1, 10)); /* a handled message is not received */
	SHOW(pvm_nrecv(-1, 11));

	context = pvm_setcontext(pvm_newcontext());
	n = calls;
	send(10, 4);
	turn(n); /* first: it takes any context */
	send(11, 5);
	SHOW(pvm_recv(-1, 11) > 0); /* not second: it takes one context */
	pvm_setcontext(context);

	c = pvm_addmhf(-1, 13, -1, reply);
	SHOW(c >= 0);
	send(13, 41);
	SHOW(pvm_recv(me, 20) > 0);
	pvm_upkint(&v, 1, 1);
	printf("%d\n", v);

	SHOW(pvm_delmhf(a));
	SHOW(pvm_delmhf(a));
	send(10, 6);
	SHOW(pvm_recv(-1, 10) > 0);
	d = pvm_addmhf(-1, 10, -1, second);
	SHOW(d == a);
	n = calls;
	send(10, 7);
	turn(n);

	SHOW(pvm_addmhf(-1, 14, -1, ended) >= 0);
	n = calls;
	SHOW(pvm_spawn("/bin/true", NULL, PvmTaskDefault, "", 1, tids));
	SHOW(pvm_notify(PvmTaskExit, 14, 1, tids));
	turn(n);
	pause_briefly();

	SHOW(pvm_exit());
	pvm_mytid();
	SHOW(pvm_delmhf(d)); /* handlers end with the task */
	send(10, 8);
	SHOW(pvm_recv(-1, 10) > 0);
	SHOW(pvm_exit());
	return 0;
}
