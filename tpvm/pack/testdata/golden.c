/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden prints what PVM 3.4.6 puts on the wire. Each line is the name of a case, the encoding
 * and the body of the message in hexadecimal. golden_test.go packs the same values and compares.
 *
 * Build and run on a 64-bit little-endian machine with the Debian packages pvm and pvm-dev:
 *
 *	cc -o golden golden.c -lpvm3 -ltirpc
 *	PVM_ALLOW_ROOT=1 pvm </dev/null   # starts the daemon
 *	MALLOC_PERTURB_=255 PVM_ALLOW_ROOT=1 ./golden >golden.txt
 *	echo halt | PVM_ALLOW_ROOT=1 pvm
 *
 * PVM does not write its padding, so that padding has whatever was in the memory. MALLOC_PERTURB_
 * makes that zero. PVM refuses root unless PVM_ALLOW_ROOT is set.
 *
 * The program gets at the bytes by pvm_pkmesg: the message under test is packed into an outer
 * message of encoding PvmDataRaw, sent to itself, and the outer message is unpacked as bytes:
 * eight integers (length, context, tag, wait identifier, encoding, checksum, source,
 * destination), and for each fragment its length and its bytes.
 */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tag = 7;

static void must(int cc, const char *what)
{
	if (cc < 0) {
		fprintf(stderr, "%s: %d\n", what, cc);
		pvm_exit();
		exit(1);
	}
}

static void dump(const char *name, const char *enc, int mid)
{
	int h[8], n, i, total = 0;
	int outer = pvm_mkbuf(PvmDataRaw);
	int old = pvm_setsbuf(outer);

	must(pvm_pkmesg(mid), "pkmesg");
	must(pvm_send(pvm_mytid(), tag), "send");
	pvm_setsbuf(old);
	pvm_freebuf(outer);
	must(pvm_recv(-1, tag), "recv");
	must(pvm_upkint(h, 8, 1), "header");
	printf("%s %s ", name, enc);
	while (total < h[0]) {
		char *p;
		must(pvm_upkint(&n, 1, 1), "fragment");
		p = malloc(n + 1);
		must(pvm_upkbyte(p, n, 1), "bytes");
		for (i = 0; i < n; i++)
			printf("%02x", p[i] & 0xff);
		free(p);
		total += n;
	}
	printf("\n");
}

#define CASE(name, body)                                        \
	do {                                                    \
		int e;                                          \
		for (e = 0; e < 2; e++) {                       \
			int how = e ? PvmDataRaw : PvmDataDefault; \
			int case_ = pvm_mkbuf(how);             \
			pvm_setsbuf(case_);                     \
			{ body; }                               \
			pvm_setsbuf(0);                         \
			dump(name, e ? "raw" : "default", case_); \
			pvm_freebuf(case_);                     \
		}                                               \
	} while (0)

int main(void)
{
	char bytes[] = {1, -2, 3, -4, 5, -6, 7, -128, 127, 0};
	short shorts[] = {0, 1, -1, 32767, -32768, 258};
	unsigned short ushorts[] = {0, 1, 32767, 32768, 65535, 258};
	int ints[] = {0, 1, -1, 2147483647, -2147483647 - 1, 16909060};
	unsigned uints[] = {0, 1, 2147483647u, 2147483648u, 4294967295u, 16909060u};
	long longs[] = {0, 1, -1, 2147483647L, -2147483648L, 16909060L};
	unsigned long ulongs[] = {0, 1, 2147483647ul, 2147483648ul, 4294967295ul, 16909060ul};
	float floats[] = {0, 1, -1, 0.1f, 3.4028234e38f, 1.4e-45f};
	double doubles[] = {0, 1, -1, 0.1, 1.7976931348623157e308, 5e-324};
	float cplx[] = {1, -1, 0.1f, 2.5f, -3, 4, 5, 6};
	double dcplx[] = {1, -1, 0.1, 2.5, -3, 4, 5, 6};
	static double many[1200];
	static char big[5001];
	int i, two = 2, four = 4, mid, raw, outer;
	double dbl = 2.5;
	long wide = 1L << 40;
	unsigned long uwide = 1UL << 40;

	must(pvm_mytid(), "pvm_mytid");
	for (i = 0; i < 1200; i++)
		many[i] = i / 4.0;
	for (i = 0; i < 5001; i++)
		big[i] = (char)i;

	CASE("byte", pvm_pkbyte(bytes, 10, 1));
	CASE("byte1", pvm_pkbyte(bytes, 1, 1));
	CASE("byte4", pvm_pkbyte(bytes, 4, 1));
	CASE("byte_stride3", pvm_pkbyte(bytes, 3, 3));
	CASE("byte_twice", pvm_pkbyte(bytes, 3, 1); pvm_pkbyte(bytes + 3, 4, 1));
	CASE("short", pvm_pkshort(shorts, 6, 1));
	CASE("short_stride2", pvm_pkshort(shorts, 3, 2));
	CASE("ushort", pvm_pkushort(ushorts, 6, 1));
	CASE("int", pvm_pkint(ints, 6, 1));
	CASE("int_stride2", pvm_pkint(ints, 3, 2));
	CASE("uint", pvm_pkuint(uints, 6, 1));
	CASE("long", pvm_pklong(longs, 6, 1));
	CASE("long_stride3", pvm_pklong(longs, 2, 3));
	CASE("ulong", pvm_pkulong(ulongs, 6, 1));
	CASE("float", pvm_pkfloat(floats, 6, 1));
	CASE("double", pvm_pkdouble(doubles, 6, 1));
	CASE("double_stride2", pvm_pkdouble(doubles, 3, 2));
	CASE("cplx", pvm_pkcplx(cplx, 4, 1));
	CASE("cplx_stride2", pvm_pkcplx(cplx, 2, 2));
	CASE("dcplx", pvm_pkdcplx(dcplx, 4, 1));
	CASE("dcplx_stride3", pvm_pkdcplx(dcplx, 2, 3));
	CASE("str", pvm_pkstr("hello, world"));
	CASE("str_empty", pvm_pkstr(""));
	CASE("str3", pvm_pkstr("abc"));
	CASE("str_each", pvm_pkstr("a"); pvm_pkstr("bc"); pvm_pkstr("def"); pvm_pkstr("ghij"));
	CASE("mixed", pvm_pkstr("x"); pvm_pkint(&two, 1, 1); pvm_pkbyte(bytes, 3, 1);
	     pvm_pkdouble(&dbl, 1, 1); pvm_pkshort(shorts, 2, 1); pvm_pklong(longs, 2, 1); pvm_pkbyte(bytes, 1, 1));
	CASE("packf", pvm_packf("%d %3hd %s %2lf %lud %2.2x", 2, shorts, "abc", doubles, 7ul, cplx));
	CASE("large", pvm_pkint(&four, 1, 1); pvm_pkdouble(many, 1200, 1));
	CASE("large_byte", pvm_pkbyte(big, 5001, 1); pvm_pkint(&four, 1, 1));

	/* A message within a message, and its body alone. */
	mid = pvm_mkbuf(PvmDataDefault);
	pvm_setsbuf(mid);
	pvm_pkstr("inner");
	pvm_pkint(&two, 1, 1);
	CASE("pkmesg", pvm_pkint(&four, 1, 1); pvm_pkmesg(mid); pvm_pkint(&two, 1, 1));
	raw = pvm_mkbuf(PvmDataRaw);
	pvm_setsbuf(raw);
	pvm_pkbyte(bytes, 3, 1);
	CASE("pkmesg_raw", pvm_pkmesg(raw); pvm_pkint(&two, 1, 1));
	outer = pvm_mkbuf(PvmDataDefault);
	pvm_setsbuf(outer);
	pvm_pkint(&four, 1, 1);
	must(pvm_pkmesgbody(mid), "pkmesgbody");
	pvm_setsbuf(0);
	dump("pkmesgbody", "default", outer);

	/* What happens to values that need more than four bytes. */
	outer = pvm_mkbuf(PvmDataDefault);
	pvm_setsbuf(outer);
	fprintf(stderr, "pvm_pklong(1<<40) = %d\n", pvm_pklong(&wide, 1, 1));
	fprintf(stderr, "pvm_pkulong(1<<40) = %d\n", pvm_pkulong(&uwide, 1, 1));
	pvm_setsbuf(0);
	dump("wide", "default", outer);
	pvm_exit();
	return 0;
}
