/* SPDX-License-Identifier: Apache-2.0 */

/* codes.c: what calls return for parameters that make no sense, and for what is not there. */

#include <stdio.h>
#include <sys/time.h>
#include <sys/types.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))
#define SIGN(call) printf("%s %s\n", #call, (call) > 0 ? "> 0" : (call) == 0 ? "= 0" : "< 0")

static char *nobody = "nobody's group"; /* that no task has ever joined */

static void groups(void)
{
	int me = pvm_mytid(), other = me + 1, v[2] = {1, 2}, r[2];

	SHOW(pvm_joingroup(""));
	SHOW(pvm_lvgroup(NULL));
	SHOW(pvm_lvgroup(""));
	SHOW(pvm_gsize(NULL));
	SHOW(pvm_gsize(""));
	SHOW(pvm_getinst(NULL, me));
	SHOW(pvm_gettid(NULL, 0));
	SHOW(pvm_barrier(NULL, 1));
	SHOW(pvm_bcast(NULL, 1));
	SHOW(pvm_freezegroup(NULL, 1));
	SHOW(pvm_gather(r, v, 1, PVM_INT, 1, NULL, 0));
	SHOW(pvm_scatter(r, v, 1, PVM_INT, 1, NULL, 0));
	SHOW(pvm_reduce(PvmSum, v, 1, PVM_INT, 1, NULL, 0));

	SHOW(pvm_gsize(nobody));
	SHOW(pvm_lvgroup(nobody));
	SHOW(pvm_getinst(nobody, me));
	SHOW(pvm_gettid(nobody, 0));
	SHOW(pvm_barrier(nobody, 1));
	SHOW(pvm_freezegroup(nobody, 1));
	pvm_initsend(PvmDataDefault);
	SHOW(pvm_bcast(nobody, 1));
	SHOW(pvm_gather(r, v, 1, PVM_INT, 1, nobody, 0));
	SHOW(pvm_scatter(r, v, 1, PVM_INT, 1, nobody, 0));
	SHOW(pvm_reduce(PvmSum, v, 1, PVM_INT, 1, nobody, 0));

	SHOW(pvm_joingroup("codes"));
	SHOW(pvm_joingroup("codes"));
	SHOW(pvm_gsize("codes"));
	SHOW(pvm_getinst("codes", me));
	SHOW(pvm_getinst("codes", other));
	SHOW(pvm_gettid("codes", 0) == me);
	SHOW(pvm_gettid("codes", 1));
	SHOW(pvm_gettid("codes", -1));
	SHOW(pvm_barrier("codes", 1));
	SHOW(pvm_barrier("codes", -1));
	SHOW(pvm_gather(r, v, 1, 77, 1, "codes", 0));
	SHOW(pvm_scatter(r, v, 1, 77, 1, "codes", 0));
	SHOW(pvm_reduce(PvmSum, v, 1, 77, 1, "codes", 0));
	SHOW(pvm_gather(r, v, 2, PVM_INT, 1, "codes", 0));
	SHOW(pvm_scatter(r, v, 2, PVM_INT, 1, "codes", 0));
	SHOW(pvm_reduce(PvmSum, v, 2, PVM_INT, 1, "codes", 0));
	printf("%d %d\n", r[0], r[1]);
	SHOW(pvm_lvgroup("codes"));
	SHOW(pvm_lvgroup("codes"));
	SHOW(pvm_gsize("codes"));
	SHOW(pvm_getinst("codes", me));
	SHOW(pvm_gettid("codes", 0));
	SHOW(pvm_barrier("codes", 1));
	SHOW(pvm_bcast("codes", 1));
	SHOW(pvm_joingroup("frozen"));
	SHOW(pvm_freezegroup("frozen", 1) >= 0);
	SHOW(pvm_gsize("frozen"));
	SHOW(pvm_getinst("frozen", me));
	SHOW(pvm_lvgroup("frozen"));
}

static void tasks(void)
{
	int me = pvm_mytid(), dead = me + 1, n, v = 0;
	struct pvmtaskinfo *list;
	struct timeval clock, delta;

	SHOW(pvm_pstat(me));
	SHOW(pvm_pstat(dead));
	SHOW(pvm_pstat(0));
	SHOW(pvm_pstat(-1));
	SHOW(pvm_pstat(-5));
	SHOW(pvm_pstat(pvm_tidtohost(me)));
	SHOW(pvm_mstat("nohost"));
	SHOW(pvm_mstat(""));
	SHOW(pvm_tasks(dead, &n, &list));
	SHOW(pvm_tasks(-1, &n, &list));
	SHOW(pvm_tasks(77 << 18, &n, &list));
	SHOW(pvm_kill(0));
	SHOW(pvm_kill(-1));
	SHOW(pvm_kill(dead));
	SHOW(pvm_sendsig(0, 2));
	SHOW(pvm_sendsig(-1, 2));
	SHOW(pvm_sendsig(dead, 2));
	SHOW(pvm_sendsig(me, 0));
	SHOW(pvm_hostsync(pvm_tidtohost(me), &clock, &delta));
	SHOW(clock.tv_sec > 1000000000 && (delta.tv_sec == 0 || delta.tv_sec == -1));
	SHOW(pvm_hostsync(pvm_tidtohost(me), NULL, NULL));
	SHOW(pvm_hostsync(77 << 18, &clock, &delta));
	SHOW(pvm_hostsync(-1, &clock, &delta));
	SHOW(pvm_notify(PvmTaskExit, 1, 0, &v));
	SHOW(pvm_notify(PvmTaskExit, 1, 1, &v));
	SHOW(pvm_notify(PvmTaskExit, -1, 1, &me));
	SHOW(pvm_notify(0, 1, 1, &me));
	SHOW(pvm_notify(PvmHostDelete, 1, 0, &me));
	SHOW(pvm_notify(PvmHostDelete, 1, 1, &v));
	SHOW(pvm_archcode("LINUX64"));
	SHOW(pvm_export(""));
	SHOW(pvm_unexport("NOT_EXPORTED"));
	SHOW(pvm_spawn("hello_other", NULL, 0, "", -1, &v));
	SHOW(pvm_spawn("hello_other", NULL, PvmTaskArch, "NOARCH", 1, &v));
	printf("%d\n", v);
	SHOW(pvm_spawn("hello_other", NULL, PvmTaskHost | PvmHostCompl, ".", 1, &v));
	printf("%d\n", v);
	SHOW(pvm_spawn("/no/such/file", NULL, 0, "", 1, &v));
	printf("%d\n", v);
}

static void messages(void)
{
	int me = pvm_mytid(), dead = me + 1, v = 1, w, to[2] = {0, 0};

	SHOW(pvm_setsbuf(0) >= 0);
	SHOW(pvm_pkint(&v, 1, 1));
	SHOW(pvm_pkstr("x"));
	SHOW(pvm_send(me, 1));
	SHOW(pvm_mcast(&me, 1, 1));
	SHOW(pvm_setrbuf(0) >= 0);
	SHOW(pvm_upkint(&v, 1, 1));
	SHOW(pvm_upkmesg());
	SHOW(pvm_initsend(-1));
	SHOW(pvm_initsend(77));
	SIGN(pvm_initsend(PvmDataDefault));
	SHOW(pvm_pkint(NULL, 0, 1));
	SHOW(pvm_pkmesg(99));
	SHOW(pvm_pkmesg(0));
	SHOW(pvm_pkmesgbody(99));
	SHOW(pvm_pkmesgbody(0));
	SHOW(pvm_bufinfo(0, NULL, NULL, NULL));
	SHOW(pvm_bufinfo(-1, NULL, NULL, NULL));
	SHOW(pvm_bufinfo(99, NULL, NULL, NULL));
	SHOW(pvm_send(0, 1));
	SHOW(pvm_send(-1, 1));
	SHOW(pvm_send(dead, 1));
	SHOW(pvm_send(me, -1));
	SHOW(pvm_mcast(&me, 0, 1));
	SHOW(pvm_mcast(&me, -1, 1));
	SHOW(pvm_mcast(&me, 1, -1));
	SHOW(pvm_mcast(&me, 1, 1));
	SHOW(pvm_mcast(&dead, 1, 1));
	SHOW(pvm_mcast(to, 2, 1));
	SHOW(pvm_nrecv(dead, 1));
	SHOW(pvm_probe(dead, 1));
	SHOW(pvm_psend(me, -1, &v, 1, PVM_INT));
	SHOW(pvm_psend(0, 1, &v, 1, PVM_INT));
	SHOW(pvm_psend(me, 1, &v, 1, 77));
	SHOW(pvm_psend(dead, 1, &v, 1, PVM_INT));
	SHOW(pvm_precv(-1, 1, &w, 1, 77, NULL, NULL, NULL));
	SHOW(pvm_packf("%*", 1));
	SHOW(pvm_packf(""));
	SHOW(pvm_unpackf("%d", &v));
}

static void others(void)
{
	int i, v = 0, b, c;
	struct pvmmboxinfo *classes;

	SHOW(pvm_setcontext(0));
	SHOW(pvm_freecontext(123456));
	c = pvm_newcontext();
	SHOW(c > 0);
	SHOW(pvm_setcontext(c));
	SHOW(pvm_freecontext(c));
	SHOW(pvm_getcontext() == c);
	SHOW(pvm_freecontext(c));
	SHOW(pvm_setcontext(0) == c);
	SHOW(pvm_getopt(0));
	SHOW(pvm_getopt(-1));
	SHOW(pvm_getopt(77));
	SHOW(pvm_setopt(0, 1));
	SHOW(pvm_setopt(77, 1));
	SHOW(pvm_setopt(PvmRoute, 0));
	SHOW(pvm_setopt(PvmDebugMask, 0));
	SHOW(pvm_setopt(PvmFragSize, 1));
	SHOW(pvm_setopt(PvmFragSize, 2000000));
	SHOW(pvm_setopt(PvmFragSize, 4096) == 4080);
	SHOW(pvm_setopt(PvmFragSize, 4080) == 4096);
	SHOW(pvm_setopt(PvmResvTids, 2));
	SHOW(pvm_setopt(PvmResvTids, 0));
	SHOW(pvm_setopt(PvmShowTids, 0));
	SHOW(pvm_setopt(PvmShowTids, 1));
	b = pvm_mkbuf(PvmDataDefault);
	SHOW(pvm_putinfo(NULL, b, 0));
	SHOW(pvm_putinfo("", b, 0));
	SHOW(pvm_recvinfo(NULL, 0, 0));
	SHOW(pvm_recvinfo("codes entry", 0, 0));
	SHOW(pvm_recvinfo("codes entry", -1, 0));
	SHOW(pvm_delinfo(NULL, 0, 0));
	SHOW(pvm_delinfo("codes entry", 0, 0));
	SHOW(pvm_delinfo("codes entry", -1, 0));
	SHOW(pvm_putinfo("codes entry", b, 0));
	SHOW(pvm_putinfo("codes entry", b, 0));
	SHOW(pvm_recvinfo("codes entry", 1, 0));
	SIGN(pvm_recvinfo("codes entry", 0, 0));
	SHOW(pvm_delinfo("codes entry", 0, 0));
	SHOW(pvm_getmboxinfo("codes*", &i, &classes));
	printf("%d\n", i);
	SHOW(pvm_insert(NULL, 0, 1));
	SHOW(pvm_insert("codes entry", -2, 1));
	SHOW(pvm_insert("codes entry", 3, 1));
	SHOW(pvm_insert("codes entry", 3, 1));
	SHOW(pvm_lookup("codes entry", 4, &v));
	SHOW(pvm_lookup("codes entry", -2, &v));
	SHOW(pvm_lookup("codes entry", -1, &v));
	SHOW(pvm_delete("codes entry", 4));
	SHOW(pvm_delete("codes entry", -1));
	SHOW(pvm_delete("codes entry", 3));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	others();
	tasks();
	messages();
	groups();
	pvm_exit();
	return 0;
}
