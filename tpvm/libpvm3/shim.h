/* SPDX-License-Identifier: Apache-2.0 */

/* shim.h: what the C and the Go part of libpvm3 declare for each other. */

#ifndef SHIM_H
#define SHIM_H

#define NOTMPNAM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include "pvm3.h"

extern int pvm_errno;
extern int pvmdebmask;

typedef int (*handler_function)(int bufid);
typedef int (*match_function)(int bufid, int tid, int tag);
typedef void (*reduce_function)(int *type, void *x, void *y, int *count, int *info);

/* Call functions of the program for Go. */
int shim_handler(handler_function f, int bufid);
int shim_match(match_function f, int bufid, int tid, int tag);
void shim_reduce(reduce_function f, int *type, void *x, void *y, int *count, int *info);
/* shim_write writes to a FILE of the program, and flushes it. */
void shim_write(void *file, const char *p, int n);
void shim_stdout(const char *text);
/* shim_getenv returns a variable as the program has set it, which may differ from Go's. */
const char *shim_getenv(const char *name);
void shim_setenv(const char *name, const char *value);
void shim_at_exit(void);
/* shim_settle ends a receive that this thread has left by siglongjmp. See shim.c. */
int shim_settle(void);
/* shim_left reports whether the caller of a receiver has left. */
int shim_left(void *receiver);

#endif
