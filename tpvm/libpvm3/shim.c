/* SPDX-License-Identifier: Apache-2.0 */

//go:build cgo

/* shim.c: what Go cannot export to C. */

#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "shim.h"
#include "_cgo_export.h"

int pvm_errno;
int pvmdebmask;

int shim_handler(handler_function f, int bufid) { return f(bufid); }

int shim_match(match_function f, int bufid, int tid, int tag) { return f(bufid, tid, tag); }

void shim_reduce(reduce_function f, int *type, void *x, void *y, int *count, int *info) { f(type, x, y, count, info); }

void shim_write(void *file, const char *p, int n)
{
	fwrite(p, 1, n, file);
	fflush(file);
}

void shim_stdout(const char *text) { fputs(text, stdout); }

const char *shim_getenv(const char *name) { return getenv(name); }

void shim_setenv(const char *name, const char *value) { setenv(name, value, 1); }

/*
 * A signal for the process goes to a thread of the program. Go's threads, which the kernel may choose
 * while the main thread has another signal, would run a handler of the program on a foreign stack.
 * Go's runtime starts with the signals that are blocked when its constructor runs, between these
 * two: the first has a higher priority, the second comes later in the linker's command. Go needs the
 * signals that are left out for itself.
 */
static sigset_t programs_mask;

__attribute__((constructor(101))) static void block_signals(void)
{
	static const int gos[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP, SIGURG};
	sigset_t set;
	size_t i;

	sigfillset(&set);
	for (i = 0; i < sizeof gos / sizeof *gos; i++)
		sigdelset(&set, gos[i]);
	pthread_sigmask(SIG_BLOCK, &set, &programs_mask);
}

__attribute__((constructor)) static void restore_signals(void) { pthread_sigmask(SIG_SETMASK, &programs_mask, NULL); }

static pid_t owner;

/* at_exit does nothing in a process that a fork has left with one thread of the library's. */
static void at_exit(void)
{
	if (getpid() == owner)
		libpvm3AtExit();
}

void shim_at_exit(void)
{
	owner = getpid();
	atexit(at_exit);
}

int pvm_addmhf(int tid, int tag, int context, int (*handler)(int)) { return libpvm3AddHandler(tid, tag, context, (void *)handler); }

int (*pvm_recvf(int (*match)(int, int, int)))(int, int, int)
{
	static match_function current;
	match_function old = current;

	current = match;
	libpvm3SetMatch((void *)match);
	return old;
}

int pvm_reduce(void (*function)(int *, void *, void *, int *, int *), void *data, int count, int type, int tag, char *group, int root)
{
	return libpvm3Reduce((void *)function, data, count, type, tag, group, root);
}

#define VALUES(name, T, type) \
	int pvm_pk##name(T *p, int count, int stride) { return libpvm3Pack(type, p, count, stride); } \
	int pvm_upk##name(T *p, int count, int stride) { return libpvm3Unpack(type, p, count, stride); }

VALUES(byte, char, PVM_BYTE)
VALUES(cplx, float, PVM_CPLX)
VALUES(dcplx, double, PVM_DCPLX)
VALUES(double, double, PVM_DOUBLE)
VALUES(float, float, PVM_FLOAT)
VALUES(int, int, PVM_INT)
VALUES(long, long, PVM_LONG)
VALUES(short, short, PVM_SHORT)
VALUES(uint, unsigned int, PVM_UINT)
VALUES(ulong, unsigned long, PVM_ULONG)
VALUES(ushort, unsigned short, PVM_USHORT)

int pvm_catchout(FILE *file) { return libpvm3Catchout(file); }

/*
 * pvm_recv and pvm_trecv may be left by siglongjmp out of a signal handler, as programs do for a
 * time-out. That must not unwind Go code. So another thread, the receiver, makes the call of Go, and
 * the caller waits in C. Each thread that receives has a receiver. All signals are blocked there.
 *
 * A request that was left goes on until the next call of the library by the same thread, which ends
 * it by settle. A message that the receiver has got by then is given back to Go.
 */
enum { IDLE, ASKED, DONE, QUIT };

struct receiver {
	_Atomic int state;
	_Atomic int left; /* the caller has left, and waits for DONE */
	int tid, tag, timed, has_timeout;
	struct timeval timeout;
	int give_back; /* a message that was received for a caller that has left, or 0 */
	int result;
};

static __thread struct receiver *mine; /* of this thread; NULL: none yet */
static __thread int receives;	       /* this thread is a receiver */
static pthread_key_t at_thread_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int left_pipe;

static void change(struct receiver *r, int state)
{
	atomic_store(&r->state, state);
	syscall(SYS_futex, &r->state, FUTEX_WAKE_PRIVATE, 2, NULL, NULL, 0);
}

static void await_change(struct receiver *r, int state)
{
	syscall(SYS_futex, &r->state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
}

static void *receiver_main(void *arg)
{
	struct receiver *r = arg;
	int state;

	receives = 1;
	for (;;) {
		while ((state = atomic_load(&r->state)) == IDLE || state == DONE)
			await_change(r, state);
		if (state == QUIT)
			break;
		r->result = libpvm3Receive(r, r->tid, r->tag, r->timed, r->has_timeout ? &r->timeout : NULL, r->give_back);
		r->give_back = 0;
		change(r, DONE);
	}
	free(r);
	return NULL;
}

int shim_left(void *r) { return atomic_load(&((struct receiver *)r)->left); }

/*
 * settle ends the request that this thread has left. It sets give_back. It may itself be left at any
 * point, and goes on when it is called again.
 */
static void settle(struct receiver *r)
{
	int state = atomic_load(&r->state);

	if (state == ASKED) {
		atomic_store(&r->left, 1);
		while (write(left_pipe, &r, sizeof r) < 0 && errno == EINTR)
			;
		while ((state = atomic_load(&r->state)) != DONE)
			await_change(r, state);
	}
	if (state == DONE && r->result > 0)
		r->give_back = r->result;
	atomic_store(&r->left, 0);
	atomic_store(&r->state, IDLE);
}

static void end_receiver(void *arg)
{
	struct receiver *r = arg;

	settle(r);
	if (r->give_back)
		libpvm3GiveBack(r->give_back);
	change(r, QUIT);
}

static void prepare(void)
{
	pthread_key_create(&at_thread_exit, end_receiver);
	left_pipe = libpvm3LeftPipe();
}

static struct receiver *new_receiver(void)
{
	struct receiver *r = calloc(1, sizeof *r);
	sigset_t all, old;
	pthread_t thread;
	int failed;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_once(&once, prepare);
	failed = !r || pthread_create(&thread, NULL, receiver_main, r);
	if (failed) {
		free(r);
		r = NULL;
	} else {
		pthread_detach(thread);
		pthread_setspecific(at_thread_exit, r);
		mine = r;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int shim_settle(void)
{
	int id;

	if (!mine && !receives)
		new_receiver(); /* now, and not while the program's timer for a receive runs */
	if (!mine)
		return 0;
	settle(mine);
	id = mine->give_back;
	mine->give_back = 0;
	return id;
}

static int receive(int tid, int tag, int timed, struct timeval *timeout)
{
	struct receiver *r = mine;
	int state;

	if (receives) /* a message handler of the program */
		return libpvm3Receive(NULL, tid, tag, timed, timeout, 0);
	if (!r && !(r = new_receiver()))
		return PvmNoMem;
	settle(r);
	r->tid = tid;
	r->tag = tag;
	r->timed = timed;
	if ((r->has_timeout = timeout != NULL))
		r->timeout = *timeout;
	change(r, ASKED);
	while ((state = atomic_load(&r->state)) != DONE)
		await_change(r, state);
	state = r->result;
	atomic_store(&r->state, IDLE);
	return state;
}

int pvm_recv(int tid, int tag) { return receive(tid, tag, 0, NULL); }

int pvm_trecv(int tid, int tag, struct timeval *timeout) { return receive(tid, tag, 1, timeout); }

/*
 * A format of pvm_packf and pvm_unpackf is a list of
 *
 *	% [count | *] [. stride | . *] [h | l | u ...] type
 *
 * with the types c (bytes), d (int), u (unsigned), f (float), x (complex), s (string), and +
 * (pvm_initsend, in pvm_packf only). An asterisk takes an int argument. In pvm_packf an
 * integer or a float without a count is an argument itself; all others are pointers.
 */
struct conversion {
	int count, stride;
	int counted; /* a count was given */
	int isShort, isLong, isUnsigned;
	char type;
};

static int number(const char **p, va_list *args, int *given)
{
	int n = 0;

	if (**p == '*') {
		(*p)++;
		*given = 1;
		return va_arg(*args, int);
	}
	while (isdigit((unsigned char)**p)) {
		*given = 1;
		n = n * 10 + *(*p)++ - '0';
	}
	return n;
}

/* next reads a conversion: 1, 0 at the end, or PvmBadParam. */
static int next(const char **p, va_list *args, struct conversion *c)
{
	int given = 0;

	while (isspace((unsigned char)**p))
		(*p)++;
	if (**p == 0)
		return 0;
	if (*(*p)++ != '%')
		return PvmBadParam;
	memset(c, 0, sizeof *c);
	c->stride = 1;
	c->count = number(p, args, &c->counted);
	if (!c->counted)
		c->count = 1;
	if (**p == '.') {
		(*p)++;
		c->stride = number(p, args, &given);
		c->counted = 1;
	}
	for (;; (*p)++) {
		if (**p == 'h')
			c->isShort = 1;
		else if (**p == 'l')
			c->isLong = 1;
		else if (**p == 'u' && (*p)[1] == 'd')
			c->isUnsigned = 1;
		else
			break;
	}
	if (**p == 0)
		return PvmBadParam;
	c->type = *(*p)++;
	if (c->type == 'u') {
		c->isUnsigned = 1;
		c->type = 'd';
	}
	return 1;
}

/* type_of returns the type of the values of a conversion, or -1 if it is none of numbers. */
static int type_of(struct conversion *c)
{
	switch (c->type) {
	case 'c':
		return PVM_BYTE;
	case 'd':
		if (c->isShort)
			return c->isUnsigned ? PVM_USHORT : PVM_SHORT;
		if (c->isLong)
			return c->isUnsigned ? PVM_ULONG : PVM_LONG;
		return c->isUnsigned ? PVM_UINT : PVM_INT;
	case 'f':
		return c->isLong ? PVM_DOUBLE : PVM_FLOAT;
	case 'x':
		return c->isLong ? PVM_DCPLX : PVM_CPLX;
	}
	return -1;
}

static int pack_pointer(struct conversion *c, void *v)
{
	int type = type_of(c);

	if (c->type == 's')
		return pvm_pkstr(v);
	return type < 0 ? PvmBadParam : libpvm3Pack(type, v, c->count, c->stride);
}

static int pack_value(struct conversion *c, va_list *args)
{
	switch (c->type) {
	case '+':
		return pvm_initsend(va_arg(*args, int));
	case 'c': {
		char v = va_arg(*args, int);
		return pack_pointer(c, &v);
	}
	case 'd':
		if (c->isLong) {
			long v = va_arg(*args, long);
			return pack_pointer(c, &v);
		}
		if (c->isShort) {
			short v = va_arg(*args, int);
			return pack_pointer(c, &v);
		} else {
			int v = va_arg(*args, int);
			return pack_pointer(c, &v);
		}
	case 'f':
		if (c->isLong) {
			double v = va_arg(*args, double);
			return pack_pointer(c, &v);
		} else {
			float v = va_arg(*args, double);
			return pack_pointer(c, &v);
		}
	}
	return pack_pointer(c, va_arg(*args, void *));
}

int pvm_packf(const char *format, ...)
{
	va_list args;
	struct conversion c;
	int cc;

	va_start(args, format);
	while ((cc = next(&format, &args, &c)) > 0) {
		if (c.counted)
			cc = pack_pointer(&c, va_arg(args, void *));
		else
			cc = pack_value(&c, &args);
		if (cc < 0)
			break;
	}
	va_end(args);
	return cc < 0 ? lpvmerr("pvm_packf()", cc) : 0;
}

int pvm_unpackf(const char *format, ...)
{
	va_list args;
	struct conversion c;
	int cc;

	va_start(args, format);
	while ((cc = next(&format, &args, &c)) > 0) {
		void *v = va_arg(args, void *);
		int type = type_of(&c);

		if (c.type == 's')
			cc = pvm_upkstr(v);
		else
			cc = type < 0 ? PvmBadParam : libpvm3Unpack(type, v, c.count, c.stride);
		if (cc < 0)
			break;
	}
	va_end(args);
	return cc < 0 ? lpvmerr("pvm_unpackf()", cc) : 0;
}

/* Functions of PVM's library that its header does not declare, and that programs call. */

void pvmsleep(int seconds) { sleep(seconds); }

void pvmgetclock(struct timeval *t) { gettimeofday(t, NULL); }

char *pvmgetrsh(void)
{
	char *s = getenv("PVM_RSH");

	return s ? s : "/usr/bin/ssh";
}

char *pvmgettmp(void)
{
	char *s = getenv("PVM_TMP");

	return s ? s : "/tmp";
}

char *pvmtmpnam(char *name)
{
	static char own[PVMTMPNAMLEN];
	int fd;

	if (!name)
		name = own;
	snprintf(name, PVMTMPNAMLEN, "%s/pvmXXXXXX", pvmgettmp());
	if ((fd = mkstemp(name)) < 0)
		return NULL;
	close(fd);
	unlink(name);
	return name;
}

char *pvm_version(void) { return PVM_VER; }

int pvm_getmwid(int bufid)
{
	struct pvmminfo info;
	int cc = pvm_getminfo(bufid, &info);

	return cc < 0 ? cc : info.wid;
}

int pvm_setmwid(int bufid, int wid)
{
	struct pvmminfo info;
	int cc = pvm_getminfo(bufid, &info);

	if (cc < 0)
		return cc;
	info.wid = wid;
	return pvm_setminfo(bufid, &info);
}

/* REDUCE defines a function for pvm_reduce; by its operator for each type. */
#define EACH(T, op) \
	{ \
		T *a = x, *b = y; \
		for (i = 0; i < n; i++) \
			op; \
		break; \
	}
#define MULTIPLY_COMPLEX \
	{ \
		double re = a[2 * i] * b[2 * i] - a[2 * i + 1] * b[2 * i + 1]; \
		a[2 * i + 1] = a[2 * i] * b[2 * i + 1] + a[2 * i + 1] * b[2 * i]; \
		a[2 * i] = re; \
	}
#define ADD_COMPLEX \
	{ \
		a[2 * i] += b[2 * i]; \
		a[2 * i + 1] += b[2 * i + 1]; \
	}
#define NORM(p) ((p)[2 * i] * (p)[2 * i] + (p)[2 * i + 1] * (p)[2 * i + 1])
#define CHOOSE_COMPLEX(cmp) \
	if (NORM(b) cmp NORM(a)) { \
		a[2 * i] = b[2 * i]; \
		a[2 * i + 1] = b[2 * i + 1]; \
	}
#define REDUCE(name, op, complex) \
	void name(int *type, void *x, void *y, int *count, int *info) \
	{ \
		int i, n = *count; \
		*info = PvmOk; \
		switch (*type) { \
		case PVM_BYTE: EACH(char, op) \
		case PVM_SHORT: EACH(short, op) \
		case PVM_INT: EACH(int, op) \
		case PVM_LONG: EACH(long, op) \
		case PVM_USHORT: EACH(unsigned short, op) \
		case PVM_UINT: EACH(unsigned int, op) \
		case PVM_ULONG: EACH(unsigned long, op) \
		case PVM_FLOAT: EACH(float, op) \
		case PVM_DOUBLE: EACH(double, op) \
		case PVM_CPLX: EACH(float, complex) \
		case PVM_DCPLX: EACH(double, complex) \
		default: *info = PvmBadParam; \
		} \
	}

REDUCE(PvmMax, if (b[i] > a[i]) a[i] = b[i], CHOOSE_COMPLEX(>))
REDUCE(PvmMin, if (b[i] < a[i]) a[i] = b[i], CHOOSE_COMPLEX(<))
REDUCE(PvmSum, a[i] += b[i], ADD_COMPLEX)
REDUCE(PvmProduct, a[i] *= b[i], MULTIPLY_COMPLEX)
