/* SPDX-License-Identifier: Apache-2.0 */

/* calls.c: what calls of PVM return, and print, in cases that no example program has. */

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, call)
#define SIGN(call) printf("%s %s\n", #call, (call) > 0 ? "> 0" : (call) == 0 ? "= 0" : "< 0")

static int match_tag_9(int bufid, int tid, int tag)
{
	int t;

	pvm_bufinfo(bufid, NULL, &t, NULL);
	return t == 9;
}

static void buffers(void)
{
	int b, len, tag, tid, i = 7;

	SIGN(pvm_initsend(PvmDataDefault));
	SHOW(pvm_mkbuf(9));
	SHOW(pvm_setsbuf(99));
	SHOW(pvm_freebuf(99));
	SHOW(pvm_freebuf(0));
	SHOW(pvm_pkint(&i, -1, 1));
	SHOW(pvm_pkint(&i, 0, 1));
	SHOW(pvm_pkint(&i, 1, 1));
	SHOW(pvm_pkstr("hello"));
	SHOW(pvm_send(pvm_mytid(), 7));
	b = pvm_recv(-1, -1);
	SHOW(pvm_bufinfo(b, &len, &tag, &tid));
	printf("len %d tag %d mine %d active %d\n", len, tag, tid == pvm_mytid(), pvm_getrbuf() == b);
	b = pvm_setsbuf(0);
	SHOW(pvm_pkint(&i, 1, 1));
	SHOW(pvm_getsbuf());
	SHOW(pvm_setsbuf(b));
	SHOW(pvm_setrbuf(0) > 0);
	SHOW(pvm_upkint(&i, 1, 1));
}

static void values(int encoding)
{
	char c[3] = {1, 2, 3}, s[20] = "";
	short h[2] = {-1, 300};
	int i[4] = {1, -2, 3, -4}, j[4] = {0, 0, 0, 0}, b, n;
	long l[2] = {5, 70000};
	float f[2] = {1.5, -2.25};
	double d[2] = {3.125, 1e100};
	unsigned short uh = 65000;
	unsigned int u = 4000000000u;

	int stride = encoding == PvmDataInPlace ? 1 : 2; /* PVM has neither strides nor strings in place */

	printf("encoding %d\n", encoding);
	pvm_initsend(encoding);
	pvm_pkbyte(c, 3, 1);
	pvm_pkshort(h, 2, 1);
	pvm_pkint(i, 2, stride);
	pvm_pklong(l, 2, 1);
	pvm_pkfloat(f, 2, 1);
	pvm_pkdouble(d, 2, 1);
	pvm_pkcplx(f, 1, 1);
	pvm_pkdcplx(d, 1, 1);
	pvm_pkushort(&uh, 1, 1);
	pvm_pkuint(&u, 1, 1);
	if (encoding != PvmDataInPlace)
		pvm_pkstr("end");
	pvm_send(pvm_mytid(), 1);
	b = pvm_recv(pvm_mytid(), 1);
	memset(c, 0, sizeof c), memset(h, 0, sizeof h), memset(l, 0, sizeof l), memset(f, 0, sizeof f), memset(d, 0, sizeof d);
	uh = 0, u = 0;
	pvm_bufinfo(b, &n, NULL, NULL);
	printf("%d bytes\n", n);
	pvm_upkbyte(c, 3, 1);
	pvm_upkshort(h, 2, 1);
	pvm_upkint(j, 2, 3);
	pvm_upklong(l, 2, 1);
	pvm_upkfloat(f, 2, 1);
	pvm_upkdouble(d, 2, 1);
	printf("%d %d %d, %d %d, %d %d %d %d, %ld %ld, %g %g, %g %g\n", c[0], c[1], c[2], h[0], h[1], j[0], j[1], j[2], j[3], l[0], l[1], f[0], f[1], d[0], d[1]);
	pvm_upkcplx(f, 1, 1);
	pvm_upkdcplx(d, 1, 1);
	pvm_upkushort(&uh, 1, 1);
	pvm_upkuint(&u, 1, 1);
	if (encoding != PvmDataInPlace)
		pvm_upkstr(s);
	printf("%g %g, %g %g, %u %u <%s>\n", f[0], f[1], d[0], d[1], uh, u, s);
	SHOW(pvm_upkint(j, 1, 1));
}

static void formats(void)
{
	int i = 5, a[3] = {1, 2, 3}, j = 0, b[3] = {0, 0, 0};
	short h = -7, h2 = 0;
	long l = 99, l2 = 0;
	double d = 2.5, d2 = 0;
	float f = 1.25, f2 = 0;
	char s[20] = "", c = 'x', c2 = 0;

	SIGN(pvm_packf("%+ %d %3d %hd %ld %lf %f %s %c", PvmDataRaw, i, a, h, l, d, f, "text", c));
	pvm_send(pvm_mytid(), 2);
	pvm_recv(-1, 2);
	SHOW(pvm_unpackf("%d %*d %hd %ld %lf %f %s %c", &j, 3, b, &h2, &l2, &d2, &f2, s, &c2));
	printf("%d %d %d %d %d %ld %g %g <%s> %c\n", j, b[0], b[1], b[2], h2, l2, d2, f2, s, c2);
	SHOW(pvm_packf("%q", 1));
}

static void messages(void)
{
	int i, n, tid, tag, me = pvm_mytid(), a[4] = {1, 2, 3, 4}, b[4] = {0, 0, 0, 0}, t[2];
	int (*old)(int, int, int);
	struct timeval brief = {0, 1000};

	SHOW(pvm_send(me, -1));
	SHOW(pvm_nrecv(-1, -1));
	SHOW(pvm_probe(-1, -1));
	SHOW(pvm_trecv(-1, -1, &brief));
	for (i = 8; i <= 10; i++) {
		pvm_initsend(PvmDataDefault);
		pvm_pkint(&i, 1, 1);
		pvm_send(me, i);
	}
	old = pvm_recvf(match_tag_9);
	SIGN(pvm_recv(-1, -1));
	pvm_recvf(old);
	pvm_upkint(&n, 1, 1);
	printf("recvf %d\n", n);
	SIGN(pvm_probe(-1, 8));
	SIGN(pvm_probe(-1, 8));
	SIGN(pvm_trecv(me, -1, &brief));
	pvm_upkint(&n, 1, 1);
	printf("first %d\n", n);
	SIGN(pvm_recv(-1, 10));
	SHOW(pvm_psend(me, 3, a, 4, PVM_INT));
	SHOW(pvm_precv(-1, 3, b, 4, PVM_INT, &tid, &tag, &n));
	printf("%d %d %d %d mine %d tag %d count %d\n", b[0], b[1], b[2], b[3], tid == me, tag, n);
	SHOW(pvm_psend(me, 3, a, 3, PVM_INT));
	SIGN(pvm_recv(-1, 3));
	SHOW(pvm_upkint(b, 3, 1));
	pvm_initsend(PvmDataRaw);
	pvm_pkint(a, 3, 1);
	pvm_send(me, 3);
	memset(b, 0, sizeof b);
	SHOW(pvm_precv(me, 3, b, 3, PVM_INT, NULL, NULL, &n));
	printf("%d %d %d %d count %d\n", b[0], b[1], b[2], b[3], n);
	t[0] = 0x3ffff;
	SHOW(pvm_notify(77, 1, 1, t));
	SHOW(pvm_spawn("nosuch", NULL, PvmTaskDefault, "", 2, t));
	printf("%d %d\n", t[0], t[1]);
	SHOW(pvm_spawn("hello_other", NULL, PvmTaskHost, "nohost", 1, t));
	printf("%d\n", t[0]);
	SHOW(pvm_spawn("hello_other", NULL, PvmTaskDefault, "", 0, t));
	SHOW(pvm_spawn("inherit2", NULL, PvmTaskHost, ".", 1, t));
	SHOW(pvm_notify(PvmTaskExit, 11, 1, t));
	SIGN(pvm_recv(t[0], 1));
	SIGN(pvm_recv(-1, 11));
	SHOW(pvm_upkint(&n, 1, 1));
	printf("notified of the child %d\n", n == t[0]);
}

static void others(void)
{
	struct pvmhostinfo *hosts;
	struct pvmtaskinfo *tasks;
	int n, archs, i, *tids;

	SHOW(pvm_parent());
	SHOW(pvm_siblings(&tids));
	printf("mine %d\n", tids[0] == pvm_mytid());
	SHOW(pvm_config(&n, &archs, &hosts));
	printf("%d %d %d %s %s %d %x\n", n, archs, hosts->hi_tid == pvm_tidtohost(pvm_mytid()), hosts->hi_name, hosts->hi_arch, hosts->hi_speed, hosts->hi_dsig);
	SHOW(pvm_tasks(pvm_mytid(), &n, &tasks));
	printf("%d %d %d %s\n", n, tasks->ti_tid == pvm_mytid(), tasks->ti_ptid, tasks->ti_a_out);
	SHOW(pvm_pstat(pvm_mytid()));
	SHOW(pvm_mstat(hosts->hi_name));
	SHOW(pvm_mstat("nohost"));
	for (i = 1; i <= 18; i++)
		printf("option %d: %d\n", i, pvm_getopt(i));
	SHOW(pvm_getopt(26));
	SHOW(pvm_setopt(PvmRoute, 9));
	SHOW(pvm_setopt(PvmRoute, PvmRouteDirect));
	SHOW(pvm_getopt(PvmRoute));
	SHOW(pvm_freecontext(5));
	SHOW(pvm_archcode("nosuch"));
	printf("%s\n", pvm_version());
	SHOW(pvm_joingroup(NULL));
	pvm_perror("text");
	SHOW(pvm_exit());
	SHOW(pvm_exit());
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_mytid();
	buffers();
	values(PvmDataDefault);
	values(PvmDataRaw);
	values(PvmDataInPlace);
	formats();
	messages();
	others();
	return 0;
}
