/* SPDX-License-Identifier: Apache-2.0 */

/* buffers.c: message buffers: making, freeing and choosing them, and what is told of them. */

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include "pvm3.h"

#define SHOW(call) printf("%s = %d\n", #call, (int)(call))

/* deliver sends a message with an int to this task, and returns the number of its buffer here. */
static int deliver(int tag, int value)
{
	pvm_initsend(PvmDataDefault);
	pvm_pkint(&value, 1, 1);
	pvm_send(pvm_mytid(), tag);
	return pvm_recv(-1, tag);
}

static int unpacked(void)
{
	int v = -99, cc = pvm_upkint(&v, 1, 1);

	return cc < 0 ? cc : v;
}

static void making(void)
{
	int a, b, c, d, len, tag, tid;

	SHOW(pvm_getsbuf());
	SHOW(pvm_getrbuf());
	a = pvm_mkbuf(PvmDataDefault);
	b = pvm_mkbuf(PvmDataRaw);
	c = pvm_mkbuf(PvmDataInPlace);
	SHOW(a > 0 && b > 0 && c > 0 && a != b && b != c && a != c);
	SHOW(pvm_getsbuf()); /* making one chooses none */
	SHOW(pvm_mkbuf(-1));
	SHOW(pvm_mkbuf(5));
	SHOW(pvm_bufinfo(a, &len, &tag, &tid));
	printf("%d %d %d\n", len, tag, tid == pvm_mytid());
	SHOW(pvm_setsbuf(a));
	SHOW(pvm_setsbuf(b) == a);
	SHOW(pvm_getsbuf() == b);
	SHOW(pvm_freebuf(a));
	SHOW(pvm_freebuf(a));
	SHOW(pvm_bufinfo(a, &len, &tag, &tid));
	SHOW(pvm_setsbuf(a));
	SHOW(pvm_getsbuf() == b);
	SHOW(pvm_setsbuf(-1));
	SHOW(pvm_setrbuf(-1));
	SHOW(pvm_setrbuf(99));
	SHOW(pvm_freebuf(-1));
	d = pvm_mkbuf(PvmDataDefault);
	SHOW(d == a); /* the number is used again */
	SHOW(pvm_freebuf(b)); /* the active one */
	SHOW(pvm_getsbuf());
	SHOW(pvm_freebuf(c));
	SHOW(pvm_freebuf(d));
}

/* sending packs two messages side by side, and sends one of them twice. */
static void sending(void)
{
	int a, b, i, len, tag, tid, me = pvm_mytid();

	pvm_setsbuf(0);
	a = pvm_mkbuf(PvmDataDefault);
	b = pvm_mkbuf(PvmDataRaw);
	for (i = 0; i < 3; i++) {
		pvm_setsbuf(a);
		pvm_pkint(&i, 1, 1);
		pvm_setsbuf(b);
		pvm_pkint(&i, 1, 1);
		pvm_pkint(&i, 1, 1);
	}
	SHOW(pvm_send(me, 1));
	pvm_setsbuf(a);
	SHOW(pvm_send(me, 2));
	SHOW(pvm_bufinfo(a, &len, &tag, &tid));
	printf("%d %d\n", len, tag);
	pvm_pkint(&i, 1, 1); /* behind the others */
	SHOW(pvm_send(me, 2));
	for (i = 0; i < 3; i++) {
		pvm_bufinfo(pvm_recv(me, -1), &len, &tag, &tid);
		printf("%d %d %d:", len, tag, tid == me);
		for (; len > 0; len -= 4)
			printf(" %d", unpacked());
		printf("\n");
	}
	SHOW(unpacked());
	i = pvm_getsbuf();
	SHOW(i == a);
	SHOW(pvm_initsend(PvmDataDefault) > 0); /* frees the one before */
	SHOW(pvm_freebuf(pvm_getsbuf()));
	SHOW(pvm_freebuf(b));
}

/* receiving keeps messages beside the active one. */
static void receiving(void)
{
	int a, b, c, len, tag, tid, me = pvm_mytid();

	pvm_setrbuf(0);
	a = deliver(1, 11);
	SHOW(pvm_getrbuf() == a);
	SHOW(pvm_setrbuf(0) == a);
	b = deliver(2, 22);
	SHOW(a != b);
	SHOW(unpacked());
	SHOW(unpacked());
	SHOW(pvm_setrbuf(a) == b);
	SHOW(unpacked());
	SHOW(pvm_setrbuf(b) == a); /* begins again? */
	SHOW(unpacked());
	c = deliver(3, 33); /* frees the active one */
	SHOW(pvm_bufinfo(b, &len, &tag, &tid) < 0 || b == c);
	SHOW(pvm_bufinfo(a, &len, &tag, &tid));
	printf("%d %d %d\n", len, tag, tid == me);
	SHOW(pvm_nrecv(-1, 77));
	SHOW(pvm_getrbuf());
	SHOW(pvm_bufinfo(c, &len, &tag, &tid));
	SHOW(pvm_freebuf(a));
	SHOW(pvm_setrbuf(0));
}

/* turning sends a message that was received, and reads one that was packed. */
static void turning(void)
{
	int a, b, i = 5, len, tag, tid, me = pvm_mytid();

	pvm_setrbuf(0);
	pvm_setsbuf(0);
	a = deliver(4, 44);
	SHOW(unpacked());
	pvm_freebuf(pvm_setsbuf(a));
	SHOW(pvm_setrbuf(0) == a);
	SHOW(pvm_send(me, 5));
	b = pvm_recv(-1, 5);
	SHOW(unpacked());
	pvm_bufinfo(b, &len, &tag, &tid);
	printf("%d %d %d\n", len, tag, tid == me);
	pvm_freebuf(b);
	pvm_setsbuf(0);
	pvm_freebuf(a);
	a = pvm_mkbuf(PvmDataDefault);
	pvm_setsbuf(a);
	pvm_pkint(&i, 1, 1);
	pvm_setsbuf(0);
	SHOW(pvm_setrbuf(a));
	SHOW(unpacked());
	SHOW(unpacked());
	SHOW(pvm_setsbuf(a)); /* one buffer is active for one purpose */
	SHOW(pvm_getrbuf());
	SHOW(pvm_setrbuf(a));
	SHOW(pvm_getsbuf());
	SHOW(pvm_freebuf(a));
	SHOW(pvm_getrbuf());
}

/* inside packs messages into a message. */
static void inside(void)
{
	int a, b, i = 6, len, tag, tid, me = pvm_mytid();

	pvm_setrbuf(0);
	pvm_freebuf(pvm_setsbuf(0));
	a = deliver(6, 66);
	pvm_setrbuf(0);
	pvm_initsend(PvmDataDefault);
	pvm_pkint(&i, 1, 1);
	SHOW(pvm_pkmesg(a));
	SHOW(pvm_pkmesgbody(a));
	pvm_send(me, 7);
	pvm_freebuf(a);
	pvm_recv(-1, 7);
	SHOW(unpacked());
	b = pvm_upkmesg();
	SHOW(b > 0);
	SHOW(pvm_bufinfo(b, &len, &tag, &tid));
	printf("%d %d %d\n", len, tag, tid == me);
	SHOW(unpacked());
	SHOW(unpacked());
	SHOW(pvm_setrbuf(b) > 0);
	SHOW(unpacked());
	SHOW(pvm_freebuf(b));
}

static void details(void)
{
	struct pvmminfo info;
	int b = deliver(8, 88);

	memset(&info, 0xff, sizeof info);
	SHOW(pvm_getminfo(b, &info));
	printf("%d %d %d %d %d\n", info.len, info.ctx, info.tag, info.crc, info.src == pvm_mytid());
	info.tag = 9;
	info.wid = 10;
	SHOW(pvm_setminfo(b, &info));
	memset(&info, 0, sizeof info);
	SHOW(pvm_getminfo(b, &info));
	printf("%d %d\n", info.tag, info.wid);
	SHOW(pvm_getminfo(99, &info));
	SHOW(pvm_setminfo(99, &info));
	SHOW(pvm_getminfo(0, &info));
	SHOW(pvm_setminfo(0, &info));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pvm_setopt(PvmAutoErr, 0);
	pvm_mytid();
	making();
	sending();
	receiving();
	turning();
	inside();
	details();
	SHOW(pvm_exit());
	return 0;
}
