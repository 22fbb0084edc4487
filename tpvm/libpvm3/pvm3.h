/* SPDX-License-Identifier: Apache-2.0 */

/*
 * pvm3.h: the C interface of libpvm3 over rocl.
 *
 * Programs written for PVM 3.4 compile against this header and link with
 * -lpvm3 (and -lgpvm3, which is the same library). Names, values and
 * prototypes are those that PVM's manual pages document. docs/TPVM.md says
 * which calls behave differently.
 */

#ifndef _PVM3_H_
#define _PVM3_H_

#include <sys/time.h>

/* Version of PVM whose interface this is. */
#define PVM_VER           "3.4.6"
#define PVM_MAJOR_VERSION 3
#define PVM_MINOR_VERSION 4
#define PVM_PATCH_VERSION 6

/* Encodings: pvm_initsend, pvm_mkbuf. */
#define PvmDataDefault 0 /* XDR */
#define PvmDataRaw     1 /* the byte order of the host */
#define PvmDataInPlace 2 /* as Raw; the values are read when the message is sent */
#define PvmDataFoo     PvmDataDefault
#define PvmDataTrace   4 /* refused */

/* Flags of pvm_spawn. */
#define PvmTaskDefault   0
#define PvmTaskHost      1  /* where names a host */
#define PvmTaskArch      2  /* where names an architecture */
#define PvmTaskDebug     4  /* ignored */
#define PvmTaskTrace     8  /* ignored */
#define PvmMppFront      16 /* ignored */
#define PvmHostCompl     32 /* every host except those that where selects */
#define PvmNoSpawnParent 64 /* the children have no parent */

/* Kinds of pvm_notify. */
#define PvmTaskExit     1
#define PvmHostDelete   2
#define PvmHostAdd      3
#define PvmRouteAdd     4
#define PvmRouteDelete  5
#define PvmNotifyCancel 256 /* a flag: the notification is delivered at once */

/* Options of pvm_setopt and pvm_getopt, each with its values behind it. */
#define PvmRoute             1
#define PvmDontRoute         1
#define PvmAllowDirect       2
#define PvmRouteDirect       3
#define PvmDebugMask         2
#define PvmAutoErr           3
#define PvmOutputTid         4
#define PvmOutputCode        5
#define PvmTraceTid          6
#define PvmTraceCode         7
#define PvmTraceBuffer       8
#define PvmTraceOptions      9
#define PvmTraceFull         1
#define PvmTraceTime         2
#define PvmTraceCount        3
#define PvmFragSize          10
#define PvmResvTids          11
#define PvmSelfOutputTid     12
#define PvmSelfOutputCode    13
#define PvmSelfTraceTid      14
#define PvmSelfTraceCode     15
#define PvmSelfTraceBuffer   16
#define PvmSelfTraceOptions  17
#define PvmShowTids          18
#define PvmPollType          19
#define PvmPollConstant      1
#define PvmPollSleep         2
#define PvmPollTime          20
#define PvmOutputContext     21
#define PvmTraceContext      22
#define PvmSelfOutputContext 23
#define PvmSelfTraceContext  24
#define PvmNoReset           25

/* Whose trace mask: pvm_settmask and pvm_gettmask. */
#define PvmTaskSelf  0
#define PvmTaskChild 1

/* The message context of a task that has never set one. */
#define PvmBaseContext 0

/* Flags of pvm_putinfo, pvm_recvinfo and pvm_delinfo. */
#define PvmMboxDefault       0
#define PvmMboxPersistent    1  /* the entry outlives its owner */
#define PvmMboxMultiInstance 2  /* the name may have several entries */
#define PvmMboxOverWritable  4  /* any task may replace the entry */
#define PvmMboxFirstAvail    8  /* the first entry whose index is not less */
#define PvmMboxReadAndDelete 16
#define PvmMboxWaitForInfo   32 /* pvm_recvinfo waits for an entry */
#define PvmMboxMaxFlag       512

/* pvm_putinfo to a chosen index: the index in the upper bits of the flags. */
#define PvmMboxDirectIndexShift 10
#define PvmMboxMaxDirectIndex   (1u << (31 - PvmMboxDirectIndexShift))
#define PvmMboxDirectIndex(i) \
	((unsigned)(i) < PvmMboxMaxDirectIndex ? (i) << PvmMboxDirectIndexShift : 0)
#define PvmMboxDirectIndexOf(flags) \
	(((flags) >> PvmMboxDirectIndexShift) & (PvmMboxMaxDirectIndex - 1))

/* Mailbox names that PVM itself uses. */
#define PVMNORESETCLASS "###_PVM_NO_RESET_###"
#define PVMHOSTERCLASS  "###_PVM_HOSTER_###"
#define PVMTASKERCLASS  "###_PVM_TASKER_###"
#define PVMTRACERCLASS  "###_PVM_TRACER_###"
#define PVMRMCLASS      "###_PVM_RM_###"

/* Results: 0 or a number of its own is success, less than 0 is one of these. */
#define PvmOk           0
#define PvmBadParam     -2
#define PvmMismatch     -3
#define PvmOverflow     -4
#define PvmNoData       -5
#define PvmNoHost       -6
#define PvmNoFile       -7
#define PvmDenied       -8
#define PvmNoMem        -10
#define PvmBadMsg       -12
#define PvmSysErr       -14
#define PvmNoBuf        -15
#define PvmNoSuchBuf    -16
#define PvmNullGroup    -17
#define PvmDupGroup     -18
#define PvmNoGroup      -19
#define PvmNotInGroup   -20
#define PvmNoInst       -21
#define PvmHostFail     -22
#define PvmNoParent     -23
#define PvmNotImpl      -24
#define PvmDSysErr      -25
#define PvmBadVersion   -26
#define PvmOutOfRes     -27
#define PvmDupHost      -28
#define PvmCantStart    -29
#define PvmAlready      -30
#define PvmNoTask       -31
#define PvmNotFound     -32
#define PvmExists       -33
#define PvmHostrNMstr   -34
#define PvmParentNotSet -35
#define PvmIPLoopback   -36

/* Names of PVM 3.3. */
#define PvmNoEntry  PvmNotFound
#define PvmDupEntry PvmDenied

/* Types of values: pvm_psend, pvm_precv, pvm_reduce, pvm_gather, pvm_scatter. */
#define PVM_STR    0
#define PVM_BYTE   1
#define PVM_SHORT  2
#define PVM_INT    3
#define PVM_FLOAT  4
#define PVM_CPLX   5
#define PVM_DOUBLE 6
#define PVM_DCPLX  7
#define PVM_LONG   8
#define PVM_USHORT 9
#define PVM_UINT   10
#define PVM_ULONG  11

/* A host, by pvm_config. */
struct pvmhostinfo {
	int hi_tid;    /* identifies the host */
	char *hi_name;
	char *hi_arch;
	int hi_speed;  /* 1000 */
	int hi_dsig;   /* how the host represents values */
};

/* A task, by pvm_tasks. */
struct pvmtaskinfo {
	int ti_tid;
	int ti_ptid;    /* its parent, or 0 */
	int ti_host;    /* its host's hi_tid */
	int ti_flag;
	char *ti_a_out; /* the program */
	int ti_pid;
};

/* What a message carries beside its values: pvm_getminfo, pvm_setminfo. */
struct pvmminfo {
	int len;
	int ctx;
	int tag;
	int wid;
	int enc;
	int crc;
	int src;
	int dst;
};

/* The entries of one name in the message box, by pvm_getmboxinfo. */
struct pvmmboxinfo {
	char *mi_name;
	int mi_nentries;
	int *mi_indices;
	int *mi_owners;
	int *mi_flags;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Tasks. */
int pvm_mytid(void);
int pvm_exit(void);
int pvm_parent(void);
int pvm_siblings(int **tids);
int pvm_spawn(char *task, char **argv, int flag, char *where, int count, int *tids);
int pvm_kill(int tid);
int pvm_sendsig(int tid, int signal);
int pvm_pstat(int tid);
int pvm_tasks(int where, int *ntask, struct pvmtaskinfo **tasks);
int pvm_tidtohost(int tid);
int pvm_notify(int what, int tag, int count, int *tids);
int pvm_export(char *name);
int pvm_unexport(char *name);
#ifdef EOF
int pvm_catchout(FILE *file);
#endif

/* Hosts. */
int pvm_config(int *nhost, int *narch, struct pvmhostinfo **hosts);
int pvm_addhosts(char **hosts, int count, int *infos);
int pvm_delhosts(char **hosts, int count, int *infos);
int pvm_mstat(char *host);
int pvm_hostsync(int host, struct timeval *clock, struct timeval *delta);
int pvm_archcode(char *arch);
int pvm_halt(void);
int pvm_start_pvmd(int argc, char **argv, int block);
int pvm_reg_hoster(void);
int pvm_reg_rm(struct pvmhostinfo **hosts);
int pvm_reg_tasker(void);
int pvm_reg_tracer(int tctx, int ttag, int octx, int otag, char *mask, int buffer, int options);
int pvm_tickle(int narg, int *args, int *nresult, int *results);

/* Buffers. */
int pvm_initsend(int encoding);
int pvm_mkbuf(int encoding);
int pvm_freebuf(int bufid);
int pvm_getsbuf(void);
int pvm_setsbuf(int bufid);
int pvm_getrbuf(void);
int pvm_setrbuf(int bufid);
int pvm_bufinfo(int bufid, int *bytes, int *tag, int *tid);
int pvm_getminfo(int bufid, struct pvmminfo *info);
int pvm_setminfo(int bufid, struct pvmminfo *info);

/* Packing. */
int pvm_packf(const char *format, ...);
int pvm_pkbyte(char *p, int count, int stride);
int pvm_pkcplx(float *p, int count, int stride);
int pvm_pkdcplx(double *p, int count, int stride);
int pvm_pkdouble(double *p, int count, int stride);
int pvm_pkfloat(float *p, int count, int stride);
int pvm_pkint(int *p, int count, int stride);
int pvm_pklong(long *p, int count, int stride);
int pvm_pkshort(short *p, int count, int stride);
int pvm_pkuint(unsigned int *p, int count, int stride);
int pvm_pkulong(unsigned long *p, int count, int stride);
int pvm_pkushort(unsigned short *p, int count, int stride);
int pvm_pkstr(char *s);
int pvm_pkmesg(int bufid);
int pvm_pkmesgbody(int bufid);

/* Unpacking. */
int pvm_unpackf(const char *format, ...);
int pvm_upkbyte(char *p, int count, int stride);
int pvm_upkcplx(float *p, int count, int stride);
int pvm_upkdcplx(double *p, int count, int stride);
int pvm_upkdouble(double *p, int count, int stride);
int pvm_upkfloat(float *p, int count, int stride);
int pvm_upkint(int *p, int count, int stride);
int pvm_upklong(long *p, int count, int stride);
int pvm_upkshort(short *p, int count, int stride);
int pvm_upkuint(unsigned int *p, int count, int stride);
int pvm_upkulong(unsigned long *p, int count, int stride);
int pvm_upkushort(unsigned short *p, int count, int stride);
int pvm_upkstr(char *s);
int pvm_upkmesg(void);

/*
 * Messages. A tid or a tag of -1 matches any. A signal handler may leave pvm_recv and pvm_trecv by
 * siglongjmp, and no other function of the library.
 */
int pvm_send(int tid, int tag);
int pvm_mcast(int *tids, int count, int tag);
int pvm_recv(int tid, int tag);
int pvm_nrecv(int tid, int tag);
int pvm_trecv(int tid, int tag, struct timeval *timeout);
int pvm_probe(int tid, int tag);
int pvm_psend(int tid, int tag, void *p, int count, int type);
int pvm_precv(int tid, int tag, void *p, int count, int type, int *rtid, int *rtag, int *rcount);
int (*pvm_recvf(int (*match)(int bufid, int tid, int tag)))(int bufid, int tid, int tag);
int pvm_addmhf(int tid, int tag, int context, int (*handler)(int bufid));
int pvm_delmhf(int id);
int pvm_getfds(int **fds);

/* Message contexts. */
int pvm_newcontext(void);
int pvm_getcontext(void);
int pvm_setcontext(int context);
int pvm_freecontext(int context);

/* Groups. */
int pvm_joingroup(char *group);
int pvm_lvgroup(char *group);
int pvm_freezegroup(char *group, int count);
int pvm_getinst(char *group, int tid);
int pvm_gettid(char *group, int inst);
int pvm_gsize(char *group);
int pvm_barrier(char *group, int count);
int pvm_bcast(char *group, int tag);
int pvm_gather(void *result, void *data, int count, int type, int tag, char *group, int root);
int pvm_scatter(void *result, void *data, int count, int type, int tag, char *group, int root);
int pvm_reduce(void (*function)(int *type, void *x, void *y, int *count, int *info),
               void *data, int count, int type, int tag, char *group, int root);

/* Functions for pvm_reduce. */
void PvmMax(int *type, void *x, void *y, int *count, int *info);
void PvmMin(int *type, void *x, void *y, int *count, int *info);
void PvmSum(int *type, void *x, void *y, int *count, int *info);
void PvmProduct(int *type, void *x, void *y, int *count, int *info);

/* The message box, PVM's mailbox. */
int pvm_putinfo(char *name, int bufid, int flags);
int pvm_recvinfo(char *name, int index, int flags);
int pvm_delinfo(char *name, int index, int flags);
int pvm_getmboxinfo(char *pattern, int *nclasses, struct pvmmboxinfo **classes);
int pvm_getnoresets(int **tids, int *count);

/* The message box of PVM 3.3: one int for each entry. */
int pvm_insert(char *name, int index, int data);
int pvm_lookup(char *name, int index, int *data);
int pvm_delete(char *name, int index);

/* Options and errors. */
int pvm_setopt(int what, int value);
int pvm_getopt(int what);
int pvm_perror(char *text);
char *pvm_strerror(void);
char *pvm_version(void);

/* Names of directories and files. */
char *pvmgetrsh(void);
char *pvmgettmp(void);
#ifdef NOTMPNAM
char *pvmtmpnam(char *name);
#define PVMTMPNAMFUN(x) pvmtmpnam(x)
#define PVMTMPNAMLEN    128
#else
#define PVMTMPNAMFUN(x) tmpnam(x)
#ifdef L_tmpnam
#define PVMTMPNAMLEN L_tmpnam
#else
#define PVMTMPNAMLEN 128
#endif
#endif

#ifdef PVM33COMPAT
int pvm_getmwid(int bufid);
int pvm_setmwid(int bufid, int wid);
#endif

#ifdef __cplusplus
}
#endif

#endif /* _PVM3_H_ */
