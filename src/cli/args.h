/* args.h: the parsed options and arguments of one call. Strings are borrowed from the arguments or
 * the environment. A command with options of its own has a struct of its own. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "event/event.h"

#define ARGS_MAX 100 /* positional arguments of any command */
#define COLUMNS_MAX 8
#define GRANTED_MAX 64

/* For `adopt`. */
struct adopt_args {
    const char *shape, *existing, *mark, *consumer; /* NULL if not given */
    const char *columns[COLUMNS_MAX];               /* each FIELD=COLUMN */
    size_t n_columns;
    bool drop_mark, undo;
};

/* For `config check`. */
struct check_args {
    bool connect;
    bool overflow; /* not an option: out of memory for a problem */
};

/* For `consume`. Strings are NULL if not given. */
struct consume_args {
    const char *group, *exec, *exec_env, *name, *start, *snapshot;
    int64_t claim_ms;
    bool drain;
};

/* For `consumers set`, `consumers revert` and `consumers remove`. */
struct consumers_args {
    const char *events, *where, *order, *lanes; /* NULL: unchanged */
    int64_t generation;                         /* 0 if not given */
    bool force;
};

/* For `dead`. Strings are NULL if not given. */
struct dead_args {
    const char *consumer, *type;
    int64_t limit; /* 0: all */
    bool all;
};

/* For `doctor`. */
struct doctor_args {
    int64_t patience_ms;
    bool connect;
};

/* A key, split at its slash. */
struct key_arg {
    struct str aggregate_type, aggregate_id;
};

/* For `emit`. */
struct emit_args {
    struct key_arg key;
    const char *payload, *idempotency_key, *tenant; /* NULL if not given */
    const char *headers[EVENT_HEADERS_COUNT];       /* each K=V */
    size_t n_headers;
    int64_t version, delay_ms;
    bool has_version, ndjson, atomic;
};

/* For `events`. Strings are NULL if not given. */
struct events_args {
    struct key_arg key;
    const char *type, *consumer;
    int64_t after, limit;
    int state;        /* enum delivery_state + 1; 0: any */
    bool unprocessed; /* instead of a state */
    bool newest;
    int64_t look;
    bool all;
};

/* For `migrate gen`. */
struct gen_args {
    int tool; /* index into the tools of gen.c */
    const char *service, *out_dir;
};

/* For `grant` and `revoke`. */
struct grant_args {
    const char *consumers[GRANTED_MAX];
    size_t n_consumers;
    const char *tenant;
};

/* For `help`. */
struct help_args {
    bool man, options, members;
};

/* For `hwm`. */
struct hwm_args {
    const char *consumer;
};

/* For `init` and `migrate up`. */
struct init_args {
    bool replace;
    int64_t lock_ms;
};

/* For `receive`. Strings are NULL if not given. */
struct receive_args {
    const char *from, *consumer;
    int64_t count, idle_ms; /* 0 if not given */
    bool check;
};

/* For `relay`. */
struct relay_args {
    bool drain;
};

/* For `status`. */
struct status_args {
    bool watch;
    int64_t interval_ms;
};

/* For `trim`. */
struct trim_args {
    bool older_than; /* whether it was given */
    int64_t older_than_ms;
};

/* An optional number. */
struct number_arg {
    bool given;
    int64_t value;
};

/* For all subcommands of `webhook`. Strings are NULL if not given. */
struct webhook_args {
    const char *secret_file, *secret_env, *id, *signature, *address;
    int64_t timestamp, count; /* 0 if not given */
    int64_t port, status, delay_ms, request_ms, body_max;
    struct number_arg retry_after;
    bool any_time, quiet, asymmetric;
};

/* (1) Of the union, only the struct of the command being run is valid. */
struct args {
    bool help, json;
    bool yes;           /* do not ask for confirmation */
    bool dry_run;       /* only report what would be done */
    const char *config; /* -c */

    const char *pos[ARGS_MAX]; /* positional arguments after command and subcommand */
    int n_pos;

    union {
        struct adopt_args adopt;
        struct check_args check;
        struct consume_args consume;
        struct consumers_args consumers;
        struct dead_args dead;
        struct doctor_args doctor;
        struct emit_args emit;
        struct events_args events;
        struct gen_args gen;
        struct grant_args grant;
        struct help_args helping;
        struct hwm_args hwm;
        struct init_args init;
        struct receive_args receive;
        struct relay_args relay;
        struct status_args status;
        struct trim_args trim;
        struct webhook_args webhook;
    };
};

#define ARG(field) .at = offsetof(struct args, field)

#endif
