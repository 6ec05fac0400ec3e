/* doctor.h: what the checks of the server (doctor_server.c) and of the outbox (doctor.c) share. */
#ifndef STORE_POSTGRES_DOCTOR_H
#define STORE_POSTGRES_DOCTOR_H

#include "store/postgres/postgres.h"

struct look {
    struct pg_store *st;
    const struct doctor_request *req;
};

/* A check examines one thing and reports its findings. The last one of a list has no name. */
struct check {
    const char *name;
    int (*look)(const struct look *l, struct error *err);
};

/* pg_checks_server are the checks that need no outbox. */
extern const struct check pg_checks_server[];

/* pg_say reports a finding: its text, and what to do about it (advice may be NULL). Returns 0, so
 * that a check can end with it. */
int pg_say(const struct look *l, enum finding_level level, const char *name, const char *advice,
           const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* pg_say_age writes a duration, in whole seconds if it is longer than one. Returns out. */
const char *pg_say_age(int64_t ms, char out[32]);

#endif
