/* err.h: the error object every fallible function fills in. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

/* The kind of error. The numbers are part of the ABI (see enum outbox_code in outbox.h): only
 * append. */
enum err_code {
    ERR_NONE = 0,
    ERR_NOMEM = 1,        /* out of memory, or a configured ceiling was reached */
    ERR_INVALID = 2,      /* the caller's data is bad: not JSON, too long, ... */
    ERR_MISUSE = 3,       /* the call violates the function's contract */
    ERR_CONFIG = 4,       /* a setting is bad: unknown name, value out of range */
    ERR_NOTFOUND = 5,     /* no such consumer, event, dead letter */
    ERR_CONFLICT = 6,     /* already exists and differs */
    ERR_NOTOURS = 7,      /* the database holds no outbox, or it is not a database */
    ERR_NEWER = 8,        /* the outbox was created by a newer version */
    ERR_READONLY = 9,     /* writing is not allowed */
    ERR_FULL = 10,        /* no space left */
    ERR_BUSY = 11,        /* locked by another session for longer than we wait; try again */
    ERR_UNAVAILABLE = 12, /* the store or the sink cannot be reached */
    ERR_LOST = 13,        /* the claim is no longer ours */
    ERR_INTERNAL = 14,    /* a bug in outbox */
    ERR_UNDELIVERED = 15, /* committed, but not delivered: eager mode */
};

/* Whether a retry can help. Only the engine and a starting relay act on it. */
enum retry_class {
    CLASS_NONE = 0,   /* not about a delivery */
    CLASS_RETRY = 1,  /* retry this event later */
    CLASS_REJECT = 2, /* never retry this event: it cannot succeed */
    CLASS_DOWN = 3,   /* not the event's fault: the other side is unavailable */
    CLASS_FATAL = 4,  /* configuration: stop */
};

/* Same layout as struct outbox_error: part of the ABI. */
struct error {
    int code;        /* enum err_code */
    int retry_class; /* enum retry_class */
    int native;      /* the other side's code: errno, HTTP status, exit status, ...; 0 if none */
    int reserved;
    char text[496]; /* lower case, one line, no secrets, always terminated */
};

/* err_set fills *err (NULL is fine) and returns -1, so that `return err_set(...)` reads well. The
 * retry class is CLASS_NONE. Text that is too long is truncated. */
int err_set(struct error *err, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* err_class is err_set with a retry class and a native code. */
int err_class(struct error *err, enum err_code code, enum retry_class retry_class, int native,
              const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* err_errno is err_set with ": strerror(errno_value)" appended and errno_value as the native
 * code. */
int err_errno(struct error *err, enum err_code code, int errno_value, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* err_prefix prepends "fmt: " to the text of an error that is set. Returns -1. */
int err_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* err_nomem reports that memory ran out. Returns -1. */
int err_nomem(struct error *err);

/* err_copy copies an error that is set, unless err is NULL. Returns -1. */
static inline int err_copy(struct error *err, const struct error *from)
{
    if (err)
        *err = *from;
    return -1;
}

/* Static analysis sees one file at a time, so these attributes state the return values. */
#if defined(OUTBOX_ANALYSIS) && !defined(ERR_C)
#define err_set(...) (err_set(__VA_ARGS__), -1)
#define err_class(...) (err_class(__VA_ARGS__), -1)
#define err_errno(...) (err_errno(__VA_ARGS__), -1)
#define err_prefix(...) (err_prefix(__VA_ARGS__), -1)
#define err_nomem(...) (err_nomem(__VA_ARGS__), -1)
#endif

#endif
