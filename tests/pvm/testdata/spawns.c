/* SPDX-License-Identifier: Apache-2.0 */

/* spawns.c: programs that know nothing of PVM are tasks too. */

#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))

static void told(int tag, int tid)
{
	int v;

	SHOW(pvm_recv(-1, tag) > 0);
	pvm_upkint(&v, 1, 1);
	printf("the one asked for %d\n", v == tid);
}

int main(void)
{
	int me = pvm_mytid(), t[3], n;
	char *seconds[] = {"1000", NULL}, *script[] = {"-c", "exit 3", NULL};
	struct pvmtaskinfo *tasks;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	pvm_tasks(me, &n, &tasks);
	printf("flag %d\n", tasks->ti_flag);

	/* They end before they would enrol. */
	SHOW(pvm_spawn("/bin/true", NULL, PvmTaskDefault, "", 3, t));
	printf("%d\n", t[0] > 0 && t[1] > 0 && t[2] > 0 && t[0] != t[1] && t[1] != t[2] && t[0] != t[2]);
	SHOW(pvm_notify(PvmTaskExit, 1, 1, t));
	told(1, t[0]);
	SHOW(pvm_pstat(t[0]));
	SHOW(pvm_kill(t[0]));
	SHOW(pvm_spawn("/bin/sh", script, PvmTaskDefault, "", 1, t));
	SHOW(pvm_notify(PvmTaskExit, 2, 1, t));
	told(2, t[0]);

	/* They live on. */
	SHOW(pvm_spawn("/bin/sleep", seconds, PvmTaskDefault, "", 2, t));
	printf("%d\n", t[0] > 0 && t[1] > 0 && t[0] != t[1]);
	SHOW(pvm_pstat(t[0]));
	SHOW(pvm_tidtohost(t[0]) == pvm_tidtohost(me));
	SHOW(pvm_tasks(t[0], &n, &tasks));
	printf("%d %d %d\n", n, tasks->ti_flag, tasks->ti_ptid == me);
	SHOW(pvm_notify(PvmTaskExit, 3, 2, t));
	pvm_initsend(PvmDataDefault);
	SHOW(pvm_send(t[0], 1)); /* nobody will read it */
	SHOW(pvm_nrecv(t[0], 1));
	SHOW(pvm_kill(t[0]));
	told(3, t[0]);
	SHOW(pvm_pstat(t[0]));
	SHOW(pvm_pstat(t[1]));
	SHOW(pvm_sendsig(t[1], SIGKILL));
	told(3, t[1]);
	SHOW(pvm_pstat(t[1]));

	/* Those that enrol are spawned as ever. */
	SHOW(pvm_spawn("hello_other", NULL, PvmTaskDefault, "", 1, t));
	SHOW(pvm_recv(t[0], 1) > 0);
	SHOW(pvm_exit());
	return 0;
}
